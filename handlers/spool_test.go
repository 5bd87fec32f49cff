package handlers

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/handlers/upkeep"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// A run that ends while Postgres is away is on disk until Postgres has it.
func TestFinishedRunIsOnDiskWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	postgres := testkit.OwnPostgres(t, migrate)
	h := newFixtureOn(t, postgres.URL)
	w := h.start(func(o *Options) { o.Lease = time.Minute })
	id := h.submit(nil)
	run := h.begun()
	postgres.Kill()
	run.end <- succeed("paid for")
	path := w.spool.Path(run.req.RunID)
	testkit.Eventually(t, "the run on disk", func() bool { return exists(path) })
	postgres.Start()
	if u := h.becomes(id, work.Succeeded); u.Losses != 0 || *u.Output != "paid for" {
		t.Errorf("%d losses, output %q", u.Losses, *u.Output)
	}
	testkit.Eventually(t, "the disk cleared", func() bool { return !exists(path) })
}

// When the Postgres of a dev server has died nobody brings it back: the process
// ends, and the next one hands in what had ended.
func TestNothingWaitsForALedgerThatIsGone(t *testing.T) {
	t.Parallel()
	postgres := testkit.OwnPostgres(t, migrate)
	h := newFixtureOn(t, postgres.URL)
	data := t.TempDir()
	w := h.start(func(o *Options) { o.Lease, o.Data = time.Minute, data })
	over, cut := h.submit(nil), h.submit(nil)
	first, second := h.begun(), h.begun()
	if first.req.UnitID != over {
		first, second = second, first
	}
	postgres.Kill()
	first.end <- succeed("paid for")
	testkit.Eventually(t, "the run on disk", func() bool { return exists(w.spool.Path(first.req.RunID)) })
	began := time.Now()
	w.fail(work.ErrLedgerGone)
	<-w.done
	if took := time.Since(began); took > 1500*time.Millisecond || !exists(w.spool.Path(second.req.RunID)) {
		t.Errorf("took %s; the run that was cut short is on disk: %t", took, exists(w.spool.Path(second.req.RunID)))
	}
	postgres.Start()
	h.start(func(o *Options) { o.Data = data })
	if u := h.becomes(over, work.Succeeded); *u.Output != "paid for" || u.RunCount != 1 {
		t.Errorf("output %q of %d runs", *u.Output, u.RunCount)
	}
	again := h.begun()
	again.end <- succeed("done")
	if u := h.becomes(cut, work.Succeeded); u.RunCount != 2 || u.Failures != 0 {
		t.Errorf("%d runs, %d failures", u.RunCount, u.Failures)
	}
}

// A worker process that died left its last results on disk. The next one hands
// them in before the runs are given up, and runs nothing again. What the disk
// has spoilt is set aside.
func TestNextWorkerProcessHandsInWhatIsOnDisk(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	data := t.TempDir()
	dead := upkeep.NewSpool(h.store, filepath.Join(data, "spool"), nil, h.log)
	process := work.Process{ID: uuid.Must(uuid.NewV7()), Queues: []string{"default"}}
	if err := h.store.Processes.Register(t.Context(), process, time.Minute); err != nil {
		t.Fatal(err)
	}
	id := h.submit(nil)
	c, err := h.store.Runs.Claim(t.Context(), store.Claim{UnitID: id, RunID: uuid.Must(uuid.NewV7()), Process: process.ID,
		Backends: []string{"mock"}})
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	blob, err := h.store.Transcripts.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	cost := 0.5
	dead.Keep(store.Finish{UnitID: id, RunID: c.RunID, Attempt: 1, Status: work.RunSucceeded, Next: work.Succeeded,
		Result: "paid for", TotalCostUSD: &cost, Blob: blob})
	spoilt := dead.Path(uuid.New())
	if err := os.WriteFile(spoilt, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start(func(o *Options) { o.Data = data })
	u := h.becomes(id, work.Succeeded)
	if *u.Output != "paid for" || u.Known() != cost || u.RunCount != 1 || len(h.puppet.started) != 0 {
		t.Errorf("output %q, cost %v, %d runs", *u.Output, u.Known(), u.RunCount)
	}
	if exists(dead.Path(c.RunID)) || exists(spoilt) || !exists(spoilt+".bad") {
		t.Error("the disk is not cleared")
	}
}
