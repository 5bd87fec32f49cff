package handlers

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/handlers/upkeep"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// suspect is a unit that has seen worker processes die.
func (h *fixture) suspect(queue string) uuid.UUID {
	h.t.Helper()
	t := h.t
	suspect := h.submit(func(s *work.Spec) { s.SystemPrompt, s.Queue = "suspect", queue })
	for range work.MaxCrashes - 1 {
		dead := work.Process{ID: uuid.Must(uuid.NewV7()), Queues: []string{"default"}}
		if err := h.store.Processes.Register(t.Context(), dead, time.Millisecond); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the suspect claimed", func() bool {
			c, err := h.store.Runs.Claim(t.Context(), store.Claim{UnitID: suspect, RunID: uuid.Must(uuid.NewV7()), Process: dead.ID,
				Backends: []string{"mock"}})
			return err == nil && c != nil
		})
		h.becomes(suspect, work.Queued)
	}
	return suspect
}

// A suspect waits until the others have ended, and nobody joins it.
func TestSuspectRunsAlone(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	suspect := h.suspect("default")
	w := h.start(nil)
	innocent := h.submit(nil)
	first := h.begun()
	testkit.Eventually(t, "the suspect keeps others out", w.isolating.Load)
	if w.runs.Count() != 1 || len(h.puppet.started) != 0 {
		t.Errorf("%d runs at once", w.runs.Count())
	}
	if w.wait("default", "mock") != upkeep.Never {
		t.Error("messages are taken meanwhile")
	}
	first.end <- succeed("")
	h.begun().end <- succeed("")
	h.becomes(innocent, work.Succeeded)
	if u := h.becomes(suspect, work.Succeeded); u.Losses != 2 || u.Failures != 0 {
		t.Errorf("%d losses, %d failures", u.Losses, u.Failures)
	}
}

// A run that takes long does not keep every new one out for a suspect's sake.
func TestSuspectDoesNotStopTheWorkerProcess(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	suspect := h.suspect("unheard") // by hand, when the long run is at work
	w := h.start(nil)
	w.aloneTime = time.Millisecond
	h.submit(nil)
	long := h.begun()
	if err := w.runUnit(suspect); err != nil {
		t.Error(err)
	}
	next := h.submit(nil)
	h.begun().end <- succeed("")
	h.becomes(next, work.Succeeded)
	if u := h.unit(suspect); u.State != work.Queued {
		t.Errorf("the suspect is %s beside another", u.State)
	}
	long.end <- succeed("")
	testkit.Eventually(t, "the long run to end", func() bool { return w.runs.Count() == 0 })
	w.aloneTime = time.Minute
	ended := make(chan error, 1)
	go func() { ended <- w.runUnit(suspect) }()
	h.begun().end <- succeed("")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	h.becomes(suspect, work.Succeeded)
}
