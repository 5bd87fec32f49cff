package handlers

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/handlers/upkeep"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

func (h *fixture) pause(kind store.PauseKind, name string) {
	h.t.Helper()
	if _, err := h.store.Pauses.Pause(h.t.Context(), kind, name, "", ""); err != nil {
		h.t.Fatal(err)
	}
}

func (h *fixture) resume(kind store.PauseKind, name string) {
	h.t.Helper()
	if _, err := h.store.Pauses.Resume(h.t.Context(), kind, name); err != nil {
		h.t.Fatal(err)
	}
}

// notify sends worker processes the notice that an API would.
func (h *fixture) notify(name string) {
	h.t.Helper()
	if err := h.queue.PauseChanged(h.t.Context(), name); err != nil {
		h.t.Fatal(err)
	}
}

// messages counts the messages of a unit that are in Redis, waiting or taken.
func (h *fixture) messages(id uuid.UUID) int {
	h.t.Helper()
	u := h.unit(id)
	var keys []string
	for n := range u.Dispatch {
		keys = append(keys, "asynq:{"+h.queue.QueueName(u.Queue, u.Backend, u.Priority)+"}:t:"+queue.TaskID(id, n+1))
	}
	found, err := h.queue.Redis().Exists(h.t.Context(), keys...).Result()
	if err != nil {
		h.t.Fatal(err)
	}
	return int(found)
}

// seldom makes a worker process send heartbeats seldom.
func seldom(o *Options) { o.Lease, o.Beat = time.Hour, time.Hour/3 }

// A pause stops its queue or backend in every worker process, and no other; a resume
// ends it. Both work by notice alone and by heartbeat alone.
func TestPauseStopsUnits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		kind    store.PauseKind
		what    string
		noticed bool
	}{{"backend by notice", store.PauseBackend, "mock", true}, {"backend by heartbeat", store.PauseBackend, "mock", false},
		{"queue by notice", store.PauseQueue, "default", true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t)
			other := newPuppet("other")
			procs := []*worker{}
			for range 2 {
				procs = append(procs, h.start(func(o *Options) {
					o.Backends, o.Queues = append(o.Backends, other), map[string]int{"default": 1, "second": 1}
					if test.noticed {
						seldom(o)
					}
				}))
			}
			before := h.submit(nil)
			goesOn := h.begun()
			h.pause(test.kind, test.what)
			all := func(shut bool) {
				t.Helper()
				testkit.Eventually(t, "the worker processes know", func() bool {
					if test.noticed { // again: a process may have begun to listen only now
						h.notify(test.what)
					}
					return procs[0].pauses.Hold("default", "mock") == shut && procs[1].pauses.Hold("default", "mock") == shut
				})
			}
			all(true)
			held := h.submit(nil)
			free := h.submit(func(s *work.Spec) { s.Backend, s.Queue = "other", "second" })
			(<-other.started).end <- succeed("free")
			h.becomes(free, work.Succeeded)
			goesOn.end <- succeed("went on")
			h.becomes(before, work.Succeeded)
			if h.messages(held) == 0 || h.unit(held).State != work.Queued || len(h.puppet.started) != 0 {
				t.Errorf("%d messages, unit %s, %d begun", h.messages(held), h.unit(held).State, len(h.puppet.started))
			}
			h.resume(test.kind, test.what)
			all(false)
			h.begun().end <- succeed("held")
			h.becomes(held, work.Succeeded)
		})
	}
}

// A message that was taken by a worker process which did not know yet is
// gone. The claim is refused, and the resume makes up for the message.
func TestMessageTakenDuringAPause(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(seldom)
	h.pause(store.PauseQueue, "default")
	id := h.submit(nil)
	testkit.Eventually(t, "the message was taken", func() bool { return h.messages(id) == 0 })
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

// A worker process that starts during a pause knows of it before it takes messages.
func TestStartDuringAPause(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.pause(store.PauseBackend, "mock")
	id := h.submit(nil)
	// A reconciler that has just found Redis new may have enqueued a second time.
	if w := h.start(seldom); !w.pauses.Hold("default", "mock") || h.messages(id) == 0 {
		t.Errorf("holds %t, %d messages", w.pauses.Hold("default", "mock"), h.messages(id))
	}
}

// Without Redis too: it comes with the heartbeat.
func TestPauseWithoutRedis(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	h.pause(store.PauseQueue, "default")
	testkit.Eventually(t, "it knows", func() bool { return w.pauses.Hold("default", "mock") })
	h.redis.Stop()
	testkit.Eventually(t, "redis is known to be away", func() bool { return !h.queue.Up() })
	id := h.submit(nil)
	if due, err := h.store.Queues.Due(t.Context(), []string{"default"}, []string{"mock"}, nil, 5); err != nil || len(due) != 0 {
		t.Errorf("due %v, error %v", due, err)
	}
	h.resume(store.PauseQueue, "default")
	h.begun().end <- succeed("from Postgres")
	h.becomes(id, work.Succeeded)
}

// An operator who has mended the credentials says so, and needs not wait for a
// probe or for the refused unit's patience.
func TestResumeLiftsRefusedCredentials(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(func(o *Options) { o.Probe = time.Hour })
	first := h.submit(nil)
	h.begun().end <- refusing()
	h.waits(first)
	second := h.submit(nil)
	if w.wait("default", "mock") != upkeep.Never {
		t.Error("the backend is not paused")
	}
	h.resume(store.PauseBackend, "mock")
	h.notify("mock")
	for range 2 {
		h.begun().end <- succeed("mended")
	}
	h.becomes(first, work.Succeeded)
	h.becomes(second, work.Succeeded)
}
