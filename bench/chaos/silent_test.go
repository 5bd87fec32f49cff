package chaos

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// behind is the setting of a process that reaches Postgres through a link.
func (s *stage) behind(l *link) string {
	return "DATABASE_URL=postgres://piecework@" + l.addr() + "/piecework?sslmode=disable"
}

func (s *stage) link() *link {
	s.t.Helper()
	l, err := newLink(socketOf(s.postgres.URL))
	s.must(err)
	s.t.Cleanup(l.close)
	return l
}

// cutOff cuts one of two worker processes off from Postgres, not from Redis, and
// submits units: the other has free slots for all of them.
func cutOff(t *testing.T) {
	const lease, beat = 30 * time.Second, 5 * time.Second
	s := newStage(t, 0, "PIECEWORK_CONCURRENCY=8", "PIECEWORK_LEASE="+lease.String(), "PIECEWORK_HEARTBEAT="+beat.String())
	l := s.link()
	s.add("worker", s.behind(l))
	s.add("worker")
	n := orElse(*many, 98)
	l.set(func(l *link) { l.held = true })
	for range n {
		s.submit(mockUnit("unit", 0.1))
		time.Sleep(100 * time.Millisecond)
	}
	ended := func() int { return n - s.inState("unit", "queued", "running") }
	for end := time.Now().Add(2 * time.Minute); ended() < n && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	left := n - ended()
	l.set(func(l *link) { l.held = false })
	s.until(5*time.Minute, "all units have run", func() bool { return ended() == n })
	var waits []time.Duration
	for _, seconds := range list[float64](s, `SELECT extract(epoch FROM started_at - created_at)::float8 FROM work_units WHERE labels->>'part' = 'unit'`) {
		waits = append(waits, time.Duration(seconds*float64(time.Second)))
	}
	if left > 0 || s.failures() > 0 {
		t.Errorf("%d units had not ended after two minutes beside a worker process with free slots", left)
	}
	s.atMost("begun", quantile(waits, 1), 2*beat+5*time.Second)
	s.figure("one of 2 worker processes cut off from Postgres, %d units: begun p50 %.2f s, p99 %.2f s, most %.2f s; left when it came back %d",
		n, quantile(waits, 0.5).Seconds(), quantile(waits, 0.99).Seconds(), quantile(waits, 1).Seconds(), left)
}

func postgresHalfOpen(t *testing.T) {
	silent(t, func(_ *stage, l *link, on bool) { l.swallow(on) })
}

func postgresFrozen(t *testing.T) {
	silent(t, func(s *stage, _ *link, on bool) {
		if on {
			s.freezePostgres()
		} else {
			s.thawPostgres()
		}
	})
}

// silent lets Postgres say nothing any more, without closing a connection, while
// clients submit.
func silent(t *testing.T, hush func(s *stage, l *link, on bool)) {
	away, grace := orElse(*length, 40*time.Second), 2*time.Second
	s := newStage(t, 0, "PIECEWORK_CONCURRENCY=8", "PIECEWORK_GRACE="+grace.String())
	s.must(s.tables.QueryRow(t.Context(), `SHOW data_directory`).Scan(&s.data))
	for _, p := range s.doors() {
		p.end()
	}
	s.crew = nil
	l := s.link()
	s.add("api", s.behind(l))
	worker := s.add("worker", s.behind(l))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var slowest time.Duration
	asked, accepted := 0, 0
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				status, answer := s.ask(ctx, http.MethodPost, "/work-units", mockUnit("unit", 0.1))
				took := time.Since(began)
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				asked++
				slowest = max(slowest, took)
				switch status {
				case http.StatusAccepted:
					accepted++
				case 0, http.StatusServiceUnavailable:
				default:
					t.Errorf("answered with %d: %s", status, answer)
				}
				mu.Unlock()
				time.Sleep(300 * time.Millisecond)
			}
		})
	}
	ready := func() bool {
		status, _ := s.ask(t.Context(), http.MethodGet, "/readyz", nil)
		return status == http.StatusOK
	}
	s.until(time.Minute, "units are accepted", func() bool { return s.inState("unit", "succeeded") > 10 && ready() })
	hush(s, l, true)
	began := time.Now()
	s.until(away, "/readyz tells that Postgres is gone", func() bool { return !ready() })
	told := time.Since(began)
	time.Sleep(away - told)
	hush(s, l, false)
	back := time.Now()
	done := s.inState("unit", "succeeded")
	s.until(2*time.Minute, "units succeed again", func() bool { return s.inState("unit", "succeeded") > done })
	again := time.Since(back)
	stop()
	clients.Wait()
	s.atMost("slowest answer", slowest, answerLimit+answerMargin)
	s.atMost("/readyz tells", told, answerLimit+answerMargin)
	s.atMost("units succeed again", again, answerLimit+answerMargin)
	hush(s, l, true)
	time.Sleep(2 * time.Second)
	asking := time.Now()
	worker.quit()
	worker.awaitEnd(2 * time.Minute)
	ended := time.Since(asking)
	s.atMost("SIGTERM ends the worker process", ended, grace+10*time.Second+answerMargin)
	hush(s, l, false)
	s.figure("Postgres silent for %v: %d requests, %d accepted, the slowest answer after %.1f s; /readyz told after %.1f s; units succeeded again %.1f s after it was back; SIGTERM meanwhile ended the worker process in %.1f s",
		away, asked, accepted, slowest.Seconds(), told.Seconds(), again.Seconds(), ended.Seconds())
}

// clockStep sets the clock of Postgres's machine an hour on and back while units
// run.
func clockStep(t *testing.T) {
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	postgres, err := exec.LookPath("postgres")
	if err != nil {
		some, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
		if len(some) > 0 {
			postgres = some[len(some)-1]
		}
	}
	if len(found) == 0 || postgres == "" {
		t.Skip("SKIPPED: no libfaketime (apt install libfaketime), or no postgres")
	}
	programs, err := os.MkdirTemp("", "pw-clock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(programs) })
	_ = os.Chmod(programs, 0o755)
	step := filepath.Join(programs, "step")
	set := func(text string) {
		if err := os.WriteFile(step, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set("+0s")
	all, _ := filepath.Glob(filepath.Join(filepath.Dir(postgres), "*"))
	for _, program := range all {
		script := fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\"\n", program)
		if filepath.Base(program) == "postgres" {
			script = fmt.Sprintf("#!/bin/sh\nexport LD_PRELOAD='%s' FAKETIME_TIMESTAMP_FILE='%s' FAKETIME_NO_CACHE=1 DONT_FAKE_MONOTONIC=1\nexec '%s' \"$@\"\n", found[0], step, program)
		}
		if err := os.WriteFile(filepath.Join(programs, filepath.Base(program)), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PG_BIN", programs)
	const slots = 5
	s := newStage(t, 2, fmt.Sprintf("PIECEWORK_CONCURRENCY=%d", slots))
	s.submitMany(2*slots, func(int) body { return mockUnit("long", orElse(*length, 40*time.Second).Seconds()) })
	s.until(time.Minute, "all units run", func() bool { return s.inState("long", "running") == 2*slots })
	var steps []string
	for _, by := range []string{"+3600s", "+0s", "-3600s", "+0s"} {
		set(by)
		steps = append(steps, by)
		time.Sleep(5 * time.Second)
	}
	s.until(5*time.Minute, "all units have ended", func() bool { return s.inState("long", "queued", "running") == 0 })
	runs := s.count(`SELECT count(*) FROM worker_runs`)
	lost := s.count(`SELECT count(*) FROM worker_runs WHERE status <> 'succeeded'`)
	if runs != 2*slots || lost > 0 {
		t.Errorf("%d runs of %d units, %d of them did not succeed", runs, 2*slots, lost)
	}
	s.figure("the clock of Postgres stepped to %s while %d units ran: %d runs, %d lost", strings.Join(steps, ", "), 2*slots, runs, lost)
}
