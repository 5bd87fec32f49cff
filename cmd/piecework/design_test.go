package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"piecework/internal/work"
)

// tableRow matches a row whose first cell is one word in backticks.
var tableRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|(.*)\\|$")

func designRows(t *testing.T, heading string) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/design.md has no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string][]string{}
	for _, m := range tableRow.FindAllStringSubmatch(section, -1) {
		for _, cell := range strings.Split(m[2], "|") {
			rows[m[1]] = append(rows[m[1]], strings.TrimSpace(cell))
		}
	}
	return rows
}

func TestDesignShowsWhatFollowsEachFailure(t *testing.T) {
	words := map[work.Follow]string{
		work.FollowFail:         "fail",
		work.FollowRetry:        "retry",
		work.FollowRetryIfAsked: "retry if asked",
		work.FollowWait:         "wait",
		work.FollowPause:        "pause the backend",
	}
	want, got := map[string]string{}, map[string]string{}
	for _, class := range work.Classes() {
		want[string(class)] = words[class.Follow()]
	}
	for class, cells := range designRows(t, "When a run fails") {
		got[class] = cells[len(cells)-1]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/design.md and internal/work/failure.go differ (-code +page):\n%s", diff)
	}
}

func TestDesignShowsTheMoves(t *testing.T) {
	want, got := map[string][]string{}, map[string][]string{}
	for _, from := range work.States {
		for _, to := range work.States {
			if work.CanMove(from, to) {
				want[string(from)] = append(want[string(from)], string(to))
			}
		}
	}
	for from, cells := range designRows(t, "The life of a unit") {
		for _, to := range strings.Split(cells[0], ", ") {
			got[from] = append(got[from], strings.Trim(to, "`"))
		}
	}
	for _, moves := range []map[string][]string{want, got} {
		for _, to := range moves {
			slices.Sort(to)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/design.md and internal/work/state.go differ (-code +page):\n%s", diff)
	}
}
