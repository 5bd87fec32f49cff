package jobs

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, url)
	return err
}

func connect(t *testing.T, url string) *queue.Client {
	t.Helper()
	b, err := queue.Connect(url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// fixture is a store, a Redis and a reconciler between them.
type fixture struct {
	t     *testing.T
	url   string // of the database
	store *store.Store
	redis *testkit.RedisServer // nil when there are several
	queue *queue.Client
	rec   *Reconciler
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	server := testkit.StartRedis(t)
	f := newFixtureAt(t, server.URL)
	f.redis = server
	return f
}

func newFixtureAt(t *testing.T, redis string) *fixture {
	t.Helper()
	url := testkit.DB(t, migrate)
	s, err := store.Open(t.Context(), url, 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	f := &fixture{t: t, url: url, store: s, queue: connect(t, redis)}
	f.rec = &Reconciler{Store: s, Queue: f.queue, Log: slog.New(slog.DiscardHandler)}
	return f
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

func (f *fixture) exec(statement string) {
	f.t.Helper()
	testkit.Exec(f.t, f.url, statement)
}

func (f *fixture) put() work.Unit {
	f.t.Helper()
	u, _, err := f.store.Units.Accept(f.t.Context(), store.NewUnit{Unit: work.Unit{
		ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "t", Spec: work.Spec{
			Backend: "mock", Payload: json.RawMessage(`{}`), Timeout: 60, IdleTimeout: 60, MissingKey: "fail",
			Queue: work.DefaultQueue, Priority: work.DefaultPriority, Labels: json.RawMessage(`{}`),
		},
	}})
	f.must(err)
	return u
}

func (f *fixture) unit(id uuid.UUID) work.Unit {
	f.t.Helper()
	u, err := f.store.Units.Get(f.t.Context(), work.DefaultTenant, id)
	f.must(err)
	return u
}

func (f *fixture) enqueue(u work.Unit) {
	f.t.Helper()
	f.must(f.queue.Enqueue(f.t.Context(), store.MessageOf(u)))
}

func (f *fixture) once() {
	f.t.Helper()
	f.must(f.rec.Once(f.t.Context()))
}

func (f *fixture) pending(units ...work.Unit) (n int) {
	f.t.Helper()
	messages := make([]store.Message, len(units))
	for i, u := range units {
		messages[i] = store.MessageOf(f.unit(u.ID))
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

// refuseWrites makes Redis answer every write with an error.
func (f *fixture) refuseWrites(refuse bool) {
	f.t.Helper()
	replicas := "0"
	if refuse {
		replicas = "1"
	}
	f.must(f.queue.Redis().ConfigSet(f.t.Context(), "min-replicas-to-write", replicas).Err())
}

// listen starts an Asynq server that calls took for each message.
func (f *fixture) listen(queue string, took func(*asynq.Task)) {
	f.t.Helper()
	server := asynq.NewServerFromRedisClient(f.queue.Redis(), asynq.Config{
		Concurrency: 2, Queues: map[string]int{queue: 1}, TaskCheckInterval: 10 * time.Millisecond, ShutdownTimeout: time.Second,
		LogLevel: asynq.FatalLevel,
	})
	f.must(server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		took(task)
		return nil
	})))
	f.t.Cleanup(server.Shutdown)
}

func (f *fixture) inspector() *asynq.Inspector {
	return asynq.NewInspectorFromRedisClient(f.queue.Redis())
}

// taskKey is where Asynq has the message of a unit of the default queue.
func taskKey(u work.Unit, dispatch int) string {
	return "asynq:{default:mock}:t:" + queue.TaskID(u.ID, dispatch)
}
