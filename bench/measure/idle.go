package main

import (
	"context"
	"time"
)

// idleRow counts what processes ask when nothing happens.
func idleRow() row {
	return row{
		name: "idle", title: "At rest: one API process and two worker processes, 30 s", most: 1,
		subjects: []subject{{piecework, product, idle}},
		goals: []goal{
			{figure: "statements/s", of: piecework, atMost: 10},
			{figure: "Redis commands/s", of: piecework, atMost: 20},
		},
	}
}

func idle(ctx context.Context, s *stage) (sample, error) {
	if _, err := s.startAPI(); err != nil {
		return sample{}, err
	}
	for range 2 {
		if _, err := s.startWorker(8); err != nil {
			return sample{}, err
		}
	}
	pause(ctx, 5*time.Second)
	a, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	pause(ctx, time.Duration(max(0.2, min(1, s.scale))*float64(30*time.Second)))
	b, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	seconds := b.at.Sub(a.at).Seconds()
	out := sample{Values: map[string]float64{
		"Redis commands/s": float64(b.commands-a.commands) / seconds,
		"WAL bytes/s":      float64(b.wal-a.wal) / seconds,
	}}
	if s.counted {
		out.Values["statements/s"] = float64(b.statements-a.statements) / seconds
	}
	for _, role := range roles[1:] {
		out.Values["CPU ms/s "+role] = (b.cpu[role] - a.cpu[role]).Seconds() * 1000 / seconds
	}
	return out, nil
}

// pause ends early when the program is interrupted.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// limitsRow is what the servers do for a program that asks for nothing else.
func limitsRow() row {
	plain := func(job string, settings childSettings) func(context.Context, *stage) (sample, error) {
		return func(ctx context.Context, s *stage) (sample, error) {
			if _, err := s.conn.Exec(ctx, plainTable); err != nil {
				return sample{}, err
			}
			return byChildFixed(client, job, settings)(ctx, s)
		}
	}
	return row{
		name: "limits", title: "Limits of the servers: rows of 1 KB with one key; commands of Redis sixteen at a time", most: 3,
		subjects: []subject{
			{"INSERT, 64 connections", empty, plain("plain-insert", childSettings{Units: 15_000, Callers: 64})},
			{"COPY, one connection", empty, plain("copy", childSettings{Units: 50_000})},
			{"Redis PING, 16 callers", empty, byChildFixed(client, "redis-ping", childSettings{Units: 300_000, Callers: 16})},
			{"Redis EVALSHA, 16 callers", empty, byChildFixed(client, "redis-evalsha", childSettings{Units: 80_000, Callers: 16})},
		},
	}
}
