package chaos

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func workerKilled(t *testing.T) {
	redelivery(t, 30*time.Second, 5*time.Second, processDied, 20*time.Second, 35*time.Second)
}

func workerKilledShortLease(t *testing.T) {
	redelivery(t, 3*time.Second, 700*time.Millisecond, processDied, 5*time.Second, 5*time.Second)
}

func containerKilled(t *testing.T) {
	redelivery(t, 30*time.Second, 5*time.Second, containerDied, 20*time.Second, 35*time.Second)
}

func machineLost(t *testing.T) {
	redelivery(t, 30*time.Second, 5*time.Second, machineDied, 35*time.Second, 35*time.Second)
}

func machineLostShortLease(t *testing.T) {
	redelivery(t, 3*time.Second, 700*time.Millisecond, machineDied, 5*time.Second, 5*time.Second)
}

// death is how a worker process ends.
type death int

const (
	processDied   death = iota // its neighbours can see it
	containerDied              // they cannot; it is started again at once, on the same data
	machineDied                // nobody can see it
)

// redelivery kills worker processes, one after the other, and measures when
// their units run again.
func redelivery(t *testing.T, lease, beat time.Duration, died death, half, most time.Duration) {
	const crew, slots = 3, 60
	s := newStage(t, crew, fmt.Sprintf("PIECEWORK_CONCURRENCY=%d", slots), "PIECEWORK_LEASE="+lease.String(), "PIECEWORK_HEARTBEAT="+beat.String())
	hits, atOnce := orElse(*many, 100), 10
	if died == machineDied && lease > 10*time.Second {
		atOnce = 25 // each takes a lease
	}
	var waits []time.Duration
	kills := 0
	for ; len(waits) < hits; kills++ {
		part := strconv.Itoa(kills)
		s.submitMany(crew*atOnce, func(int) body { return mockUnit(part, 600) })
		s.until(time.Minute, "all units run", func() bool { return s.inState(part, "running") == crew*atOnce })
		time.Sleep(time.Duration(rand.Float64() * float64(beat))) // anywhere between two beats
		victim := s.crew[apis+rand.IntN(crew)]
		pid := victim.pid()
		if died != processDied { // the ledger believes that it was elsewhere
			_, err := s.tables.Exec(t.Context(), `UPDATE worker_processes SET identity = 'another/machine ' || identity WHERE pid = $1`, pid)
			s.must(err)
		}
		killed := time.Now()
		if died == containerDied {
			victim.signal(syscall.SIGKILL, 0)
		} else {
			victim.end()
		}
		const open = ` FROM worker_runs r JOIN worker_processes p ON p.id = r.worker_process JOIN work_units u ON u.id = r.unit_id
			WHERE p.pid = $1 AND p.started_at < $2 AND u.labels->>'part' = $3`
		s.until(2*lease+time.Minute, "every unit of the killed worker process runs again", func() bool {
			return s.count(`SELECT count(*)`+open+` AND NOT EXISTS (SELECT FROM worker_runs n WHERE n.unit_id = r.unit_id AND n.attempt = r.attempt + 1)`, pid, killed, part) == 0
		})
		for _, at := range list[time.Time](s, `SELECT n.started_at FROM worker_runs n WHERE (n.unit_id, n.attempt - 1) IN (SELECT r.unit_id, r.attempt`+open+`)`, pid, killed, part) {
			waits = append(waits, at.Sub(killed))
		}
		status, answer := s.ask(t.Context(), http.MethodPost, "/work-units/cancel?all=true", nil)
		if status >= 300 {
			t.Fatalf("cancel: %d %s", status, answer)
		}
		if died == containerDied {
			s.must(victim.awaitReady(t.Context(), time.Minute))
		} else {
			s.crew = append(s.crew[:apis:apis], s.of("worker")...)
			for i, p := range s.crew {
				if p == victim {
					s.crew = append(s.crew[:i:i], s.crew[i+1:]...)
					break
				}
			}
			s.add("worker")
		}
		s.until(time.Minute, "all units are cancelled", func() bool { return s.inState(part, "running", "queued") == 0 })
	}
	p50, p99 := quantile(waits, 0.5), quantile(waits, 0.99)
	s.atMost("p50", p50, half)
	s.atMost("p99", p99, most)
	s.figure("lease %v, beat %v: %d kills, n %d, run again after p50 %.2f s, p99 %.2f s, most %.2f s",
		lease, beat, kills, len(waits), p50.Seconds(), p99.Seconds(), quantile(waits, 1).Seconds())
}

// rollingRestart asks one worker process after the other to end while agents
// work that take longer than a shutdown may.
func rollingRestart(t *testing.T) {
	const crew, slots = 3, 6
	work := orElse(*length, time.Minute)
	s := newStage(t, 0, fmt.Sprintf("PIECEWORK_CONCURRENCY=%d", slots), "PIECEWORK_GRACE=2s")
	for range crew { // on one machine they have one data directory, and so an agent's session
		s.add("worker", "PIECEWORK_DATA="+filepath.Join(s.plan.Out, "shared"))
	}
	n := orElse(*many, crew*slots)
	for range n {
		// A resumed agent is told to go on; then it does what it has kept.
		s.submit(body{"backend": "claude", "labels": map[string]string{"part": "agent"}, "timeout": "1h",
			"prompt": strings.NewReplacer("AGAIN", "next", "WORK", work.String()).Replace(
				"@@ AGAIN init\n@@ AGAIN text goes on\n@@ AGAIN spawn\n@@ AGAIN sleep WORK\n@@ AGAIN result done\n" +
					"@@ init\n@@ text at work\n@@ spawn\n@@ daemon\n@@ sleep WORK\n@@ result done")})
	}
	s.until(time.Minute, "all agents are at work", func() bool {
		return s.count(`SELECT count(*) FROM worker_runs WHERE status = 'running' AND live_status IS NOT NULL`) == min(n, crew*slots)
	})
	began := time.Now()
	var slowest time.Duration
	for _, p := range s.of("worker") {
		asked, pid := time.Now(), p.signal(syscall.SIGTERM, 0)
		s.until(time.Minute, p.name+" ends", func() bool { return p.pid() != pid })
		slowest = max(slowest, time.Since(asked))
		s.must(p.awaitReady(t.Context(), time.Minute))
	}
	rolled := time.Since(began)
	s.until(10*work+5*time.Minute, "all agents are done", func() bool { return s.inState("agent", "queued", "running") == 0 })
	s.agents.report(s.book)
	crowded := 0
	for _, e := range s.book.all() {
		if e.Kind == KindAgent && e.Crowded {
			crowded++
		}
	}
	failed := n - s.inState("agent", "succeeded")
	retries := s.count(`SELECT coalesce(sum(failures), 0) FROM work_units`)
	released := s.count(`SELECT count(*) FROM worker_runs WHERE status = 'released'`)
	other := s.count(`SELECT count(*) FROM worker_runs WHERE status NOT IN ('released', 'succeeded')`)
	resumed := s.count(`SELECT count(*) FROM worker_runs r JOIN worker_runs n ON n.unit_id = r.unit_id AND n.attempt = r.attempt + 1
		WHERE r.status = 'released' AND n.session_id = r.session_id`)
	kept := s.count(`SELECT count(*) FROM worker_runs r JOIN transcripts t ON t.run_id = r.id WHERE r.status = 'released' AND t.steps > 0`)
	if failed+retries+crowded+other > 0 || released == 0 || resumed != released || kept != released {
		t.Error("the restart was noticed")
	}
	s.figure("%d agents of %v, restarted in %.1f s (slowest end %.1f s): failed %d, retries used %d, beside a live tree %d, runs cut off %d, sessions resumed %d, transcripts kept %d, other ends %d",
		n, work, rolled.Seconds(), slowest.Seconds(), failed, retries, crowded, released, resumed, kept, other)
}

// poison lets a unit kill every worker process that runs it.
func poison(t *testing.T) {
	s := newStage(t, 0, "PIECEWORK_CONCURRENCY=8")
	// The supervisor's pid namespace hides the worker process from its agents, so
	// the killing is done from outside, for the agent that asks for it.
	victims := filepath.Join(s.plan.Out, "victims")
	s.must(os.Mkdir(victims, 0o777))
	program := filepath.Join(s.plan.Out, "poisonous")
	syscall.ForkLock.RLock()
	err := os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\ncase \"$*\" in *poison*) echo \"$PIECEWORK_MARK\" > '%s'/$$.$(date +%%N).new; sleep 600;; esac\nexec '%s' \"$@\"\n", victims, s.claude), 0o755)
	syscall.ForkLock.RUnlock()
	s.must(err)
	s.claude = program
	for range workers {
		s.add("worker")
	}
	others := orElse(*many, 50)
	s.submit(body{"backend": "claude", "model": "poison", "prompt": "x", "labels": map[string]string{"part": "poison"}})
	s.submitMany(others, func(i int) body {
		if i%5 == 0 {
			return body{"backend": "claude", "prompt": "@@ init\n@@ text a\n@@ sleep 3s\n@@ result b", "labels": map[string]string{"part": "other"}}
		}
		return mockUnit("other", 4)
	})
	began, kills, done := time.Now(), 0, map[string]bool{}
	s.until(5*time.Minute, "every unit has ended", func() bool {
		files, _ := filepath.Glob(victims + "/*.new")
		for _, file := range files {
			text, _ := os.ReadFile(file)
			mark := strings.TrimSpace(string(text))
			number, _, _ := strings.Cut(mark[strings.LastIndexByte(mark, '@')+1:], "-")
			if pid, err := strconv.Atoi(number); err == nil && !done[file] {
				done[file] = true
				kills++
				for _, p := range s.of("worker") {
					if p.pid() == pid {
						p.signal(syscall.SIGKILL, 0)
					}
				}
			}
		}
		return s.inState("poison", "queued", "running")+s.inState("other", "queued", "running") == 0
	})
	poisoned := list[string](s, `SELECT state || '/' || coalesce(error_class, '') || '/' || run_count FROM work_units WHERE labels->>'part' = 'poison'`)
	harmed := others - s.inState("other", "succeeded")
	retries := s.count(`SELECT coalesce(sum(failures), 0) FROM work_units WHERE labels->>'part' = 'other'`)
	losses := s.count(`SELECT coalesce(sum(losses), 0) FROM work_units WHERE labels->>'part' = 'other'`)
	alone := s.count(`SELECT count(*) FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE u.labels->>'part' = 'poison' AND r.attempt = 3
		AND NOT EXISTS (SELECT FROM worker_runs o WHERE o.worker_process = r.worker_process AND o.id <> r.id AND o.started_at < r.completed_at AND o.completed_at > r.started_at)`)
	if len(poisoned) != 1 || poisoned[0] != "failed/crash/3" || kills != 3 || harmed+retries > 0 || alone != 1 {
		t.Error("the poison was not contained")
	}
	s.figure("the unit %v after %d worker processes died, its third run alone: %t; of %d others %d not succeeded, retries used %d, runs lost with it %d; all ended in %.1f s",
		poisoned, kills, alone == 1, others, harmed, retries, losses, time.Since(began).Seconds())
}
