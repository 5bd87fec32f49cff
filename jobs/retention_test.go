package jobs

import (
	"context"
	"encoding/json"
	"flag"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

var measureRetention = flag.Bool("retention", false, "measure claims while 100,000 old units are removed")

// What a claim feels of the janitor: 300 units a second are accepted, claimed and
// finished, in turns beside a janitor that removes 100,000 units and without one.
func TestClaimsBesideTheJanitor(t *testing.T) {
	t.Parallel()
	const old, pace, turn = 100_000, 300, 15 * time.Second
	if !*measureRetention {
		t.Skip("it takes minutes: -retention")
	}
	a := newAges(t)
	a.exec(`INSERT INTO work_units (id, tenant, state, title, backend, queue, priority, prompt, payload, missing_key, timeout, idle_timeout, check_at, created_at, started_at, finished_at, run_count)
		SELECT gen_random_uuid(), 'default', 'succeeded', 'Count the words ' || n, 'mock', 'default', 5, 'Count the words', '{"text":"some"}', 'fail', 60, 60, now(), now() - interval '90 days',
			now() - interval '90 days', now() - interval '90 days' + n * interval '1 ms', 1 FROM generate_series(1, $1) AS n`, old)
	a.exec(`INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, result, rendered_prompt, started_at, completed_at)
		SELECT gen_random_uuid(), tenant, id, 1, backend, 'succeeded', repeat('word ', 100), prompt, started_at, finished_at FROM work_units`)
	a.exec(`INSERT INTO transcripts (run_id, steps, blob) SELECT id, 3, convert_to(repeat(md5(id::text), 60), 'UTF8') FROM worker_runs`)
	a.exec(`ANALYZE`)
	process := uuid.New()
	a.must(a.store.Processes.Register(t.Context(), work.Process{ID: process, Hostname: "h", Slots: 1, Queues: []string{"default"}}, time.Hour))

	live := func() []time.Duration {
		var mu sync.Mutex
		var took []time.Duration
		var units sync.WaitGroup
		ticker := time.NewTicker(time.Second / pace)
		defer ticker.Stop()
		for begun := time.Now(); time.Since(begun) < turn; <-ticker.C {
			units.Go(func() {
				d, err := a.one(process)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, d)
			})
		}
		units.Wait()
		slices.Sort(took)
		return took
	}
	p := func(took []time.Duration, share float64) time.Duration {
		return took[int(share*float64(len(took)-1))].Round(time.Millisecond / 10)
	}
	live() // the first turn warms everything
	left := func() int {
		return a.count(`SELECT count(*) FROM work_units WHERE created_at < now() - interval '80 days'`)
	}
	for left() > 0 {
		without := live()
		ctx, stop := context.WithCancel(t.Context())
		var janitor sync.WaitGroup
		janitor.Go(func() {
			(&Janitor{Store: a.store, Files: a.files, Log: slog.New(slog.DiscardHandler), Keep: Retention{Units: 24 * time.Hour}}).Run(ctx)
		})
		before := left()
		beside := live()
		stop()
		janitor.Wait()
		t.Logf("claims: p50 %s p99 %s of %d without; p50 %s p99 %s of %d beside the janitor, which removed %d units in %s",
			p(without, 0.5), p(without, 0.99), len(without), p(beside, 0.5), p(beside, 0.99), len(beside), before-left(), turn)
	}
}

// one accepts, claims and finishes a unit, and tells how long the claim took.
func (a *ages) one(process uuid.UUID) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.t.Context()), testkit.Patience)
	defer cancel()
	u, _, err := a.store.Units.Accept(ctx, store.NewUnit{Unit: work.Unit{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant,
		Title: "Count the words", Spec: work.Spec{
			Backend: "mock", Prompt: "Count the words", Payload: json.RawMessage(`{}`), Timeout: 60, IdleTimeout: 60, MissingKey: "fail",
			Queue: work.DefaultQueue, Priority: work.DefaultPriority, Labels: json.RawMessage(`{}`)}}})
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	c, err := a.store.Runs.Claim(ctx, store.Claim{UnitID: u.ID, RunID: uuid.Must(uuid.NewV7()), Process: process,
		SessionID: uuid.NewString(), Backends: []string{"mock"}})
	took := time.Since(begun)
	if err != nil || c == nil {
		return took, err
	}
	blob, err := a.store.Transcripts.Encode(nil)
	if err == nil {
		_, err = a.store.Runs.Finish(ctx, store.Finish{UnitID: u.ID, RunID: c.RunID, Attempt: c.RunCount, Status: work.RunSucceeded,
			Next: work.Succeeded, Result: "3 words", Blob: blob})
	}
	return took, err
}
