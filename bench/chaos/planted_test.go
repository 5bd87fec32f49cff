package chaos

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var planted = flag.Bool("planted", false, "run Piecework with each planted bug, and find it")

// The planted bugs. Each is a change of a line or two of Piecework, the faults
// that make it matter, and the promises that are then broken.
var bugs = []struct {
	name     string
	edits    []edit
	faults   []string
	promises []string // one of them
	stretch  float64  // of the units' times
}{
	{
		"no fence", []edit{{"store/finish.go",
			"l.state = 'running' AND l.run_count = f.attempt AND r.status = 'running' AS mine", "true AS mine"}},
		[]string{"freeze worker"}, []string{"final is final", "one result"}, 1,
	},
	{
		"no reconciler", []edit{{"cmd/piecework/serve.go",
			"(&jobs.Reconciler{Store: ledger, Bell: bell, Log: log}).Run(until)", "<-until.Done()"}},
		[]string{"kill worker", "flush redis"}, []string{"accepted ends"}, 1,
	},
	{
		"run closed before its agents are dead", []edit{
			{"internal/backend/cli.go", "child.Stop(l.ladder)\n\t\t\treturn cause", "return cause"},
			{"internal/backend/cli.go", "state, swept := child.Close()\n\t<-out.done\n\t<-drained\n\tchild.Release()",
				"var state *process.State\n\tvar swept error\n\ttime.AfterFunc(5*time.Second, func() { child.Close(); <-out.done; <-drained; child.Release() })"},
		},
		[]string{"stop worker"}, []string{"closed means dead", "one live tree"}, 1,
	},
	{
		"cancel not heard", []edit{
			{"handlers/beat.go", "if o.Cancel {", "if false {"},
		},
		[]string{"cut link"}, []string{"accepted ends"}, 1,
	},
	{
		"cancel forgotten when a run is lost", []edit{{"store/reconcile.go",
			"CASE WHEN u.cancel_requested_at IS NOT NULL THEN 'cancelled'", "CASE WHEN false THEN 'cancelled'"}},
		[]string{"kill worker"}, []string{"cancel holds", "cancel is kept", "accepted ends"}, 1,
	},
	{
		"secrets not taken out", []edit{{"handlers/handlers.go",
			"redact: transcript.Redactor(o.Secrets)", "redact: transcript.Redactor(nil)"}},
		[]string{"cut link"}, []string{"nothing leaks"}, 1,
	},
	{
		"idempotency key ignored", []edit{{"api/unit.go",
			"n.IdempotencyKey, n.BodyHash = key, hash", ""}},
		[]string{"kill api"}, []string{"one unit per key"}, 1,
	},
	{
		"lease not watched by its holder", []edit{{"handlers/beat.go",
			"silent > w.Lease-w.margin()", "silent > time.Hour"}, {"internal/process/keeper_linux.go",
			"k.alarm == never || !k.lease.Lapsed()", "true"}},
		[]string{"cut worker off from postgres"}, []string{"one live tree"}, 5,
	},
	{
		"lease not watched by keepers", []edit{{"internal/process/keeper_linux.go",
			"k.alarm == never || !k.lease.Lapsed()", "true"}},
		[]string{"freeze worker"}, []string{"one live tree"}, 5,
	},
	{
		"what an agent leaves behind lives on", []edit{
			{"internal/process/tree.go", "killAll(look())", "killAll(nil)"},
			{"internal/process/keeper.go", "len(k.try) == 0", "len(k.try) >= 0"},
		},
		[]string{"stop worker"}, []string{"no orphans", "one live tree", "closed means dead"}, 1, // another's worker process on this machine may sweep the orphans
	},
	{
		"shutdown counts as failure", []edit{{"handlers/outcome.go",
			"f.Status, f.Next, f.Losses, f.Error = work.RunReleased", "f.Status, f.Next, f.Failures, f.Error = work.RunReleased"}},
		[]string{"stop worker"}, []string{"failures are failures"}, 1,
	},
	{
		"full disk counts as failure", []edit{{"handlers/unit.go", "\t\tcause = errDiskFull\n", ""}},
		[]string{"fill worker disk"}, []string{"failures are failures"}, 1,
	},
	{
		"transcript cut", []edit{{"handlers/recorder.go",
			"steps := r.steps.Steps()", "steps := r.steps.Steps()[:1]"}},
		[]string{"cut link"}, []string{"transcripts are kept"}, 1,
	},
	{
		"delivery written after the end", []edit{
			{"migrations/0013_webhooks.sql", "IF NEW.callback_url IS NULL AND NOT EXISTS", "IF NEW.callback_url IS NOT NULL OR NOT EXISTS"},
			{"store/finish.go", "verdicts[run.ID] = Recorded\n", "verdicts[run.ID] = Recorded\n" + `time.AfterFunc(time.Second, func() {
				_, _ = s.db.Exec("SELECT announce(tenant, 'work_unit.' || state, jsonb_build_object('id', id), id, batch_id, callback_url) FROM work_units u " +
					"WHERE final_run = $1 AND callback_url IS NOT NULL AND NOT EXISTS (SELECT FROM webhook_deliveries WHERE unit_id = u.id)", run.ID)
			})` + "\n"},
		},
		[]string{"kill worker"}, []string{"ends are told"}, 1,
	},
	{
		"delivery noted before it is sent", []edit{{"handlers/delivery.go",
			"answer := w.Sender.Send(", "_, _ = w.noteTry(store.Try{ID: d.ID, Attempt: d.Attempts, Delivered: true})\nanswer := w.Sender.Send("}},
		[]string{"cut link"}, []string{"ends are told"}, 1,
	},
	{
		"another body at each try", []edit{{"handlers/delivery.go",
			"Body: d.Body,", `Body: fmt.Appendf(d.Body, "%*s", d.Attempts, ""),`}},
		[]string{"cut link"}, []string{"messages are true"}, 1,
	},
	{
		"signed by another secret", []edit{{"handlers/delivery.go",
			"Secrets: d.Secrets.All()", "Secrets: []string{webhook.NewSecret()}"}},
		[]string{"cut link"}, []string{"messages are true"}, 1,
	},
	{
		"pause loses what it takes back", []edit{{"store/batch_move.go",
			"WHERE batch_id = $1 AND held AND state = 'queued'\n\t\t\tORDER BY", "WHERE batch_id = $1 AND held AND dispatch = 1 AND state = 'queued'\n\t\t\tORDER BY"}},
		[]string{"cut link"}, []string{"accepted ends", "batches add up"}, 1,
	},
	{
		"batch over before its units", []edit{{"store/batch_move.go",
			"NOT held AND state IN ('queued', 'running', 'waiting')", "NOT held AND state = 'queued'"}},
		[]string{"cut link"}, []string{"batches add up"}, 1,
	},
	{
		"idempotency key of a batch ignored", []edit{{"api/batch.go",
			"n.IdempotencyKey, n.BodyHash = key, hash", ""}},
		[]string{"kill api"}, []string{"batches are whole", "one unit per key"}, 1,
	},
}

type edit struct{ file, was, becomes string }

// A planted bug must be one still.
func TestPlantedBugsApply(t *testing.T) {
	for _, b := range bugs {
		for _, e := range b.edits {
			source, err := os.ReadFile(filepath.Join("../..", e.file))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), e.was); n != 1 {
				t.Errorf("%s: %s has %q %d times, not once: plant it elsewhere", b.name, e.file, e.was, n)
			}
		}
	}
}

// TestPlantedBugs runs Piecework with each bug and wants it found: a checker
// that is always content proves nothing.
func TestPlantedBugs(t *testing.T) {
	if !*planted {
		t.Skip("takes minutes; run it with make chaos-planted")
	}
	for _, b := range bugs {
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			plan := planOf()
			plan.Seed, plan.Binary, plan.Out = 1, buildWith(t, b.edits), t.TempDir()
			plan.Only, plan.Drain, plan.Agents, plan.Stretch = b.faults, 45*time.Second, 0.6, b.stretch
			found := Check(Execute(t, plan))
			i := slices.IndexFunc(found, func(v Violation) bool { return slices.Contains(b.promises, v.Promise) })
			if i < 0 {
				t.Fatalf("not found; what was found: %v", found)
			}
			t.Logf("found: %s (%d violations in all)", found[i], len(found))
		})
	}
}

// buildWith makes the program with some changes to its source.
func buildWith(t *testing.T, edits []edit) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for i, e := range edits {
		path, err := filepath.Abs(filepath.Join("../..", e.file))
		if err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(cmp.Or(replace[path], path)) // it may have been edited already
		if err != nil {
			t.Fatal(err)
		}
		replace[path] = filepath.Join(dir, fmt.Sprint("changed", i, filepath.Ext(path)))
		if err := os.WriteFile(replace[path], []byte(strings.Replace(string(source), e.was, e.becomes, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	return build(t, "-overlay", path)
}
