package jobs

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// flush is FLUSHALL, or a Redis that came back empty.
func (f *fixture) flush() {
	f.t.Helper()
	flush := func(ctx context.Context, server *redis.Client) error { return server.FlushAll(ctx).Err() }
	if cluster, ok := f.queue.Redis().(*redis.ClusterClient); ok {
		f.must(cluster.ForEachMaster(f.t.Context(), flush))
		return
	}
	f.must(flush(f.t.Context(), f.queue.Redis().(*redis.Client)))
}

// recheck lets the next round look at every queued unit.
func (f *fixture) recheck() {
	f.t.Helper()
	_, err := f.store.Queues.RecheckAll(f.t.Context())
	f.must(err)
}

func TestRedisLosesItsMemory(t *testing.T) {
	t.Parallel()
	redisLosesItsMemory(t, newFixture(t))
}

func redisLosesItsMemory(t *testing.T, f *fixture) {
	t.Helper()
	const many = atOnce + 50
	units := make([]work.Unit, many)
	for i := range units {
		units[i] = f.put()
		f.enqueue(units[i])
	}
	f.once() // writes the epoch, and finds every message on its way
	f.once()
	if n := f.pending(units...); n != many || f.unit(units[0].ID).Dispatch != 1 {
		t.Fatalf("%d messages pending, dispatch %d", n, f.unit(units[0].ID).Dispatch)
	}
	f.flush()
	f.once()
	for _, u := range units {
		if got := f.unit(u.ID).Dispatch; got != 2 {
			t.Fatalf("dispatch %d, want 2", got)
		}
	}
	if n := f.pending(units...); n != many {
		t.Errorf("%d messages pending", n)
	}
	if queues, err := f.inspector().Queues(); err != nil || len(queues) != 1 {
		t.Errorf("queues %v, error %v", queues, err)
	}
	f.once()
	if got := f.unit(units[0].ID).Dispatch; got != 2 {
		t.Errorf("dispatch %d after a quiet round", got)
	}
}

// A message that nobody sent, or that was taken by a process that died, is sent
// again; the new number gets past what the old one left behind.
func TestLostMessagesAreEnqueuedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.once()
	for name, spoil := range map[string]func(work.Unit){
		"never sent": func(work.Unit) {},
		"deleted": func(u work.Unit) {
			f.enqueue(u)
			f.must(f.inspector().DeleteTask("default:mock", queue.TaskID(u.ID, 1)))
		},
		"archived": func(u work.Unit) {
			f.enqueue(u)
			f.must(f.inspector().ArchiveTask("default:mock", queue.TaskID(u.ID, 1)))
		},
		"a ghost without a message": func(u work.Unit) {
			f.enqueue(u)
			f.must(f.queue.Redis().Del(t.Context(), taskKey(u, 1)).Err())
			f.must(f.queue.Redis().HSet(t.Context(), taskKey(u, 1), "state", "active").Err())
		},
	} {
		u := f.put()
		spoil(u)
		f.recheck()
		f.once()
		if got := f.unit(u.ID).Dispatch; got != 2 || f.pending(u) != 1 {
			t.Errorf("%s: dispatch %d, pending %d", name, got, f.pending(u))
		}
	}
}

// A Redis that evicts keys takes a queue and leaves its tasks, or the reverse.
func TestEvictedQueueIsFilledAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.once()
	u, gone := f.put(), f.put()
	f.enqueue(u)
	f.enqueue(gone)
	f.must(f.queue.Redis().Del(t.Context(), "asynq:{default:mock}:pending", taskKey(gone, 1)).Err())
	f.recheck()
	f.once()
	if got := f.unit(u.ID).Dispatch; got != 2 || f.pending(u, gone) != 2 {
		t.Errorf("dispatch %d, %d pending", got, f.pending(u, gone))
	}
}

// A new message that Redis refused is tried in the next round, not in a minute.
func TestRefusedMessagesAreSentAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.real()
	f.once()
	u := f.put()
	f.recheck()
	f.refuseWrites(true)
	if err := f.rec.Once(t.Context()); err == nil {
		t.Error("a message was enqueued in a Redis that refuses writes")
	}
	f.refuseWrites(false)
	f.once()
	if f.pending(u) != 1 {
		t.Errorf("dispatch %d is not pending", f.unit(u.ID).Dispatch)
	}
}

func TestReconcileWithoutRedis(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.once()
	u, taken := f.put(), f.put()
	f.claim(taken.ID, uuid.New()) // by a process that never registered
	f.recheck()
	f.redis.Stop()
	if err := f.rec.Once(t.Context()); err == nil {
		t.Error("the first round did not notice")
	}
	_ = f.queue.Probe(t.Context())
	for range 3 {
		f.once()
	}
	if got := f.unit(u.ID); got.Dispatch != 1 || got.State != work.Queued {
		t.Errorf("without Redis: %s, dispatch %d", got.State, got.Dispatch)
	}
	if got := f.unit(taken.ID); got.State != work.Queued || got.Losses != 1 {
		t.Errorf("a dead lease was not freed: %s", got.State)
	}
	f.redis.Start()
	f.must(f.queue.Probe(t.Context()))
	f.once()
	if n := f.pending(u, taken); n != 2 {
		t.Errorf("%d messages pending after Redis came back, want 2", n)
	}
}

func (f *fixture) claim(unit, process uuid.UUID) {
	f.t.Helper()
	c, err := f.store.Runs.Claim(f.t.Context(), store.Claim{UnitID: unit, RunID: uuid.Must(uuid.NewV7()), Process: process,
		Backends: []string{"mock"}})
	f.must(err)
	if c == nil {
		f.t.Fatal("nothing claimed")
	}
}

// Run goes on after a failure and ends with its context.
func TestRun(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.rec.Run(ctx)
	}()
	u := f.put() // nobody enqueues it
	testkit.Eventually(t, "it is enqueued", func() bool { return f.pending(u) == 1 })
	stop()
	<-done
}

// After Postgres was away every lease has run out; whoever held one gets time
// to come back.
func TestLeasesRestAfterPostgresWasAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	u := f.put()
	f.claim(u.ID, uuid.New()) // a process that never registered: its lease is over
	f.rec.away = true
	f.once()
	if got := f.unit(u.ID); got.State != work.Running {
		t.Errorf("right after the outage the unit is %s", got.State)
	}
	f.rec.calm = time.Time{}
	f.once()
	if got := f.unit(u.ID); got.State != work.Queued || got.Losses != 1 {
		t.Errorf("later the unit is %s with %d losses", got.State, got.Losses)
	}
}
