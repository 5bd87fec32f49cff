package main

import (
	"strings"
	"testing"

	"piecework/internal/testkit"
)

// The client's commands against a real server: what is put is listed, makes a
// unit, and is gone when it was removed.
func TestScheduleCommands(t *testing.T) {
	t.Parallel()
	p := dev(t, dataDir(t)).up()
	do := func(stdin string, want int, args ...string) string {
		t.Helper()
		s := newStage(t)
		s.Stdin = strings.NewReader(stdin)
		if code := run(s.App, append(args, "--server", p.server)); code != want {
			t.Fatalf("%q: exit code %d\n%s%s", args, code, s.out.String(), s.errs.String())
		}
		return s.out.String() + s.errs.String()
	}
	unit := `{"backend":"mock","prompt":"the report"}`
	if out := do(unit, 0, "schedule", "put", "daily", "0 6 * * *", "--timezone", "Europe/Berlin"); !strings.Contains(out, "the report") {
		t.Error(out)
	}
	if out := do("", 0, "schedule", "ls"); !strings.Contains(out, "daily") || !strings.Contains(out, "Europe/Berlin") ||
		!strings.Contains(out, " 06:00:00") {
		t.Errorf("not by the clocks of Berlin: %s", out)
	}
	if out := do("", 0, "schedule", "run", "daily"); !strings.Contains(out, "the report") {
		t.Error(out)
	}
	if out := do("", 0, "schedule", "ls", "--json"); !strings.Contains(out, `"next_at"`) {
		t.Error(out)
	}
	do(unit, 0, "schedule", "put", "often", "@every 1s", "--json")
	testkit.Eventually(t, "two more units", func() bool {
		return strings.Count(do("", 0, "ls"), "the report") >= 3
	})
	do("", 0, "schedule", "rm", "often")
	do("", 0, "schedule", "rm", "daily")
	if out := do("", exitNotFound, "schedule", "rm", "daily"); !strings.Contains(out, "daily") {
		t.Error(out)
	}
	do("{", exitUsage, "schedule", "put", "x", "@daily")
	do(unit, exitUsage, "schedule", "put", "x", "never")
}
