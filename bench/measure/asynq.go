package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

func openRedis(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return redis.NewClient(options), nil
}

type asynqTask struct {
	Number int             `json:"number"`
	Sent   int64           `json:"sent"`
	Given  json.RawMessage `json:"given"`
}

func (t asynqTask) task() *asynq.Task {
	body, err := json.Marshal(t)
	if err != nil {
		panic(err)
	}
	return asynq.NewTask("unit", body)
}

func asynqEnqueue(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	conn, err := openRedis(s.Redis)
	if err != nil {
		return childResult{}, err
	}
	c := asynq.NewClientFromRedisClient(conn)
	tasks := make([]*asynq.Task, s.Units)
	for i := range tasks {
		tasks[i] = asynqTask{Number: i, Given: payload(i)}.task()
	}
	begin()
	took, err := parallel(len(tasks), s.Callers, func(i int) error {
		_, err := c.EnqueueContext(ctx, tasks[i])
		return err
	})
	return childResult{Units: s.Units, Seconds: took.Seconds()}, err
}

// silent is a logger that says nothing.
type silent struct{ *log.Logger }

func (s silent) Debug(...any)   {}
func (s silent) Info(...any)    {}
func (s silent) Warn(...any)    {}
func (s silent) Error(...any)   {}
func (s silent) Fatal(a ...any) { s.Logger.Fatal(a...) }

func asynqServer(s childSettings, conn *redis.Client) *asynq.Server {
	return asynq.NewServerFromRedisClient(conn, asynq.Config{
		Concurrency: s.Callers, TaskCheckInterval: time.Duration(s.Interval * float64(time.Second)),
		Logger: silent{log.New(io.Discard, "", 0)}, LogLevel: asynq.FatalLevel,
	})
}

// asynqDrain does nothing but count.
func asynqDrain(_ context.Context, s childSettings, begin, started func()) (childResult, error) {
	conn, err := openRedis(s.Redis)
	if err != nil {
		return childResult{}, err
	}
	count := newCounter(s.Units, started)
	server := asynqServer(s, conn)
	begin()
	err = server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		count.add()
		return nil
	}))
	if err != nil {
		return childResult{}, err
	}
	return count.wait(), nil
}

// threeTable is what somebody makes who keeps results in Postgres.
const threeTable = `
CREATE TABLE units (number integer PRIMARY KEY, state text NOT NULL, title text NOT NULL, labels jsonb NOT NULL, payload json NOT NULL,
	result text, created_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz, finished_at timestamptz);
CREATE INDEX ON units (state, created_at DESC);
CREATE TABLE transcripts (number integer PRIMARY KEY REFERENCES units, body bytea NOT NULL);
ALTER TABLE transcripts ALTER COLUMN body SET STORAGE EXTERNAL`

// threeDrain does what is usual without a ledger that batches: a statement when
// the unit starts, one for its transcript, one when it is done.
func threeDrain(ctx context.Context, s childSettings, begin, started func()) (childResult, error) {
	conn, err := openRedis(s.Redis)
	if err != nil {
		return childResult{}, err
	}
	config, err := pgxpool.ParseConfig(s.Database)
	if err != nil {
		return childResult{}, err
	}
	config.MaxConns = int32(s.Callers)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return childResult{}, err
	}
	count := newCounter(s.Units, started)
	server := asynqServer(s, conn)
	begin()
	err = server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		var given asynqTask
		if err := json.Unmarshal(t.Payload(), &given); err != nil {
			return err
		}
		n := given.Number
		if _, err := pool.Exec(ctx, "UPDATE units SET state = 'running', started_at = now() WHERE number = $1", n); err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, "INSERT INTO transcripts (number, body) VALUES ($1, $2)", n, transcript); err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, "UPDATE units SET state = 'succeeded', result = $2, finished_at = now() WHERE number = $1", n, result(n)); err != nil {
			return err
		}
		count.add()
		return nil
	}))
	if err != nil {
		return childResult{}, err
	}
	return count.wait(), nil
}

// asynqLatency enqueues one task at a time for a server that is idle.
func asynqLatency(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	conn, err := openRedis(s.Redis)
	if err != nil {
		return childResult{}, err
	}
	c := asynq.NewClientFromRedisClient(conn)
	waited := make(chan time.Duration)
	err = asynqServer(s, conn).Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var given asynqTask
		err := json.Unmarshal(t.Payload(), &given)
		waited <- time.Duration(time.Now().UnixNano() - given.Sent)
		return err
	}))
	if err != nil {
		return childResult{}, err
	}
	begin()
	return oneByOne(s.Units, func(i int) (time.Duration, error) {
		task := asynqTask{Number: i, Given: payload(i), Sent: time.Now().UnixNano()}.task()
		if _, err := c.EnqueueContext(ctx, task); err != nil {
			return 0, err
		}
		return <-waited, nil
	})
}
