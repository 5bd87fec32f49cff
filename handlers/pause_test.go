package handlers

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

func (h *house) pause(kind store.PauseKind, name string) {
	h.t.Helper()
	if _, err := h.store.Pauses.Pause(h.t.Context(), kind, name, "", ""); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) resume(kind store.PauseKind, name string) {
	h.t.Helper()
	if _, err := h.store.Pauses.Resume(h.t.Context(), kind, name); err != nil {
		h.t.Fatal(err)
	}
}

// tell says to worker processes what an API would.
func (h *house) tell(name string) {
	h.t.Helper()
	if err := h.bell.PauseChanged(h.t.Context(), name); err != nil {
		h.t.Fatal(err)
	}
}

// bells counts the bells of a unit that are in Redis, waiting or being heard.
func (h *house) bells(id uuid.UUID) int {
	h.t.Helper()
	u := h.unit(id)
	var keys []string
	for n := range u.Dispatch {
		keys = append(keys, "asynq:{"+h.bell.Lane(u.Queue, u.Backend, u.Priority)+"}:t:"+jobs.TaskID(id, n+1))
	}
	found, err := h.bell.Redis().Exists(h.t.Context(), keys...).Result()
	if err != nil {
		h.t.Fatal(err)
	}
	return int(found)
}

// seldom makes a worker process give signs of life only when it is told to.
func seldom(o *Options) { o.Lease, o.Beat = time.Hour, time.Hour/3 }

// A pause shuts its lane in every worker process, and no other; a resume
// opens it. News comes by notice alone and by beat alone.
func TestPauseShutsLanes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		kind store.PauseKind
		what string
		told bool
	}{{"backend by notice", store.PauseBackend, "mock", true}, {"backend by beat", store.PauseBackend, "mock", false}, {"queue by notice", store.PauseQueue, "default", true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			other := newPuppet("other")
			crew := []*worker{}
			for range 2 {
				crew = append(crew, h.start(func(o *Options) {
					o.Backends, o.Queues = append(o.Backends, other), map[string]int{"default": 1, "second": 1}
					if test.told {
						seldom(o)
					}
				}))
			}
			before := h.submit(nil)
			goesOn := h.begun()
			h.pause(test.kind, test.what)
			all := func(shut bool) {
				t.Helper()
				testkit.Eventually(t, "the worker processes have heard", func() bool {
					if test.told { // again: a process may have begun to listen only now
						h.tell(test.what)
					}
					return crew[0].holds("default", "mock") == shut && crew[1].holds("default", "mock") == shut
				})
			}
			all(true)
			held := h.submit(nil)
			free := h.submit(func(s *work.Spec) { s.Backend, s.Queue = "other", "second" })
			(<-other.started).end <- succeed("free")
			h.becomes(free, work.Succeeded)
			goesOn.end <- succeed("went on")
			h.becomes(before, work.Succeeded)
			if h.bells(held) == 0 || h.unit(held).State != work.Queued || len(h.puppet.started) != 0 {
				t.Errorf("%d bells, unit %s, %d begun", h.bells(held), h.unit(held).State, len(h.puppet.started))
			}
			h.resume(test.kind, test.what)
			all(false)
			h.begun().end <- succeed("held")
			h.becomes(held, work.Succeeded)
		})
	}
}

// A bell that was heard by a worker process which had not been told yet is
// gone. The claim is refused, and the resume makes up for the bell.
func TestBellHeardDuringAPause(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.start(seldom)
	h.pause(store.PauseQueue, "default")
	id := h.submit(nil)
	testkit.Eventually(t, "the bell was heard", func() bool { return h.bells(id) == 0 })
	if err := h.store.Queues.Defer(t.Context(), id, uuid.Nil, time.Minute); err != nil {
		t.Fatal(err) // nobody would look at it for a minute
	}
	if u := h.unit(id); u.State != work.Queued || u.RunCount != 0 {
		t.Fatalf("unit %+v", u)
	}
	h.resume(store.PauseQueue, "default")
	h.begun().end <- succeed("late")
	h.becomes(id, work.Succeeded)
}

// A worker process that starts during a pause knows of it before it hears.
func TestStartDuringAPause(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.pause(store.PauseBackend, "mock")
	id := h.submit(nil)
	// A reconciler that has just found Redis new may have rung a second time.
	if w := h.start(seldom); !w.holds("default", "mock") || h.bells(id) == 0 {
		t.Errorf("holds %t, %d bells", w.holds("default", "mock"), h.bells(id))
	}
}

// Without Redis too: the news comes with the beat.
func TestPauseWithoutRedis(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	w := h.start(nil)
	h.pause(store.PauseQueue, "default")
	testkit.Eventually(t, "it has heard", func() bool { return w.holds("default", "mock") })
	h.redis.Stop()
	testkit.Eventually(t, "redis is known to be away", func() bool { return !h.bell.Up() })
	id := h.submit(nil)
	if due, err := h.store.Queues.Due(t.Context(), []string{"default"}, []string{"mock"}, nil, 5); err != nil || len(due) != 0 {
		t.Errorf("due %v, error %v", due, err)
	}
	h.resume(store.PauseQueue, "default")
	h.begun().end <- succeed("from the ledger")
	h.becomes(id, work.Succeeded)
}

// An operator who has mended the credentials says so, and needs not wait for a
// probe or for the refused unit's patience.
func TestResumeLiftsRefusedCredentials(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	w := h.start(func(o *Options) { o.Probe = time.Hour })
	first := h.submit(nil)
	h.begun().end <- refusing()
	h.waits(first)
	second := h.submit(nil)
	if w.laneWait("default", "mock") != never {
		t.Error("the lane is open")
	}
	h.resume(store.PauseBackend, "mock")
	h.tell("mock")
	for range 2 {
		h.begun().end <- succeed("mended")
	}
	h.becomes(first, work.Succeeded)
	h.becomes(second, work.Succeeded)
}

// A refusal of a run that began before the resume is old news; one of a later
// run is not. The same resume counts once.
func TestLaneResumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, refused := newLane(), work.Fail(work.ClassAuth, "401")
		before, said := time.Now(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		l.ended("", before, false, refused)
		time.Sleep(time.Second)
		if !l.resume(said) || l.wait() != 0 {
			t.Error("not opened")
		}
		if l.ended("", before, false, refused).paused || l.wait() != 0 {
			t.Error("shut by an old refusal")
		}
		if !l.ended("", time.Now(), false, refused).paused || l.wait() != never {
			t.Error("not shut by a new refusal")
		}
		if l.resume(said) || l.resume(said.Add(-time.Hour)) || l.wait() != never {
			t.Error("opened by a resume that had been heard")
		}
	})
}
