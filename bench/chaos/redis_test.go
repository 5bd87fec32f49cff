package chaos

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// pending is how many messages wait in Redis.
func (s *stage) pending() int {
	s.t.Helper()
	var id string
	s.must(s.tables.QueryRow(s.t.Context(), `SELECT left(value, 8) FROM settings WHERE name = 'redis_epoch'`).Scan(&id))
	return int(s.memory.LLen(s.t.Context(), "asynq:{default:mock@"+id+"}:pending").Val())
}

func redisFlushed(t *testing.T) {
	forgotten(t, func(s *stage) time.Time {
		s.must(s.memory.FlushAll(t.Context()).Err())
		return time.Now()
	})
}

func redisLost(t *testing.T) {
	forgotten(t, func(s *stage) time.Time {
		s.redis.Stop()
		time.Sleep(orElse(*length, 3*time.Second))
		s.redis.Start()
		return time.Now()
	})
}

// forgotten makes Redis lose the bells of very many units, whose worker
// processes are all busy, and waits until all are there again.
func forgotten(t *testing.T, lose func(*stage) time.Time) {
	const crew, slots = 3, 4
	s := newStage(t, crew, fmt.Sprintf("PIECEWORK_CONCURRENCY=%d", slots))
	s.submitMany(crew*slots, func(int) body { return mockUnit("busy", 3000) })
	s.until(time.Minute, "all slots are in use", func() bool { return s.inState("busy", "running") == crew*slots })
	n := orElse(*many, 10_000)
	s.submitMany(n, func(int) body { return mockUnit("queued", 0) })
	s.until(time.Minute, "all bells are there", func() bool { return s.pending() >= n })
	end := s.customers(4, 20*time.Millisecond)
	back := lose(s)
	s.until(time.Minute, "all bells are there again", func() bool { return s.pending() >= n })
	took := time.Since(back)
	time.Sleep(2 * time.Second)
	asked := end()
	rung := s.count(`SELECT count(*) FROM work_units WHERE labels->>'part' = 'queued' AND dispatch > 1`)
	failed := s.failures()
	s.ask(t.Context(), "POST", "/work-units/cancel?label=part:busy&all=true", nil)
	s.until(5*time.Minute, "all units have run", func() bool { return s.inState("queued", "queued", "running") == 0 })
	left := n - s.inState("queued", "succeeded")
	s.atMost("dispatched again", took, 10*time.Second)
	if left > 0 || rung < n {
		t.Errorf("%d have not succeeded, %d were dispatched again", left, rung)
	}
	s.figure("%d queued, all dispatched again %.2f s after Redis was back; %d requests meanwhile, failed %d; not succeeded in the end %d", n, took.Seconds(), asked, failed, left)
}

// redisDown takes Redis away for minutes while units of a second are to be
// done.
func redisDown(t *testing.T) {
	const crew, slots = 3, 8
	away, before := orElse(*length, 5*time.Minute), 30*time.Second
	s := newStage(t, crew, fmt.Sprintf("PIECEWORK_CONCURRENCY=%d", slots))
	// There is always more to do than can be done, or the clients would be what
	// is measured.
	const backlog = crew * slots * 10
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var submitted atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if s.inState("second", "queued") > backlog {
					time.Sleep(100 * time.Millisecond)
					continue
				}
				for range crew * slots / 4 {
					s.read(s.submit(mockUnit("second", 1)))
					submitted.Add(1)
				}
			}
		})
	}
	s.until(5*time.Minute, "there is a backlog", func() bool { return s.inState("second", "queued") > backlog/2 })
	time.Sleep(5 * time.Second)
	pace := func(from, to time.Time) float64 {
		return float64(s.count(`SELECT count(*) FROM work_units WHERE finished_at >= $1 AND finished_at < $2`, from, to)) / to.Sub(from).Seconds()
	}
	began := time.Now()
	time.Sleep(before)
	gone := time.Now()
	s.redis.Stop()
	time.Sleep(away)
	back := time.Now()
	s.redis.Start()
	time.Sleep(before)
	over := time.Now()
	stop()
	clients.Wait()
	total := int(submitted.Load())
	s.until(5*time.Minute, "all units have run", func() bool { return s.inState("second", "queued", "running") == 0 })
	normal, without, after := pace(began, gone), pace(gone, back), pace(back, over)
	failed := s.failures()
	extra := s.count(`SELECT count(*) FROM worker_runs`) - total
	left := total - s.inState("second", "succeeded")
	if without < 0.7*normal || left > 0 || extra > 0 {
		t.Errorf("%.0f %% of normal, %d not succeeded, %d runs too many", 100*without/normal, left, extra)
	}
	s.figure("%v without Redis: %d units accepted, requests failed %d; %d slots did %.1f units of 1 s a second before, %.1f meanwhile (%.0f %%), %.1f in the %v after; not succeeded %d, runs beyond need %d",
		away, total, failed, crew*slots, normal, without, 100*without/normal, after, before, left, extra)
}

// redisReadonly measures what a worker process costs while Redis answers and
// takes no writes.
func redisReadonly(t *testing.T) {
	watch := orElse(*length, 20*time.Second)
	s := newStage(t, 1, "PIECEWORK_CONCURRENCY=8")
	worker := s.of("worker")[0]
	var said []string
	look := func(what string) {
		time.Sleep(3 * time.Second) // until it has noticed
		before := cpuOf(worker.pid())
		time.Sleep(watch)
		share := 100 * (cpuOf(worker.pid()) - before).Seconds() / watch.Seconds()
		said = append(said, fmt.Sprintf("%s %.1f %%", what, share))
		if share >= 5 {
			t.Errorf("%s: %.1f %% of a core", what, share)
		}
	}
	set := func(name, value string) func() {
		return func() { s.must(s.memory.ConfigSet(t.Context(), name, value).Err()) }
	}
	modes := []struct {
		name        string
		spoil, mend func()
	}{
		{"too few replicas", set("min-replicas-to-write", "1"), set("min-replicas-to-write", "0")},
		{"out of memory", set("maxmemory", "1"), set("maxmemory", "0")},
		{"a replica", func() { s.must(s.memory.ReplicaOf(t.Context(), "127.0.0.1", "1").Err()) }, func() { s.must(s.memory.ReplicaOf(t.Context(), "NO", "ONE").Err()) }},
	}
	look("healthy and idle")
	for _, m := range modes {
		m.spoil()
		if err := s.memory.Set(t.Context(), "x", "y", 0).Err(); err == nil {
			t.Errorf("%s: writes are taken", m.name)
		}
		look(m.name + ", idle")
		m.mend()
		time.Sleep(2 * time.Second)
	}
	s.submitMany(8, func(int) body { return mockUnit("busy", 3000) })
	s.until(time.Minute, "all slots are in use", func() bool { return s.inState("busy", "running") == 8 })
	s.submitMany(1000, func(int) body { return mockUnit("queued", 0) })
	for _, m := range modes {
		m.spoil()
		look(m.name + ", 1000 queued")
		m.mend()
		time.Sleep(2 * time.Second)
	}
	s.figure("worker process, of one core over %v each: %s", watch, strings.Join(said, "; "))
}
