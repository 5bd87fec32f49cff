package main

import (
	"context"
	"time"
)

const (
	piecework = "Piecework"
	riverOne  = "River Insert"
	riverFast = "River InsertManyFast"
)

// post has callers post units to an API process.
func post(units, callers int) func(context.Context, *stage) (sample, error) {
	return func(ctx context.Context, s *stage) (sample, error) {
		server, err := s.startAPI()
		if err != nil {
			return sample{}, err
		}
		p, err := s.startChild(client, "http", childSettings{URL: server.url, Units: s.paced(units), Callers: callers})
		if err != nil {
			return sample{}, err
		}
		out, err := s.measureChild(ctx, p)
		out.Values = nil
		return out, err
	}
}

func acceptRow() row {
	return row{
		name: "accept", title: "Accept a unit: `POST /work-units`, 64 connections; River in the caller's process",
		subjects: []subject{
			{piecework, product, post(2000, 64)},
			{riverOne, riverTables, byChild(client, "river-insert", childSettings{Units: 4000, Callers: 64})},
			{"Asynq (not durable)", empty, byChild(client, "asynq-enqueue", childSettings{Units: 20_000, Callers: 64})},
		},
		goals: []goal{{figure: perSecond, of: piecework, to: riverOne, atLeast: 2}},
	}
}

func acceptOneRow() row {
	return row{
		name: "accept-one", title: "Accept a unit: one connection, one after the other",
		subjects: []subject{
			{piecework, product, post(400, 1)},
			{riverOne, riverTables, byChild(client, "river-insert", childSettings{Units: 1000, Callers: 1})},
		},
		goals: []goal{{figure: perSecond, of: piecework, to: riverOne, atLeast: 0.6}},
	}
}

func storeRow() row {
	return row{
		name: "store", title: "Accept a unit: the package `store`, 64 callers, with title and labels, and the message in Redis",
		subjects: []subject{
			{piecework, productPackages, byChild(client, "store", childSettings{Units: 6000, Callers: 64})},
			{riverOne, riverTables, byChild(client, "river-insert", childSettings{Units: 4000, Callers: 64})},
		},
		goals: []goal{{figure: perSecond, of: piecework, to: riverOne, atLeast: 5}},
	}
}

func bulkRow() row {
	return row{
		name: "bulk", title: "5,000 units in one call: `POST /batches` until all exist; `InsertManyFast` until committed",
		subjects: []subject{
			{piecework, product, bulk},
			{riverFast, riverTables, byChildFixed(client, "river-many", childSettings{Units: 4 * oneCall})},
		},
		goals: []goal{{figure: perSecond, of: piecework, to: riverFast, atLeast: 1.3}},
	}
}

// bulk posts a batch and waits until its units have been made.
func bulk(ctx context.Context, s *stage) (sample, error) {
	server, err := s.startAPI()
	if err != nil {
		return sample{}, err
	}
	if _, err := s.startEnumerator(); err != nil {
		return sample{}, err
	}
	units := s.units(oneCall)
	p, err := s.startChild(client, "batch", childSettings{URL: server.url, Units: units})
	if err != nil {
		return sample{}, err
	}
	a, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	if err := p.tell(); err != nil {
		return sample{}, err
	}
	answered, err := p.result()
	if err != nil {
		return sample{}, err
	}
	if err := s.poll(ctx, 5*time.Millisecond, "SELECT /* measure */ bool_and(status <> 'enumerating') FROM batches"); err != nil {
		return sample{}, err
	}
	took := time.Since(began)
	b, err := s.read(ctx)
	if err != nil {
		return sample{}, err
	}
	out := since(a, b, units, took.Seconds())
	out.Values = map[string]float64{"answered ms": answered.Seconds * 1000}
	return out, nil
}
