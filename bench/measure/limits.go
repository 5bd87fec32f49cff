package main

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// What the servers can do at most, whoever asks.

const plainTable = `CREATE TABLE plain (id uuid PRIMARY KEY, payload json NOT NULL)`

func plainInsert(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	config, err := pgxpool.ParseConfig(s.Database)
	if err != nil {
		return childResult{}, err
	}
	config.MaxConns, config.MinConns = int32(s.Callers), int32(s.Callers)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return childResult{}, err
	}
	given := payload(1)
	begin()
	took, err := parallel(s.Units, s.Callers, func(int) error {
		_, err := pool.Exec(ctx, "INSERT INTO plain (id, payload) VALUES ($1, $2)", uuid.Must(uuid.NewV7()), given)
		return err
	})
	return childResult{Units: s.Units, Seconds: took.Seconds()}, err
}

func copyRows(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	conn, err := pgx.Connect(ctx, s.Database)
	if err != nil {
		return childResult{}, err
	}
	given := payload(1)
	begin()
	began := time.Now()
	const piece = 1000
	for range s.Units / piece {
		_, err := conn.CopyFrom(ctx, pgx.Identifier{"plain"}, []string{"id", "payload"}, pgx.CopyFromSlice(piece, func(int) ([]any, error) {
			return []any{uuid.Must(uuid.NewV7()), given}, nil
		}))
		if err != nil {
			return childResult{}, err
		}
	}
	return childResult{Units: s.Units / piece * piece, Seconds: time.Since(began).Seconds()}, nil
}

// depth is how many commands are sent before an answer is waited for.
const depth = 16

func redisPing(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	return redisCommands(ctx, s, begin, func(p redis.Pipeliner) { p.Ping(ctx) })
}

// redisEvalsha runs a script that writes as much as one that enqueues a task.
func redisEvalsha(ctx context.Context, s childSettings, begin, _ func()) (childResult, error) {
	conn, err := openRedis(s.Redis)
	if err != nil {
		return childResult{}, err
	}
	sha, err := conn.ScriptLoad(ctx, `redis.call("HSET", KEYS[1], "msg", ARGV[1], "state", "pending") redis.call("LPUSH", KEYS[2], ARGV[2]) return 1`).Result()
	if err != nil {
		return childResult{}, err
	}
	given := string(payload(1))
	return redisCommands(ctx, s, begin, func(p redis.Pipeliner) {
		id := uuid.NewString()
		p.EvalSha(ctx, sha, []string{"limit:" + id, "limits"}, given, id)
	})
}

func redisCommands(ctx context.Context, s childSettings, begin func(), add func(redis.Pipeliner)) (childResult, error) {
	conn, err := openRedis(s.Redis)
	if err != nil {
		return childResult{}, err
	}
	begin()
	took, err := parallel(s.Units/depth, s.Callers, func(int) error {
		p := conn.Pipeline()
		for range depth {
			add(p)
		}
		_, err := p.Exec(ctx)
		return err
	})
	return childResult{Units: s.Units / depth * depth, Seconds: took.Seconds()}, err
}
