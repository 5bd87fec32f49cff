package jobs

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
)

// One master of a Cluster that forgets is enough for every message to be looked
// for, and one that refuses writes for Redis to be away.
func TestOneMasterOfACluster(t *testing.T) {
	t.Parallel()
	f := newFixtureAt(t, testkit.StartCluster(t).URL)
	masters := map[string]*redis.Client{} // by address
	var mu sync.Mutex
	f.must(f.queue.Redis().(*redis.ClusterClient).ForEachMaster(t.Context(), func(_ context.Context, server *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters[server.Options().Addr] = server
		return nil
	}))
	if len(masters) != 3 {
		t.Fatalf("%d masters", len(masters))
	}
	f.once()
	epoch, err := f.store.Queues.Epoch(t.Context(), "")
	f.must(err)
	if lack, err := f.queue.MissingEpochs(t.Context(), epoch); err != nil || len(lack) > 0 {
		t.Errorf("epochs are missing: %v, %v", lack, err)
	}
	u := f.put()
	f.enqueue(u)
	for address, server := range masters {
		f.must(f.store.Queues.Defer(t.Context(), u.ID, uuid.Nil, time.Minute))
		f.must(server.FlushAll(t.Context()).Err())
		f.once()
		if n := f.pending(u); n != 1 {
			t.Errorf("%s has forgotten: %d messages pending", address, n)
		}
		f.must(server.ConfigSet(t.Context(), "min-replicas-to-write", "9").Err())
		if err := f.queue.Probe(t.Context()); err == nil || f.queue.Up() {
			t.Errorf("%s takes no writes: %v", address, err)
		}
		f.must(server.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
		f.must(f.queue.Probe(t.Context()))
		f.must(server.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	}
	found := queue.Diagnose(t.Context(), "redis-cluster://:"+testkit.GroupPassword+"@"+slices.Collect(maps.Keys(masters))[0])
	if i := slices.IndexFunc(found, func(f work.Finding) bool { return f.Name == "redis eviction" && f.Status == work.FindingFail }); i < 0 {
		t.Errorf("%+v", found)
	}
}

// A replica that takes over may lack the last messages, and has the epoch all the
// same.
func TestFailoverIsNoticed(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *testkit.RedisGroup{"sentinel": testkit.StartSentinel, "cluster": testkit.StartCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t)
			redisLosesItsMemory(t, newFixtureAt(t, g.URL))
			f := newFixtureAt(t, g.URL)
			got := make(chan queue.Notice, 1000)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go f.queue.Listen(ctx, func(n queue.Notice) { got <- n }, queue.NoticeUnit)
			f.once() // writes the epoch to the masters
			u := f.put()
			key := taskKey(u, 1)
			f.must(f.store.Queues.Defer(t.Context(), u.ID, uuid.Nil, time.Minute)) // as if it were enqueued, and the message lost
			old := g.KillMaster(key)
			_ = f.queue.Probe(t.Context())
			g.AwaitFailover(key, old)
			testkit.Eventually(t, "writes go to the new master", func() bool { return f.queue.Probe(t.Context()) == nil })
			testkit.Eventually(t, "it is enqueued again", func() bool { return f.rec.Once(t.Context()) == nil && f.pending(u) == 1 })
			testkit.Eventually(t, "a listener has come back", func() bool {
				f.must(f.queue.Changed(t.Context(), u.ID))
				select {
				case n := <-got:
					return n.Unit == u.ID
				case <-time.After(50 * time.Millisecond): // it may not listen yet
					return false
				}
			})
			alone := func(f work.Finding) bool { return f.Name == "redis replicas" && f.Status == work.FindingWarn }
			if found := queue.Diagnose(t.Context(), g.URL); slices.ContainsFunc(found,
				alone) != (name == "cluster") { // there it was the last replica
				t.Errorf("%+v", found)
			}
		})
	}
}

// Installations that share a Redis see nothing of each other, and neither takes the
// other's epoch for a Redis that has lost its memory.
func TestInstallationsShareARedis(t *testing.T) {
	t.Parallel()
	server := testkit.StartRedis(t)
	var fixtures [2]*fixture
	var units [2]work.Unit
	for i := range fixtures {
		f := newFixtureAt(t, server.URL)
		id, err := f.store.Queues.Epoch(t.Context(), uuid.NewString())
		f.must(err)
		f.queue.OfDatabase(id)
		f.must(f.rec.checkEpoch(t.Context()))
		units[i] = f.put()
		f.enqueue(units[i])
		fixtures[i] = f
	}
	for i, f := range fixtures {
		epoch, err := f.store.Queues.Epoch(t.Context(), "")
		f.must(err)
		if lack, err := f.queue.MissingEpochs(t.Context(), epoch); err != nil || len(lack) > 0 {
			t.Errorf("installation %d takes Redis for another: %v, %v", i, lack, err)
		}
	}
	first, second := fixtures[0], fixtures[1]
	taken := make(chan struct{}, 2)
	second.listen(second.queue.QueueName(work.DefaultQueue, "mock", work.DefaultPriority),
		func(*asynq.Task) { taken <- struct{}{}; <-t.Context().Done() })
	<-taken // of the two messages the first installation's is older
	if n := first.pending(units[0]); n != 1 {
		t.Errorf("%d messages of the first installation are left", n)
	}
	testkit.Eventually(t, "the message is taken", func() bool { return second.pending(units[1]) == 0 })
	if taken, err := first.queue.Active(t.Context()); err != nil || len(taken) > 0 {
		t.Errorf("the first installation sees %v taken, error %v", taken, err)
	}
}
