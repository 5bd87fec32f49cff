package handlers

import (
	"context"
	"piecework/internal/backend"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

// slowPuppet says that it is there when the test lets it.
type slowPuppet struct {
	*puppet
	tell   chan struct{}
	gaveUp atomic.Bool // it was waited for until its time was over
}

func (s *slowPuppet) Available(ctx context.Context) error {
	select {
	case <-s.tell:
		return nil
	case <-ctx.Done():
		s.gaveUp.Store(true)
		return ctx.Err()
	}
}

// The start of a worker process does not wait for an agent that takes long to
// say whether it is there: the other backends' units run meanwhile, its own wait.
func TestStartsWithoutASlowBackend(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	slow := &slowPuppet{puppet: newPuppet("slow"), tell: make(chan struct{})}
	h.start(func(o *Options) { o.Backends = append(o.Backends, slow) })
	if slow.gaveUp.Load() {
		t.Fatal("the start waited for it as long as a look may take")
	}
	waits := h.submit(func(s *work.Spec) { s.Backend = "slow" })
	id := h.submit(nil)
	h.begun().end <- succeed("fine")
	h.becomes(id, work.Succeeded)
	if u := h.unit(waits); u.State != work.Queued || len(slow.started) != 0 {
		t.Errorf("unit of a backend that nobody has looked at: %s, %d runs begun", u.State, len(slow.started))
	}
	close(slow.tell)
	(<-slow.started).end <- succeed("fine")
	h.becomes(waits, work.Succeeded)
}

// refusing is a backend without valid credentials.
func refusing() backend.Result {
	return backend.Result{Error: work.Fail(work.ClassAuth, "401: invalid key")}
}

// Refused credentials pause the backend: its units wait, those of another go
// on, and once one is answered all are.
func TestRefusedCredentialsPauseTheBackend(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	other := newPuppet("other")
	w := h.start(func(o *Options) { o.Backends, o.Probe = append(o.Backends, other), time.Hour })
	first := h.submit(nil)
	h.begun().end <- refusing()
	u := h.waits(first)
	second := h.submit(nil)
	id := h.submit(func(s *work.Spec) { s.Backend = "other" })
	(<-other.started).end <- succeed("fine")
	h.becomes(id, work.Succeeded)
	if u.Failures != 0 || u.Error.Class != work.ClassAuth || len(h.puppet.started) != 0 {
		t.Errorf("unit %+v, error %v, %d runs begun", u, u.Error, len(h.puppet.started))
	}
	w.health.ProbeAll(t.Context())
	run := h.begun()
	if len(h.puppet.started) != 0 {
		t.Error("more than one tries")
	}
	run.end <- succeed("mended")
	h.begun().end <- succeed("mended")
	h.becomes(first, work.Succeeded)
	h.becomes(second, work.Succeeded)
}

// waits waits until a unit's first run has ended and it is queued again.
func (h *fixture) waits(id uuid.UUID) work.Unit {
	h.t.Helper()
	var u work.Unit
	testkit.Eventually(h.t, "the unit waits", func() bool {
		u = h.unit(id)
		return u.State == work.Queued && u.Waits == 1
	})
	return u
}

// A unit that is refused although another was answered since fails: it is not
// the backend's matter.
func TestOwnFault(t *testing.T) {
	t.Parallel()
	before := time.Now()
	w := New(Options{Backends: []backend.Backend{newPuppet("mock")}})
	fault := func(c *store.Claimed) bool { return (&attempt{w: w, claimed: c}).ownFault() }
	unit := func(class work.Class, due time.Time) *store.Claimed {
		return &store.Claimed{Unit: work.Unit{Spec: work.Spec{Backend: "mock", NotBefore: &due}, Error: work.Fail(class, "")}}
	}
	if fault(unit(work.ClassAuth, before)) {
		t.Error("nobody was answered")
	}
	w.health.Of("mock").Ended("", before.Add(time.Second), true, nil)
	if !fault(unit(work.ClassAuth, before)) || fault(unit(work.ClassInfra, before)) ||
		fault(unit(work.ClassAuth, before.Add(time.Minute))) {
		t.Error("does not say whose fault it is")
	}
}
