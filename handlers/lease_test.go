package handlers

import (
	"errors"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/process"
	"piecework/internal/work"
)

// A run whose lease has run out does not begin, however long ago it was
// claimed, and costs no retry.
func TestRunUnderALapsedLeaseDoesNotBegin(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	lapsed, err := process.NewLease(0)
	if err != nil {
		t.Fatal(err)
	}
	id := h.submit(func(s *work.Spec) { s.Queue = "unheard" })
	claimed, err := w.claim(id, false)
	if err != nil || claimed == nil {
		t.Fatal(claimed, err)
	}
	a := w.attempt(claimed)
	a.lease = lapsed // the process was frozen here
	a.execute()
	if len(h.puppet.started) > 0 {
		t.Error("the backend was asked")
	}
	_ = a.finish()
	w.runs.End(claimed.RunID)
	u, err := h.store.Units.Get(t.Context(), work.DefaultTenant, id)
	if err != nil || u.State != work.Queued || u.Losses != 1 || u.Failures != 0 || u.Crashes != 0 {
		t.Errorf("%s, losses %d, failures %d, crashes %d, %v", u.State, u.Losses, u.Failures, u.Crashes, err)
	}
}

// So it is with a run that its supervisor has ended.
func TestRunEndedByItsSupervisorIsLost(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	id := h.submit(func(s *work.Spec) { s.Queue = "unheard" })
	claimed, err := w.claim(id, false)
	if err != nil || claimed == nil {
		t.Fatal(claimed, err)
	}
	a := w.attempt(claimed)
	a.ran.Result = backend.Result{Output: "so far"}
	a.returned(a.ctx, errors.Join(process.ErrLapsed))
	_ = a.finish()
	w.runs.End(claimed.RunID)
	u, err := h.store.Units.Get(t.Context(), work.DefaultTenant, id)
	if err != nil || u.State != work.Queued || u.Losses != 1 || u.Failures != 0 || u.Crashes != 0 {
		t.Errorf("%s, losses %d, failures %d, crashes %d, %v", u.State, u.Losses, u.Failures, u.Crashes, err)
	}
}
