package handlers

import (
	"errors"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/process"
	"piecework/internal/work"
)

// A run whose lease has run out does not begin, however long ago it was
// claimed, and costs no retry.
func TestRunUnderALapsedLeaseDoesNotBegin(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
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
	w.execute(a)
	if len(h.puppet.started) > 0 {
		t.Error("the backend was asked")
	}
	_ = w.conclude(a)
	w.end(claimed.RunID)
	u, err := h.store.Units.Get(t.Context(), work.DefaultTenant, id)
	if err != nil || u.State != work.Queued || u.Losses != 1 || u.Failures != 0 || u.Crashes != 0 {
		t.Errorf("%s, losses %d, failures %d, crashes %d, %v", u.State, u.Losses, u.Failures, u.Crashes, err)
	}
}

// So it is with a run that its keeper has ended.
func TestRunEndedByItsKeeperIsLost(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	w := h.start(nil)
	id := h.submit(func(s *work.Spec) { s.Queue = "unheard" })
	claimed, err := w.claim(id, false)
	if err != nil || claimed == nil {
		t.Fatal(claimed, err)
	}
	a := w.attempt(claimed)
	a.ran.Result = backend.Result{Output: "so far"}
	w.returned(a.ctx, a, errors.Join(process.ErrLapsed))
	_ = w.conclude(a)
	w.end(claimed.RunID)
	u, err := h.store.Units.Get(t.Context(), work.DefaultTenant, id)
	if err != nil || u.State != work.Queued || u.Losses != 1 || u.Failures != 0 || u.Crashes != 0 {
		t.Errorf("%s, losses %d, failures %d, crashes %d, %v", u.State, u.Losses, u.Failures, u.Crashes, err)
	}
}

// Every confirmed sign of life renews the lease, and nothing else does. What
// was claimed under one that has run out stays without, whatever comes.
func TestLeaseFollowsTheBeats(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	w := h.start(nil)
	first := w.leased()
	renewed := func() bool { return w.confirm(process.Uptime()) == nil && w.leased() == first }
	if !renewed() || first.Lapsed() {
		t.Error("a confirmed sign of life did not renew the lease")
	}
	if w.confirm(process.Uptime()-time.Hour) != nil || first.Lapsed() {
		t.Error("an answer that came late has taken time away")
	}
	w.stop()
	<-w.done // no sign of life any more
	deadline := time.Now().Add(30 * time.Second)
	for !first.Lapsed() {
		if time.Now().After(deadline) {
			t.Fatal("the lease does not end")
		}
	}
	if silent := process.Uptime() - w.confirmed(); silent < w.Lease-w.margin() || silent > w.Lease {
		t.Errorf("it ended after %v of %v", silent, w.Lease)
	}
	if renewed() || !first.Lapsed() || w.leased().Lapsed() {
		t.Error("the next sign of life must begin another lease")
	}
}
