package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// admitted counts the units of a batch that may begin or have begun.
func (l *fixture) admitted(batch uuid.UUID) int {
	return get[int](l, `SELECT count(*) FROM work_units WHERE batch_id = $1 AND NOT held AND state IN ('queued', 'running', 'waiting')`, batch)
}

// runsToItsEnd advances a batch and works off what it admits, until it is over
// or admits nothing more. It returns how many were admitted at once, at most.
func (l *fixture) runsToItsEnd(batch uuid.UUID, fail func(int) bool, cost float64) (most int) {
	l.t.Helper()
	for {
		a := l.advance(batch)
		most = max(most, l.admitted(batch))
		if len(a.Messages) == 0 && !a.More {
			return most
		}
		l.works(a.Messages, fail, cost)
	}
}

// Retried units go through the window and the budget of their batch, however
// they are retried, and whether the batch was over or not.
func TestRetriedUnitsAreAdmittedByTheirBatch(t *testing.T) {
	t.Parallel()
	for name, retry := range map[string]func(*fixture, uuid.UUID){
		"batch": func(l *fixture, id uuid.UUID) {
			moved, more, err := l.Batches.Retry(t.Context(), work.DefaultTenant, id, nil)
			if l.must(err); len(moved) != 20 || more || !moved[0].Held || *moved[0].BatchID != id {
				t.Errorf("%d units were retried, others left: %t", len(moved), more)
			}
		},
		"filter": func(l *fixture, _ uuid.UUID) {
			_, _, err := l.Units.RetryAll(t.Context(), UnitFilter{Tenant: work.DefaultTenant, States: []work.State{work.Failed}}, Changes{})
			l.must(err)
		},
		"one by one": func(l *fixture, id uuid.UUID) {
			units, _, err := l.Units.List(t.Context(), UnitFilter{Tenant: work.DefaultTenant, Batch: id})
			l.must(err)
			for _, u := range units {
				u, err := l.Units.Retry(t.Context(), work.DefaultTenant, u.ID, Changes{})
				if l.must(err); !u.Held || u.State != work.Queued {
					t.Errorf("after the retry it is %s, held %t", u.State, u.Held)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newFixture(t)
			budget := 1.0
			id := l.batch(20, func(b *NewBatch) { b.Concurrency, b.MaxCostUSD = 2, &budget })
			l.runsToItsEnd(id, func(int) bool { return true }, 0.02)
			l.is(id, work.BatchCompletedWithFailures) // $0.40 are spent
			retry(l, id)
			l.is(id, work.BatchInProgress)
			if n := l.admitted(id); n != 0 {
				t.Errorf("%d units were admitted by the retry itself", n)
			}
			if most := l.runsToItsEnd(id, nil, 0.1); most != 2 {
				t.Errorf("%d units were admitted at once; the batch has a concurrency of 2", most)
			}
			b := l.is(id, work.BatchInProgress)
			if b.Paused == nil || b.Paused.By != work.BySystem || b.Counts.Known() > budget+0.2 || b.Counts.Queued == 0 {
				t.Errorf("$%.2f of $%.2f are spent, %d units left, paused %+v", b.Counts.Known(), budget, b.Counts.Queued, b.Paused)
			}
		})
	}
}

// A unit of the test that is retried is tested again before a person is asked.
func TestRetryOfATestedUnit(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(10, func(b *NewBatch) { b.TestFirst = 3 })
	retryOne := func() uuid.UUID {
		t.Helper()
		moved, _, err := l.Batches.Retry(t.Context(), work.DefaultTenant, id, []work.State{work.Failed})
		if l.must(err); len(moved) != 1 {
			t.Fatalf("%d units were retried", len(moved))
		}
		return moved[0].UnitID
	}
	l.works(l.advance(id).Messages, func(i int) bool { return i == 1 }, 0)
	l.advance(id)
	l.is(id, work.BatchAwaitingApproval)
	unit := retryOne()
	l.is(id, work.BatchTesting)
	bells := l.advance(id).Messages
	if len(bells) != 1 || bells[0].UnitID != unit {
		t.Fatalf("%d units were admitted; want the one that was retried", len(bells))
	}
	l.works(bells, func(int) bool { return true }, 0)
	l.advance(id)
	l.is(id, work.BatchAwaitingApproval)
	// Nobody has approved the batch: after a cancel and a retry its test goes on.
	_, err := l.Batches.Cancel(t.Context(), work.DefaultTenant, id, "")
	l.must(err)
	for l.advance(id).More {
	}
	l.is(id, work.BatchCancelled)
	_, _, err = l.Batches.Retry(t.Context(), work.DefaultTenant, id, nil)
	l.must(err)
	l.runsToItsEnd(id, nil, 0)
	if b := l.is(id, work.BatchAwaitingApproval); b.Counts.Succeeded != 3 {
		t.Errorf("%d units ran without approval", b.Counts.Succeeded)
	}
	_, err = l.Batches.Approve(t.Context(), work.DefaultTenant, id, BatchChanges{})
	l.must(err)
	l.runsToItsEnd(id, nil, 0)
	l.is(id, work.BatchCompleted)
}

// A retry that commits while its batch ends is not lost.
func TestRetryWhileTheBatchEnds(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(1)
	l.works(l.advance(id).Messages, func(int) bool { return true }, 0)
	tx, err := l.db.BeginTxx(t.Context(), nil) // it ends the batch
	l.must(err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), `UPDATE batches SET status = 'completed_with_failures', finished_at = clock_timestamp(), counts = '{}' WHERE id = $1`, id)
	l.must(err)
	done := make(chan error, 1)
	go func() { _, _, err := l.Batches.Retry(t.Context(), work.DefaultTenant, id, nil); done <- err }()
	testkit.Eventually(t, "the retry waits for the batch", func() bool { return l.waiting() > 0 })
	l.must(tx.Commit())
	l.must(<-done)
	l.is(id, work.BatchInProgress)
	l.runsToItsEnd(id, nil, 0)
	l.is(id, work.BatchCompleted)
}

// Units of a batch that is about to end are not retried, and say why.
func TestRetryInABatchThatEnds(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(2, func(b *NewBatch) { b.Synthesis = json.RawMessage(`{"despite_failures":true}`) })
	bells := l.advance(id).Messages
	l.works(bells, func(i int) bool { return i == 0 }, 0)
	l.advance(id)
	l.is(id, work.BatchFinalizing)
	if _, err := l.Units.Retry(t.Context(), work.DefaultTenant, bells[0].UnitID, Changes{}); !errors.Is(err, work.ErrConflict) ||
		!strings.Contains(err.Error(), "about to end") {
		t.Errorf("while it is finalizing: %v", err)
	}
	if moved, more, err := l.Batches.Retry(t.Context(), work.DefaultTenant, id, nil); err != nil || len(moved) != 0 || more {
		t.Errorf("%d units were retried, others left: %t, %v", len(moved), more, err)
	}
}

// What a batch's own pause has taken back does not begin, nor does a unit that
// fails meanwhile and would be run again.
func TestPausedBatchRepeatsNoRun(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(2)
	c := l.take(l.advance(id).Messages[0].UnitID, l.process)
	_, err := l.Batches.Pause(t.Context(), work.DefaultTenant, id, "ann", "")
	l.must(err)
	l.end(ending(c, work.Queued), Recorded)
	l.advance(id)
	if n := l.admitted(id); n != 0 {
		t.Errorf("%d units of the paused batch may begin", n)
	}
	_, err = l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{})
	l.must(err)
	if bells := l.advance(id).Messages; len(bells) != 2 {
		t.Errorf("%d units were admitted after the resume", len(bells))
	}
}

// A budget that is spent takes back what was admitted and has not begun.
func TestSpentBudgetTakesBack(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	budget := 1.0
	id := l.batch(50, func(b *NewBatch) { b.MaxCostUSD = &budget })
	for range 3 {
		l.works(l.advance(id).Messages, nil, 0.01)
	}
	if l.advance(id); l.admitted(id) < 5 {
		t.Fatalf("%d units are admitted", l.admitted(id))
	}
	c := l.take(get[uuid.UUID](l, `SELECT id FROM work_units WHERE batch_id = $1 AND NOT held AND state = 'queued' LIMIT 1`, id), l.process)
	dear := 2.0
	l.end(ending(c, work.Succeeded, func(f *Finish) { f.TotalCostUSD = &dear }), Recorded)
	l.advance(id)
	if n := l.admitted(id); n != 0 {
		t.Errorf("%d units may begin although the budget is spent", n)
	}
	if b := l.is(id, work.BatchInProgress); b.Paused == nil || !strings.Contains(b.Paused.Why, "does not suffice") {
		t.Errorf("paused: %+v", b.Paused)
	}
}

// Neither results of the cache nor failures that cost nothing tell what a unit
// costs: they let no more units begin.
func TestEstimateOfABudget(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	budget := 1.0
	id := l.batch(100, func(b *NewBatch) { b.MaxCostUSD = &budget })
	source := l.run()
	l.end(ending(source, work.Succeeded), Recorded)
	hit := func(f *Finish) { f.TotalCostUSD, f.Cache, f.CachedFrom = new(0.0), work.CacheHit, &source.RunID }
	for i := range 20 {
		bells := l.advance(id).Messages
		if len(bells) != 1 {
			t.Fatalf("%d units were admitted after %d that tell nothing", len(bells), i)
		}
		c := l.take(bells[0].UnitID, l.process)
		if i%2 == 0 {
			l.end(ending(c, work.Succeeded, hit), Recorded)
		} else {
			l.end(ending(c, work.Failed, func(f *Finish) { f.TotalCostUSD = new(0.0) }), Recorded)
		}
	}
	l.works(l.advance(id).Messages, nil, 0.4)
	if bells := l.advance(id).Messages; len(bells) != 1 { // $0.60 are left for units of $0.40
		t.Errorf("%d units were admitted", len(bells))
	}
}

// Units of the batch lane that run live after all do so within the window.
func TestLaneUnitsThatRunLiveAreAdmitted(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"unanswered", "late", "no line"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			l := newFixture(t)
			id := l.enumerating(func(b *NewBatch) { b.Concurrency = 3 })
			f := piece(id, 0, 30)
			f.Process = l.process
			end := time.Now().Add(24 * time.Hour)
			for i := range f.Units {
				f.Units[i].Lane, f.Units[i].Deadline = work.LaneBatch, &end
			}
			l.must(l.Batches.AddChunk(t.Context(), f))
			l.must(l.Batches.FinishEnumeration(t.Context(), id, l.process))
			for l.advance(id).More {
			}
			if n := get[int](l, `SELECT count(*) FROM work_units WHERE state = 'waiting'`); n != 30 {
				t.Fatalf("%d units wait", n)
			}
			b := l.packed(l.process)
			var err error
			switch how {
			case "unanswered":
				_, err = l.ProviderBatches.Finish(t.Context(), l.process, b.ID, nil)
			case "late":
				l.exec(`UPDATE work_units SET created_at = created_at - interval '23 hours 30 minutes', deadline = deadline - interval '23 hours 30 minutes'`)
				_, err = l.ProviderBatches.UnpackLate(t.Context())
			case "no line":
				var ids []uuid.UUID
				for _, u := range f.Units {
					ids = append(ids, u.ID)
				}
				err = l.ProviderBatches.UnpackLive(t.Context(), b.ID, ids)
			}
			l.must(err)
			if most := l.runsToItsEnd(id, nil, 0); most != 3 {
				t.Errorf("%d units ran live at once; the batch has a concurrency of 3", most)
			}
			l.is(id, work.BatchCompleted)
		})
	}
}

// A synthesis is made only while its batch waits for one, and is cancelled with
// its batch.
func TestSynthesisOfACancelledBatch(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	finalizing := func() uuid.UUID {
		t.Helper()
		id := l.batch(1, func(b *NewBatch) { b.Synthesis = json.RawMessage(`{}`) })
		l.works(l.advance(id).Messages, nil, 0.5)
		l.advance(id)
		l.is(id, work.BatchFinalizing)
		_, err := l.Batches.ClaimEnumeration(t.Context(), l.process)
		l.must(err)
		return id
	}
	named := func(id uuid.UUID) func(*NewUnit) {
		return func(n *NewUnit) { n.IdempotencyKey = fmt.Sprintf("synthesis %s", id) }
	}
	id := finalizing()
	_, err := l.Batches.Cancel(t.Context(), work.DefaultTenant, id, "")
	l.must(err)
	n := newUnit(named(id))
	if _, err := l.Batches.Synthesize(t.Context(), id, l.process, n); !errors.Is(err, work.ErrConflict) {
		t.Errorf("a cancelled batch was summed up: %v", err)
	}
	if got := get[int](l, `SELECT count(*) FROM work_units WHERE id = $1`, n.ID); got != 0 {
		t.Error("the synthesis of a cancelled batch was accepted")
	}

	id = finalizing()
	u, err := l.Batches.Synthesize(t.Context(), id, l.process, newUnit(named(id)))
	l.must(err)
	if _, err := l.Batches.Synthesize(t.Context(), id, l.process, newUnit(named(id))); !errors.Is(err, work.ErrConflict) {
		t.Errorf("it was summed up twice: %v", err)
	}
	running := l.take(u.ID, l.process)
	_, err = l.Batches.Cancel(t.Context(), work.DefaultTenant, id, "")
	l.must(err)
	if a := l.advance(id); len(a.Stopped) != 1 || a.Stopped[0] != u.ID {
		t.Errorf("%v were asked to stop", a.Stopped)
	}
	l.is(id, work.BatchCancelling)
	cost := 0.25
	l.end(ending(running, work.Cancelled, func(f *Finish) { f.TotalCostUSD = &cost }), Recorded)
	l.advance(id)
	if b := l.is(id, work.BatchCancelled); b.Counts.Known() != 0.75 || b.Counts.Total != 1 {
		t.Errorf("the batch has cost $%v with its synthesis: %+v", b.Counts.Known(), b.Counts)
	}
}

// What sums a batch up is paid from its budget, and its cost is the batch's.
func TestSynthesisCounts(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	budget := 1.0
	id := l.batch(2, func(b *NewBatch) { b.MaxCostUSD, b.Synthesis = &budget, json.RawMessage(`{}`) })
	l.runsToItsEnd(id, nil, 0.5)
	b := l.is(id, work.BatchInProgress)
	if b.Paused == nil || !strings.Contains(b.Paused.Why, "synthesis") {
		t.Fatalf("$%v are spent, paused %+v", b.Counts.Known(), b.Paused)
	}
	since := b.Paused.Since
	if l.advance(id); !l.read(id).Paused.Since.Equal(since) {
		t.Error("it was paused again")
	}
	budget = 2
	_, err := l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{MaxCostUSD: &budget})
	l.must(err)
	l.advance(id)
	l.is(id, work.BatchFinalizing)
	_, err = l.Batches.ClaimEnumeration(t.Context(), l.process)
	l.must(err)
	u, err := l.Batches.Synthesize(t.Context(), id, l.process, newUnit())
	l.must(err)
	l.works([]Message{MessageOf(u)}, func(int) bool { return true }, 0.25)
	if b, _, err := l.Batches.GetTested(t.Context(), work.DefaultTenant, id); err != nil || b.Counts.Known() != 1.25 {
		t.Errorf("it has cost $%v before its end, %v", b.Counts.Known(), err)
	}
	l.advance(id)
	if b := l.is(id, work.BatchCompletedWithFailures); b.Counts.Known() != 1.25 {
		t.Errorf("it has cost $%v", b.Counts.Known())
	}
	// The synthesis again: the batch goes on with it.
	again, err := l.Units.Retry(t.Context(), work.DefaultTenant, u.ID, Changes{})
	l.must(err)
	l.is(id, work.BatchFinalizing)
	l.works([]Message{MessageOf(again)}, func(int) bool { return true }, 0.75)
	l.advance(id)
	if b := l.is(id, work.BatchCompletedWithFailures); b.Counts.Known() != 2 {
		t.Errorf("it has cost $%v", b.Counts.Known())
	}
	if _, err := l.Units.Retry(t.Context(), work.DefaultTenant, u.ID, Changes{}); !errors.Is(err, work.ErrConflict) ||
		!strings.Contains(err.Error(), "max_cost_usd") {
		t.Errorf("a synthesis that nobody can pay is retried: %v", err)
	}
}
