package main

import (
	"context"
	"time"
)

// latencyRow looks at single units on a system that is idle otherwise.
func latencyRow() row {
	const river = "River"
	const asynq = "Asynq (checks every 5 ms)"
	return row{
		name: "latency", title: "One unit at a time on an idle system: from its acceptance to its start, and from `POST …?wait` to the answer",
		subjects: []subject{
			{piecework, product, latency},
			{river, riverTables, byChildFixed(worker, "river-latency", childSettings{Units: 200})},
			{asynq, empty, byChildFixed(worker, "asynq-latency", childSettings{Units: 200, Callers: 8, Interval: 0.005})},
		},
		goals: []goal{
			{figure: "start p50", of: piecework, atMost: 1},
			{figure: "start p99", of: piecework, atMost: 5},
			{figure: "answer p50", of: piecework, atMost: 10},
			{figure: "answer p99", of: piecework, atMost: 30},
			{figure: "start p50", of: piecework, to: river},
			{figure: "start p50", of: piecework, to: asynq},
		},
	}
}

func latency(ctx context.Context, s *stage) (sample, error) {
	server, err := s.startAPI()
	if err != nil {
		return sample{}, err
	}
	if _, err := s.startWorker(8); err != nil {
		return sample{}, err
	}
	time.Sleep(settle)
	p, err := s.startChild(client, "http", childSettings{URL: server.url, Units: s.units(200), Callers: 1, Pause: true, Query: "?wait=30s"})
	if err != nil {
		return sample{}, err
	}
	out, err := s.measureChild(ctx, p)
	if err != nil {
		return out, err
	}
	for name, v := range s.waits(ctx) {
		out.Values[name] = v
	}
	return out, nil
}
