package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// overviewRow looks at pages and lists with many units in the ledger.
func overviewRow() row {
	return row{
		name: "overview", title: "Reads with 100,000 units that have ended: median of 20 requests, one after the other", most: 1,
		subjects: []subject{{piecework, product, overview}},
		goals:    []goal{{figure: "/ p50", of: piecework}},
	}
}

// many makes copies of the unit and the run that there are, spread over a day.
// It asks for no columns but these, so it outlives changes of the schema.
const many = `
WITH n AS (
    SELECT i, (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(i %% 4096), 3, '0') || '8' || lpad(to_hex(i), 15, '0'))::uuid AS id, at
    FROM generate_series(1, %d) AS i, LATERAL (SELECT now() - interval '1 day' * i / %[1]d AS at) AS a
), units AS (
    INSERT INTO work_units SELECT (jsonb_populate_record(u, jsonb_build_object('id', n.id, 'title', 'Summarise letter number ' || n.i || ' about ' || md5(n.i::text),
        'created_at', n.at, 'started_at', n.at + interval '5 ms', 'finished_at', n.at + interval '1 s', 'final_run', NULL))).*
    FROM work_units u, n
)
INSERT INTO worker_runs SELECT (jsonb_populate_record(r, jsonb_build_object('id', n.id, 'unit_id', n.id, 'started_at', n.at + interval '5 ms', 'completed_at', n.at + interval '1 s'))).*
FROM worker_runs r, n`

func overview(ctx context.Context, s *stage) (sample, error) {
	server, err := s.startAPI()
	if err != nil {
		return sample{}, err
	}
	w, err := s.startWorker(1)
	if err != nil {
		return sample{}, err
	}
	c, err := dial(server.url)
	if err != nil {
		return sample{}, err
	}
	if err := c.post("/work-units?wait=30s", "application/json", unitBody(0)); err != nil {
		return sample{}, err
	}
	s.drop(w)
	units := s.units(100_000)
	if _, err := s.conn.Exec(ctx, fmt.Sprintf(many, units)); err != nil {
		return sample{}, fmt.Errorf("make %d units: %w", units, err)
	}
	if _, err := s.conn.Exec(ctx, "ANALYZE"); err != nil {
		return sample{}, err
	}
	out := sample{Values: map[string]float64{}}
	for _, path := range []string{"/", "/stats", "/work-units?limit=50"} {
		times := make([]time.Duration, 0, 20)
		for i := range 21 {
			began := time.Now()
			if err := get(ctx, server.url+path); err != nil {
				return out, err
			}
			if i > 0 { // the first fills caches
				times = append(times, time.Since(began))
			}
		}
		for name, v := range quantiles(path+" ", times) {
			out.Values[name] = v
		}
	}
	return out, nil
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, answer.Status)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}
