package handlers

import (
	"testing"
	"time"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// A run that is given a long time to end at a shutdown still ends when its unit
// is cancelled.
func TestCancelIsHeardWhileDraining(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(func(o *Options) { o.Grace = time.Hour })
	id := h.submit(nil)
	h.begun()
	w.stop()
	testkit.Eventually(t, "the shutdown has begun", func() bool { return w.drain.Begun() })
	if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, id); err != nil {
		t.Fatal(err)
	}
	h.becomes(id, work.Cancelled)
	<-w.done
	if runs := h.runs(id); len(runs) != 1 || runs[0].Status != work.RunCancelled {
		t.Errorf("%+v", statuses(runs))
	}
}
