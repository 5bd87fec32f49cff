package jobs

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// forget is FLUSHALL, or a Redis that came back empty.
func (h *house) forget() {
	h.t.Helper()
	h.must(h.bell.everyMaster(h.t.Context(), func(ctx context.Context, server redis.UniversalClient, _ string) error {
		return server.FlushAll(ctx).Err()
	}))
}

// doubt lets the next round look at every queued unit.
func (h *house) doubt() {
	h.t.Helper()
	_, err := h.store.Queues.RecheckAll(h.t.Context())
	h.must(err)
}

func TestRedisLosesItsMemory(t *testing.T) {
	t.Parallel()
	redisLosesItsMemory(t, newHouse(t))
}

func redisLosesItsMemory(t *testing.T, h *house) {
	t.Helper()
	const many = batch + 50
	units := make([]work.Unit, many)
	for i := range units {
		units[i] = h.put()
		h.ring(units[i])
	}
	h.once() // marks Redis, and finds every bell on its way
	h.once()
	if n := h.pending(units...); n != many || h.unit(units[0].ID).Dispatch != 1 {
		t.Fatalf("%d bells pending, dispatch %d", n, h.unit(units[0].ID).Dispatch)
	}
	h.forget()
	h.once()
	for _, u := range units {
		if got := h.unit(u.ID).Dispatch; got != 2 {
			t.Fatalf("dispatch %d, want 2", got)
		}
	}
	if n := h.pending(units...); n != many {
		t.Errorf("%d bells pending", n)
	}
	if queues, err := h.bell.inspector.Queues(); err != nil || len(queues) != 1 {
		t.Errorf("queues %v, error %v", queues, err)
	}
	h.once()
	if got := h.unit(units[0].ID).Dispatch; got != 2 {
		t.Errorf("dispatch %d after a quiet round", got)
	}
}

// A bell that nobody rang, or that was heard by somebody who died, rings
// again; the new number gets past what the old one left behind.
func TestLostBellsRingAgain(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.once()
	for name, spoil := range map[string]func(work.Unit){
		"never rung": func(work.Unit) {},
		"deleted": func(u work.Unit) {
			h.ring(u)
			h.must(h.bell.inspector.DeleteTask("default:mock", TaskID(u.ID, 1)))
		},
		"archived": func(u work.Unit) {
			h.ring(u)
			h.must(h.bell.inspector.ArchiveTask("default:mock", TaskID(u.ID, 1)))
		},
		"a ghost without a message": func(u work.Unit) {
			h.ring(u)
			h.must(h.bell.redis.Del(t.Context(), h.bell.stateKey(store.MessageOf(u))).Err())
			h.must(h.bell.redis.HSet(t.Context(), h.bell.stateKey(store.MessageOf(u)), "state", "active").Err())
		},
	} {
		u := h.put()
		spoil(u)
		h.doubt()
		h.once()
		if got := h.unit(u.ID).Dispatch; got != 2 || h.pending(u) != 1 {
			t.Errorf("%s: dispatch %d, pending %d", name, got, h.pending(u))
		}
	}
}

// A Redis that evicts keys takes a lane and leaves its tasks, or the reverse.
func TestEvictedLaneRingsAgain(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.once()
	u, gone := h.put(), h.put()
	h.ring(u)
	h.ring(gone)
	h.must(h.bell.redis.Del(t.Context(), pendingKey("default:mock"), h.bell.stateKey(store.MessageOf(gone))).Err())
	h.doubt()
	h.once()
	if got := h.unit(u.ID).Dispatch; got != 2 || h.pending(u, gone) != 2 {
		t.Errorf("dispatch %d, %d pending", got, h.pending(u, gone))
	}
}

// Asynq's tools fail on a lane with a task that lost its message; the archives
// are trimmed all the same.
func TestGhostDoesNotKeepTheArchiveFromBeingTrimmed(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.real()
	u := h.put()
	h.ring(u)
	h.must(h.bell.redis.Del(t.Context(), h.bell.stateKey(store.MessageOf(u))).Err())
	if _, err := h.bell.inspector.GetQueueInfo("default:mock"); err == nil {
		t.Error("Asynq can look at a ghost by now: ask it for the size of the archive")
	}
	h.must(h.bell.trimArchives(t.Context()))
}

// A new bell that Redis refused is tried in the next round, not in a minute.
func TestRefusedBellsRingAgain(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.real()
	h.once()
	u := h.put()
	h.doubt()
	h.refuseWrites(true)
	if err := h.rec.Once(t.Context()); err == nil {
		t.Error("a bell rang in a Redis that refuses writes")
	}
	h.refuseWrites(false)
	h.once()
	if h.pending(u) != 1 {
		t.Errorf("dispatch %d is not pending", h.unit(u.ID).Dispatch)
	}
}

func TestReconcileWithoutRedis(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.once()
	u, taken := h.put(), h.put()
	h.claim(taken.ID, uuid.New()) // by a process that never registered
	h.doubt()
	h.redis.Stop()
	if err := h.rec.Once(t.Context()); err == nil {
		t.Error("the first round did not notice")
	}
	_ = h.bell.Probe(t.Context())
	for range 3 {
		h.once()
	}
	if got := h.unit(u.ID); got.Dispatch != 1 || got.State != work.Queued {
		t.Errorf("without Redis: %s, dispatch %d", got.State, got.Dispatch)
	}
	if got := h.unit(taken.ID); got.State != work.Queued || got.Losses != 1 {
		t.Errorf("a dead lease was not freed: %s", got.State)
	}
	h.redis.Start()
	h.must(h.bell.Probe(t.Context()))
	h.once()
	if n := h.pending(u, taken); n != 2 {
		t.Errorf("%d bells pending after Redis came back, want 2", n)
	}
}

func (h *house) claim(unit, process uuid.UUID) {
	h.t.Helper()
	c, err := h.store.Runs.Claim(h.t.Context(), store.Claim{UnitID: unit, RunID: uuid.Must(uuid.NewV7()), Process: process, Backends: []string{"mock"}})
	h.must(err)
	if c == nil {
		h.t.Fatal("nothing claimed")
	}
}

// Run goes on after a failure and ends with its context.
func TestRun(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.rec.Run(ctx)
	}()
	u := h.put() // nobody rings
	testkit.Eventually(t, "its bell rings", func() bool { return h.pending(u) == 1 })
	stop()
	<-done
}

func TestArchiveIsTrimmed(t *testing.T) {
	t.Parallel()
	archiveIsTrimmed(t, newHouse(t))
}

func archiveIsTrimmed(t *testing.T, h *house) {
	t.Helper()
	const more = 30
	for range keepFailed + more {
		_, err := h.bell.client.EnqueueContext(t.Context(), asynq.NewTask(TypeRun, nil), asynq.Queue("default:mock"))
		h.must(err)
	}
	if n, err := h.bell.inspector.ArchiveAllPendingTasks("default:mock"); err != nil || n != keepFailed+more {
		t.Fatalf("archived %d, error %v", n, err)
	}
	oldest, err := h.bell.inspector.ListArchivedTasks("default:mock", asynq.PageSize(1))
	h.must(err)
	h.rec.soon("trim archives")
	h.once()
	info, err := h.bell.inspector.GetQueueInfo("default:mock")
	if err != nil || info.Archived != keepFailed {
		t.Errorf("archived %d, error %v", info.Archived, err)
	}
	if _, err := h.bell.inspector.GetTaskInfo("default:mock", oldest[0].ID); err == nil {
		t.Error("the oldest was kept")
	}
}

// After Postgres was away every lease has run out; whoever held one gets time
// to come back.
func TestLeasesRestAfterPostgresWasAway(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	u := h.put()
	h.claim(u.ID, uuid.New()) // a process that never registered: its lease is over
	h.rec.away = true
	h.once()
	if got := h.unit(u.ID); got.State != work.Running {
		t.Errorf("right after the outage the unit is %s", got.State)
	}
	h.rec.calm = time.Time{}
	h.once()
	if got := h.unit(u.ID); got.State != work.Queued || got.Losses != 1 {
		t.Errorf("later the unit is %s with %d losses", got.State, got.Losses)
	}
}
