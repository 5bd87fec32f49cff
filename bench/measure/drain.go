package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	eightAtOnce = "Piecework, 8 at once"
	twoWorkers  = "Piecework, two worker processes"
	three       = "Asynq and three statements"
	riverTx     = "River JobCompleteTx"
	asynqEmpty  = "Asynq, nothing done"
	bullmqEmpty = "BullMQ, nothing done"
)

func drainRow() row {
	return row{
		name: "drain", title: "Run units that wait, result and transcript stored: 64 at once (River 50), from the first that is finished to the last",
		subjects: []subject{
			{piecework, product, drainWaiting(2000, 64, 1)},
			{eightAtOnce, product, drainWaiting(1000, 8, 1)},
			{twoWorkers, product, drainWaiting(2000, 64, 2)},
			{three, empty, drainThree},
			{riverTx, riverTables, drainRiver},
			{asynqEmpty, empty, drainAsynq},
			{bullmqEmpty, empty, bullmqDrain},
		},
		goals: []goal{
			{figure: perSecond, of: piecework, to: three, atLeast: 7},
			{figure: perSecond, of: piecework, to: riverTx, atLeast: 8},
			{figure: perSecond, of: piecework, to: asynqEmpty, atLeast: 1},
			{figure: perSecond, of: eightAtOnce, to: piecework, atLeast: 0.9},
			{figure: perSecond, of: twoWorkers, to: piecework},
			{figure: perSecond, of: piecework, to: bullmqEmpty},
		},
	}
}

// drainWaiting has the API accept units while no worker process runs, and then
// starts some.
func drainWaiting(units, concurrency, processes int) func(context.Context, *stage) (sample, error) {
	return func(ctx context.Context, s *stage) (sample, error) {
		if err := s.enqueue(s.paced(units)); err != nil {
			return sample{}, err
		}
		for range processes {
			if _, err := s.startWorker(concurrency); err != nil {
				return sample{}, err
			}
		}
		out, err := s.drain(ctx)
		out.Values = nil // waits of units that were there before say nothing
		return out, err
	}
}

func drainThree(ctx context.Context, s *stage) (sample, error) {
	units := s.paced(4000)
	if _, err := s.conn.Exec(ctx, threeTable); err != nil {
		return sample{}, err
	}
	rows := make([][]any, units)
	for i := range rows {
		rows[i] = []any{int32(i), "queued", name(i, 4), labels(i), string(payload(i))}
	}
	columns := []string{"number", "state", "title", "labels", "payload"}
	if _, err := s.conn.CopyFrom(ctx, pgx.Identifier{"units"}, columns, pgx.CopyFromRows(rows)); err != nil {
		return sample{}, err
	}
	return s.enqueueAndDrain(ctx, "asynq-enqueue", "three-drain", childSettings{Units: units, Callers: 64})
}

func drainAsynq(ctx context.Context, s *stage) (sample, error) {
	return s.enqueueAndDrain(ctx, "asynq-enqueue", "asynq-drain", childSettings{Units: s.paced(15_000), Callers: 64})
}

func drainRiver(ctx context.Context, s *stage) (sample, error) {
	return s.enqueueAndDrain(ctx, "river-many", "river-drain", childSettings{Units: s.paced(4000), Callers: 64})
}

// enqueueAndDrain has one child enqueue, and measures another that drains.
func (s *stage) enqueueAndDrain(ctx context.Context, enqueue, drain string, settings childSettings) (sample, error) {
	settings.Database, settings.Redis = s.database, s.queue.URL
	p, err := s.startChild(client, enqueue, settings)
	if err != nil {
		return sample{}, err
	}
	if err := p.tell(); err != nil {
		return sample{}, err
	}
	if _, err := p.result(); err != nil {
		return sample{}, err
	}
	s.drop(p)
	if p, err = s.startChild(worker, drain, settings); err != nil {
		return sample{}, err
	}
	return s.measureFromStart(ctx, p)
}

// lifeRow measures what a unit takes from the caller to its end.
func lifeRow() row {
	return row{
		name: "life", title: "Accept and run units at the same time: 64 connections, one API process, one worker process with 64 at once",
		subjects: []subject{{piecework, product, life}},
		goals:    []goal{{figure: cpuServers, of: piecework, atMost: 450}},
	}
}

func life(ctx context.Context, s *stage) (sample, error) {
	server, err := s.startAPI()
	if err != nil {
		return sample{}, err
	}
	if _, err := s.startWorker(64); err != nil {
		return sample{}, err
	}
	units := s.paced(2000)
	p, err := s.startChild(client, "http", childSettings{URL: server.url, Units: units, Callers: 64})
	if err != nil {
		return sample{}, err
	}
	time.Sleep(settle)
	a, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	if err := p.tell(); err != nil {
		return sample{}, err
	}
	if _, err := p.result(); err != nil {
		return sample{}, err
	}
	if err := s.poll(ctx, 20*time.Millisecond, allFinished); err != nil {
		return sample{}, err
	}
	b, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	out := since(a, b, units, b.at.Sub(a.at).Seconds())
	out.Values = s.waits(ctx)
	return out, nil
}

// settle is how long a server that has just started is left alone.
const settle = time.Second
