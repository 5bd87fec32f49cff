package store

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// worksWithoutPrice runs what was admitted to its end at a cost that nobody
// knows.
func (l *fixture) worksWithoutPrice(bells []Message) {
	l.t.Helper()
	for _, d := range bells {
		l.end(ending(l.take(d.UnitID, l.process), work.Succeeded, func(f *Finish) { f.TotalCostUSD, f.Model = nil, "new-model" }), Recorded)
	}
}

// A limit on costs stops its batch at the first run whose cost is not known.
func TestUnknownCostStopsABatch(t *testing.T) {
	t.Parallel()
	limit := 0.00001
	for name, c := range map[string]struct {
		change func(*NewBatch)
		most   int // units that may begin before a cost is known
	}{
		"max_cost_usd":  {func(b *NewBatch) { b.MaxCostUSD = &limit }, 1},
		"mean_cost_usd": {func(b *NewBatch) { b.Concurrency, b.StopWhen = 5, &work.StopWhen{Window: 20, MeanCostUSD: &limit} }, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newFixture(t)
			id := l.batch(50, c.change)
			for want := 1; want <= 2; want++ { // a resume lets pass what is unknown so far, and nothing more
				bells := l.advance(id).Messages
				if len(bells) != c.most {
					t.Fatalf("%d units were admitted; want %d", len(bells), c.most)
				}
				l.worksWithoutPrice(bells[:1])
				if a := l.advance(id); len(a.Messages) > 0 {
					t.Errorf("%d more units were admitted", len(a.Messages))
				}
				b := l.is(id, work.BatchInProgress)
				if b.Paused == nil || b.Paused.By != work.BySystem || !strings.Contains(b.Paused.Why, name) ||
					!strings.Contains(b.Paused.Why, "the model new-model has no price") || !strings.Contains(b.Paused.Why, bells[0].UnitID.String()) {
					t.Fatalf("paused %+v", b.Paused)
				}
				if n := l.admitted(id); n != 0 || b.Counts.Unpriced != int64(want) || !b.Counts.CostUnknown() {
					t.Errorf("%d units may begin; cost %s", n, b.Counts.CostText())
				}
				_, err := l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{})
				l.must(err)
			}
		})
	}
}

// A batch whose last unit has no price ends as any other.
func TestUnknownCostOfTheLastUnit(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	budget := 1.0
	id := l.batch(1, func(b *NewBatch) {
		b.MaxCostUSD, b.StopWhen = &budget, &work.StopWhen{Window: 20, MeanCostUSD: &budget}
	})
	l.worksWithoutPrice(l.advance(id).Messages)
	l.advance(id)
	l.is(id, work.BatchCompleted)
}

// Runs that were lost count as the dearest unit of which the cost is known; if
// it is known of none, three of them stop the batch.
func TestLostRunsOfABudget(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.exec(`UPDATE work_units SET backend = 'claude'`)
	budget := 1.0
	lose := func(unit uuid.UUID) {
		t.Helper()
		c := l.take(unit, l.register(-time.Second))
		if c == nil {
			t.Fatal("nothing to lose")
		}
		if n, err := l.Runs.ExpireLeases(t.Context()); err != nil || n != 1 {
			t.Fatal(n, err)
		}
	}
	id := l.batch(50, func(b *NewBatch) { b.MaxCostUSD = &budget })
	l.exec(`UPDATE work_units SET backend = 'claude'`)
	unit := l.advance(id).Messages[0].UnitID
	for range 2 {
		lose(unit)
		l.advance(id)
	}
	if b := l.read(id); b.Paused != nil {
		t.Fatalf("two runs that were lost have paused it: %+v", b.Paused)
	}
	dear := 0.25
	l.end(ending(l.take(unit, l.process), work.Failed, func(f *Finish) { f.TotalCostUSD = &dear }), Recorded)
	l.exec(`UPDATE work_units SET unpriced_runs = 0, cost_usd = 0.25 WHERE id = $1`, unit) // the lost runs have told
	l.exec(`UPDATE worker_runs SET cost_incomplete = false, total_cost_usd = 0 WHERE status = 'lost'`)
	bells := l.advance(id).Messages
	if len(bells) != 2 {
		t.Fatalf("%d units were admitted", len(bells))
	}
	lose(bells[0].UnitID)
	lose(bells[1].UnitID)
	l.advance(id) // $0.25 are known, two lost runs count as much each: one unit can be paid
	for _, b := range bells {
		l.end(ending(l.take(b.UnitID, l.process), work.Succeeded, func(f *Finish) { f.TotalCostUSD = new(0.125) }), Recorded)
	}
	l.advance(id)
	if b := l.read(id); b.Paused == nil || !strings.Contains(b.Paused.Why, "2 runs that were cut off") {
		t.Errorf("$%v are known, paused %+v", b.Counts.Known(), b.Paused)
	}

	other := l.batch(50, func(b *NewBatch) { b.MaxCostUSD = &budget })
	l.exec(`UPDATE work_units SET backend = 'claude' WHERE batch_id = $1`, other)
	for _, want := range []bool{false, false, true} {
		bells := l.advance(other).Messages
		if len(bells) > 0 {
			unit = bells[0].UnitID
		}
		lose(unit)
		l.advance(other)
		if b := l.read(other); (b.Paused != nil) != want {
			t.Errorf("paused %+v; want %t", b.Paused, want)
		}
	}
}

// What the rest costs is not known when nothing is known of the cost of a unit
// that has run, and none tells: neither is it nothing.
func TestTrialOfUnknownCost(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(10, func(b *NewBatch) { b.TestFirst = 3 })
	bells := l.advance(id).Messages
	source := l.run()
	l.end(ending(source, work.Succeeded), Recorded)
	cost := func() *Spread {
		t.Helper()
		_, trial, err := l.Batches.GetTested(t.Context(), work.DefaultTenant, id)
		l.must(err)
		return trial.Cost
	}
	l.end(ending(l.take(bells[0].UnitID, l.process), work.Succeeded, func(f *Finish) {
		f.TotalCostUSD, f.Cache, f.CachedFrom = new(0.0), work.CacheHit, &source.RunID
	}), Recorded)
	if c := cost(); c != nil {
		t.Errorf("after a result of the cache: %+v", c)
	}
	l.works(bells[1:2], nil, 0.5)
	if c := cost(); c == nil || *c != (Spread{1, 0.5, 0}) {
		t.Errorf("after a unit of $0.50: %+v", c)
	}
	l.worksWithoutPrice(bells[2:])
	if c := cost(); c != nil {
		t.Errorf("after a unit without a price: %+v", c)
	}
}

// The mean of stop_when is that of units that were paid for.
func TestMeanCostWithoutCacheHits(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	source := l.run()
	l.end(ending(source, work.Succeeded), Recorded)
	most := 0.5
	id := l.batch(40, func(b *NewBatch) { b.Concurrency, b.StopWhen = 10, &work.StopWhen{Window: 10, MeanCostUSD: &most} })
	for i, d := range l.advance(id).Messages {
		l.end(ending(l.take(d.UnitID, l.process), work.Succeeded, func(f *Finish) {
			if f.TotalCostUSD = new(0.6); i > 0 {
				f.TotalCostUSD, f.Cache, f.CachedFrom = new(0.0), work.CacheHit, &source.RunID
			}
		}), Recorded)
	}
	l.advance(id)
	if b := l.read(id); b.Paused == nil || !strings.Contains(b.Paused.Why, "$0.60 each") {
		t.Errorf("paused: %+v", b.Paused)
	}
}

// The end of a test is not the end of the money.
func TestTestOfABatchWithABudget(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	budget := 10.0
	id := l.batch(5, func(b *NewBatch) { b.TestFirst, b.MaxCostUSD = 2, &budget })
	l.runsToItsEnd(id, nil, 0.5)
	if b := l.is(id, work.BatchAwaitingApproval); b.Paused != nil || b.Counts.Succeeded != 2 {
		t.Errorf("%+v, paused %+v", b.Counts, b.Paused)
	}
}

// What is left of a budget is nothing when it is spent to the cent: as binary
// numbers, 49 cents and 18 cents are less than 67. No unit tells what another will
// cost here, for each has a run of unknown cost.
func TestBudgetThatIsSpentToTheCent(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	budget := 0.67
	id := l.batch(4, func(b *NewBatch) { b.MaxCostUSD = &budget })
	for _, cost := range []float64{0.49, 0.18} {
		bells := l.advance(id).Messages
		if len(bells) != 1 {
			t.Fatalf("%d units were admitted", len(bells))
		}
		l.end(ending(l.take(bells[0].UnitID, l.process), work.Succeeded,
			func(f *Finish) { f.TotalCostUSD, f.CostIncomplete = &cost, true }), Recorded)
	}
	if a := l.advance(id); len(a.Messages) > 0 {
		t.Errorf("%d units were admitted with nothing left", len(a.Messages))
	}
}
