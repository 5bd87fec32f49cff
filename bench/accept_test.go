package bench

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// callers is how many goroutines submit at once on each core.
const callers = 32

// BenchmarkAccept submits one unit of about 1 KB at a time from many callers.
// Piecework and River commit it to Postgres; Piecework also rings the bell.
// Asynq alone puts it into Redis and no further.
func BenchmarkAccept(b *testing.B) {
	payload := json.RawMessage(`{"text":"` + strings.Repeat("lorem ipsum ", 85) + `"}`)
	b.Run("piecework", func(b *testing.B) { acceptPiecework(b, payload) })
	b.Run("river", func(b *testing.B) { acceptRiver(b, payload) })
	b.Run("asynq", func(b *testing.B) { acceptAsynq(b, payload) })
}

func parallel(b *testing.B, submit func(context.Context) error) {
	b.SetParallelism(callers)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := submit(b.Context()); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "units/s")
}

func acceptPiecework(b *testing.B, payload json.RawMessage) {
	ledger, err := store.Open(b.Context(), testkit.DB(b, func(ctx context.Context, url string) error {
		_, err := store.Migrate(ctx, url)
		return err
	}), 20)
	if err != nil {
		b.Fatal(err)
	}
	defer ledger.Close()
	bell, err := jobs.Connect(testkit.Redis(b), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer bell.Close()
	spec := work.Spec{Backend: "mock", Prompt: "Summarise {text}", Payload: payload, Labels: json.RawMessage(`{}`),
		Timeout: 60, IdleTimeout: 60, MissingKey: "fail", Queue: "default", Priority: 5}
	parallel(b, func(ctx context.Context) error {
		unit, _, err := ledger.Accept(ctx, store.NewUnit{Unit: work.Unit{
			ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "Summarise lorem", Spec: spec}})
		if err != nil {
			return err
		}
		return bell.Ring(ctx, store.DispatchOf(unit))
	})
}

type riverArgs struct {
	Payload json.RawMessage `json:"payload"`
}

func (riverArgs) Kind() string { return "unit" }

func acceptRiver(b *testing.B, payload json.RawMessage) {
	pool, err := pgxpool.New(b.Context(), testkit.DB(b, nil)+"&pool_max_conns=20")
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := migrator.Migrate(b.Context(), rivermigrate.DirectionUp, nil); err != nil {
		b.Fatal(err)
	}
	client, err := river.NewClient(driver, &river.Config{})
	if err != nil {
		b.Fatal(err)
	}
	parallel(b, func(ctx context.Context) error {
		_, err := client.Insert(ctx, riverArgs{payload}, nil)
		return err
	})
}

func acceptAsynq(b *testing.B, payload json.RawMessage) {
	opts, err := redis.ParseURL(testkit.Redis(b))
	if err != nil {
		b.Fatal(err)
	}
	client := asynq.NewClientFromRedisClient(redis.NewClient(opts))
	parallel(b, func(ctx context.Context) error {
		_, err := client.EnqueueContext(ctx, asynq.NewTask("unit", payload))
		return err
	})
}
