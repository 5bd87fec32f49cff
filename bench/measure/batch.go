package main

import (
	"context"
	"time"
)

// batchRow compares batches that differ in what they watch over.
func batchRow() row {
	const plain, budget, stop = "no limit", "max_cost_usd", "stop_when"
	return row{
		name: "batch", title: "Run a batch of 6,000 units with one worker process of 64 at once, 20 s at most", most: 1,
		subjects: []subject{
			{plain, product, runBatch(`{"batch":{"title":"plain"}}`)},
			{budget, product, runBatch(`{"batch":{"title":"budget","max_cost_usd":1000}}`)},
			{stop, product, runBatch(`{"batch":{"title":"stop","stop_when":{"failure_rate":0.5,"window":100}}}`)},
		},
		goals: []goal{
			{figure: perSecond, of: budget, to: plain, atLeast: 0.9},
			{figure: perSecond, of: stop, to: plain, atLeast: 0.9},
		},
	}
}

func runBatch(head string) func(context.Context, *stage) (sample, error) {
	return func(ctx context.Context, s *stage) (sample, error) {
		server, err := s.startAPI()
		if err != nil {
			return sample{}, err
		}
		if _, err := s.startWorker(64); err != nil {
			return sample{}, err
		}
		p, err := s.startChild(client, "batch", childSettings{URL: server.url, Units: s.units(6000), Query: head})
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
		if err := s.poll(ctx, 10*time.Millisecond, someFinished); err != nil {
			return sample{}, err
		}
		a, err := s.read(ctx)
		if err != nil {
			return sample{}, err
		}
		if err := s.poll(ctx, 100*time.Millisecond, allFinished+" OR now() > (SELECT min(finished_at) + interval '20 seconds' FROM work_units)"); err != nil {
			return sample{}, err
		}
		b, err := s.read(ctx)
		if err != nil {
			return sample{}, err
		}
		var units int
		var seconds float64
		if err := s.conn.QueryRow(ctx, `SELECT /* measure */ count(*), extract(epoch FROM max(finished_at) - min(finished_at))::float8
			FROM work_units WHERE finished_at IS NOT NULL`).Scan(&units, &seconds); err != nil {
			return sample{}, err
		}
		return since(a, b, units-1, seconds), nil
	}
}
