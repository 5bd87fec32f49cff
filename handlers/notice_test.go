package handlers

import (
	"context"
	"testing"

	"piecework/internal/work"
)

// A notice through Redis may be late, be repeated or be forged. It makes the
// worker process ask Postgres, and stops no run that Postgres has no cancel for.
func TestStaleCancelNoticeStopsNothing(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(seldom)
	wanted, id := h.submit(nil), h.submit(nil)
	runs := map[string]*puppetRun{}
	for range 2 {
		run := h.begun()
		runs[run.req.UnitID.String()] = run
	}
	if err := h.queue.Cancelled(t.Context(), wanted); err != nil { // as if it had been asked before a retry
		t.Fatal(err)
	}
	if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, id); err != nil {
		t.Fatal(err)
	}
	if err := h.queue.Cancelled(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	h.becomes(id, work.Cancelled) // its notice came after the stale one
	if run := runs[wanted.String()]; run.ctx.Err() != nil {
		t.Errorf("a run that nobody asked to cancel was stopped: %v", context.Cause(run.ctx))
	} else {
		run.end <- succeed("done")
	}
	h.becomes(wanted, work.Succeeded)
}
