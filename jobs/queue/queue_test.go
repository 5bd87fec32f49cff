package queue

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func connect(t *testing.T, url string) *Client {
	t.Helper()
	c, err := Connect(url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// fixture is a Redis and a connection to it.
type fixture struct {
	t     *testing.T
	redis *testkit.RedisServer // nil when there are several
	queue *Client
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	server := testkit.StartRedis(t)
	return &fixture{t: t, redis: server, queue: connect(t, server.URL)}
}

// real skips a test of what only a real server does.
func (f *fixture) real() {
	f.t.Helper()
	if !f.redis.Real() {
		f.t.Skip("no redis-server or valkey-server on PATH")
	}
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// put makes a unit as the store would. The queue needs no more of it than its ids.
func (f *fixture) put() work.Unit {
	return work.Unit{ID: uuid.Must(uuid.NewV7()), Dispatch: 1,
		Spec: work.Spec{Backend: "mock", Queue: work.DefaultQueue, Priority: work.DefaultPriority}}
}

func (f *fixture) enqueue(u work.Unit) {
	f.t.Helper()
	f.must(f.queue.Enqueue(f.t.Context(), store.MessageOf(u)))
}

func (f *fixture) pending(units ...work.Unit) (n int) {
	f.t.Helper()
	messages := make([]store.Message, len(units))
	for i, u := range units {
		messages[i] = store.MessageOf(u)
	}
	states, err := f.queue.Pending(f.t.Context(), messages)
	f.must(err)
	for _, p := range states {
		if p {
			n++
		}
	}
	return n
}

// flush removes all that Redis has.
func (f *fixture) flush() {
	f.t.Helper()
	f.must(f.queue.everyMaster(f.t.Context(), func(ctx context.Context, server redis.UniversalClient, _ string) error {
		return server.FlushAll(ctx).Err()
	}))
}

// refuseWrites makes Redis answer every write with an error.
func (f *fixture) refuseWrites(refuse bool) {
	f.t.Helper()
	replicas := "0"
	if refuse {
		replicas = "1"
	}
	f.must(f.queue.redis.ConfigSet(f.t.Context(), "min-replicas-to-write", replicas).Err())
}

func TestTaskID(t *testing.T) {
	t.Parallel()
	unit := uuid.MustParse("01234567-89ab-7cde-8f01-23456789abcd")
	if got, want := TaskID(unit, 12), "0123456789ab7cde8f0123456789abcd.12"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if a, b := TaskID(unit, 1), TaskID(unit, 2); a == b || strings.Contains(a, "-") {
		t.Errorf("%s and %s", a, b)
	}
}

func TestQueueWeights(t *testing.T) {
	t.Parallel()
	b := &Client{}
	queues := b.QueueWeights(map[string]int{"a": 1, "b": 2}, []string{"mock", "claude"})
	for queue, want := range map[string]int{"a:mock:high": 6, "a:claude": 3, "b:mock:low": 2, "b:claude:high": 12} {
		if queues[queue] != want {
			t.Errorf("queue %s weighs %d, want %d", queue, queues[queue], want)
		}
	}
	if len(queues) != 12 {
		t.Errorf("weights %v", queues)
	}
	for priority := range 10 {
		if queues[b.QueueName("a", "mock", priority)] == 0 {
			t.Errorf("nobody listens to priority %d", priority)
		}
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	server := testkit.StartRedis(t)
	b := connect(t, server.URL)
	left, leave := context.WithCancel(t.Context())
	leave()
	if err := b.Probe(left); err == nil || !b.Up() {
		t.Errorf("a caller that left: error %v, up %t", err, b.Up())
	}
	server.Stop()
	if err := b.Probe(t.Context()); err == nil || b.Up() {
		t.Errorf("stopped: error %v, up %t", err, b.Up())
	}
	server.Start()
	if err := b.Probe(t.Context()); err != nil || !b.Up() {
		t.Errorf("started again: error %v, up %t", err, b.Up())
	}
}

// A Redis that answers PING and refuses writes is away.
func TestProbeWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.real()
	f.refuseWrites(true)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go f.queue.WatchRedis(ctx)
	testkit.Eventually(t, "it counts as away", func() bool { return !f.queue.Up() })
	f.refuseWrites(false)
	testkit.Eventually(t, "it counts as there", f.queue.Up)
}
