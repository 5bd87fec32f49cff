package chaos

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// scheduled submits very many units for one second.
func scheduled(t *testing.T) {
	const crew, slots = 2, 16
	s := newStage(t, crew, fmt.Sprintf("PIECEWORK_CONCURRENCY=%d", slots))
	n := orElse(*many, 100_000)

	// What this machine does when all are due at once, with as many as takes a
	// while.
	sample := max(n/10, 1000)
	hold := time.Now().Add(time.Duration(sample) * 3 * time.Millisecond).Add(5 * time.Second)
	took := s.submitMany(sample, func(int) body { return mockUnit("sample", 0).with("not_before", hold) })
	time.Sleep(time.Until(hold))
	s.until(10*time.Minute, "the sample has run", func() bool { return s.inState("sample", "queued", "running") == 0 })
	rate := float64(sample) / s.span("sample")

	base := s.sizes()
	second := time.Now().Add(time.Duration(1.3 * float64(took) * float64(n) / float64(sample))).Add(15 * time.Second).Truncate(time.Second)
	took = s.submitMany(n, func(int) body { return mockUnit("due", 0).with("not_before", second) })
	if time.Now().After(second) {
		t.Fatalf("to submit %d units took %v, too long for this scenario", n, took)
	}
	loaded := s.sizes()
	late := list[string](s, `SELECT id::text FROM work_units WHERE tenant = 'default' ORDER BY id DESC LIMIT 1`)[0]
	early := n - s.inState("due", "queued")
	scans := s.scans()
	time.Sleep(time.Until(second))
	peak := loaded
	var slowest time.Duration
	var bells int
	for s.count(`SELECT count(*) FROM (SELECT FROM work_units WHERE tenant = 'default' AND state IN ('queued', 'running') LIMIT 1) AS unfinished`) > 0 {
		peak = peak.most(s.sizes())
		bells = max(bells, s.pending())
		asked := time.Now()
		status, answer := s.ask(t.Context(), http.MethodGet, "/work-units/"+late+"/explain", nil)
		s.note(status, http.StatusOK, answer)
		slowest = max(slowest, time.Since(asked))
		if time.Since(second) > 30*time.Minute {
			t.Fatal("not all have run")
		}
		time.Sleep(time.Second)
	}
	scans = s.scans() - scans
	early += s.count(`SELECT count(*) FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE u.labels->>'part' = 'due' AND r.started_at < u.not_before`)
	left := n - s.inState("due", "succeeded")
	span := s.span("due")
	if s.failures(); early+left > 0 {
		t.Errorf("%d started early, %d have not succeeded", early, left)
	}
	if allowed := 1.25*float64(n)/rate + 5; span > allowed {
		t.Errorf("the last started after %.0f s, the rate allows %.0f s", span, allowed)
	}
	if slowest > time.Second {
		t.Errorf("explain took %v", slowest)
	}
	if peak.api > base.api+100 || peak.worker > base.worker+100 {
		t.Errorf("memory has grown: %v, before %v", peak, base)
	}
	s.figure("%d units for one second (submitted in %.0f s, %.0f a second): early %d, the last started %.1f s after it; %.0f a second, %.0f in a sample of %d; memory %v, with all submitted %v, most %v; most bells in Redis %d; explain at most %d ms; whole-table reads of work_units %d; not succeeded %d",
		n, took.Seconds(), float64(n)/took.Seconds(), early, span, float64(n)/span, rate, sample, base, loaded, peak, bells, slowest.Milliseconds(), scans, left)
}

// span is the seconds from when the units of a part were due to the start of
// the last.
func (s *stage) span(part string) (seconds float64) {
	s.must(s.tables.QueryRow(s.t.Context(), `SELECT extract(epoch FROM max(started_at) - min(not_before))::float8 FROM work_units WHERE labels->>'part' = $1`, part).Scan(&seconds))
	return seconds
}

// scans is how often the table of units was read as a whole.
func (s *stage) scans() int {
	return s.count(`SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables WHERE relname = 'work_units'`)
}

// sizes is the memory of the largest process of a kind, and of Redis, in MB.
type sizes struct{ api, worker, redis int }

func (s *stage) sizes() (z sizes) {
	for _, p := range s.crew {
		if p.command == "api" {
			z.api = max(z.api, residentMB(p.pid()))
		} else {
			z.worker = max(z.worker, residentMB(p.pid()))
		}
	}
	info, _ := s.memory.Info(s.t.Context(), "memory").Result()
	if _, after, ok := strings.Cut(info, "used_memory:"); ok {
		var bytes int
		_, _ = fmt.Sscan(after, &bytes)
		z.redis = bytes >> 20
	}
	return z
}

func (z sizes) most(o sizes) sizes {
	return sizes{max(z.api, o.api), max(z.worker, o.worker), max(z.redis, o.redis)}
}

func (z sizes) String() string {
	return fmt.Sprintf("api %d worker %d redis %d MB", z.api, z.worker, z.redis)
}

func idIn(answer []byte) string {
	var unit struct{ ID string }
	_ = json.Unmarshal(answer, &unit)
	return unit.ID
}
