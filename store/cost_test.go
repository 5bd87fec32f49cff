package store

import (
	"math/rand/v2"
	"testing"
	"time"

	"piecework/internal/work"
)

// checkCosts compares the cost of every unit with that of its runs.
func (l *fixture) checkCosts() {
	l.t.Helper()
	wrong := get[int](l, `SELECT count(*) FROM work_units u, LATERAL (SELECT coalesce(sum(total_cost_usd), 0) AS known,
			count(*) FILTER (WHERE `+unpriced("r")+`) AS unpriced FROM worker_runs r WHERE unit_id = u.id AND status <> 'running') AS r
		WHERE abs(u.cost_usd - r.known) > 1e-9 OR u.unpriced_runs <> r.unpriced`)
	if wrong != 0 {
		l.t.Errorf("%d units do not have the cost of their runs", wrong)
	}
}

// The cost of a unit, and what is not known of it, is that of its runs: in
// whatever way and order they end, and come back late, and how often they say so.
func TestUnitHasTheCostOfItsRuns(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	random := rand.New(rand.NewPCG(1, 2))
	var late []*Claimed
	tell := func(f *Finish) {
		if random.IntN(3) > 0 {
			f.TotalCostUSD = new(float64(random.IntN(8)) / 16)
		}
		f.CostIncomplete = random.IntN(4) == 0
	}
	for range 40 {
		id := l.put(func(n *NewUnit) { n.Backend = "claude" }).ID
		for range 1 + random.IntN(4) {
			c := l.take(id, l.process)
			if c == nil {
				break // its worker processes died too often
			}
			if random.IntN(3) == 0 {
				l.lose(c)
				late = append(late, c)
				continue
			}
			f := ending(c, work.Queued, tell)
			l.end(f, Recorded)
			if random.IntN(2) == 0 {
				l.end(f, Recorded)
			}
		}
	}
	l.checkCosts()
	for _, c := range late {
		if random.IntN(3) > 0 {
			f := ending(c, work.Queued, tell)
			l.end(f, Fenced)
			l.end(f, Fenced)
		}
	}
	l.checkCosts()
}

// What is not known of a cost is told wherever the cost is.
func TestUnknownCostIsCounted(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	cost := 0.5
	silent, mock := l.run(func(n *NewUnit) { n.Backend = "claude" }), l.run()
	for _, c := range []*Claimed{silent, mock} {
		l.lose(c)
	}
	if got := l.unit(silent.ID).Cost; got != work.NewCost(0, 1) || !got.CostUnknown() {
		t.Errorf("of a lost run: %+v", got)
	}
	if got := l.unit(mock.ID).Cost; got != (work.Cost{}) {
		t.Errorf("of a lost run of the mock backend: %+v", got)
	}
	l.end(ending(l.take(silent.ID, l.process), work.Failed, func(f *Finish) { f.TotalCostUSD = &cost }), Recorded)
	if got := l.unit(silent.ID).Cost; got != work.NewCost(cost, 1) {
		t.Errorf("a part of it: %+v", got)
	}
	if p, err := l.Units.PreviewRetry(t.Context(), UnitFilter{Tenant: work.DefaultTenant, Backend: "claude"}, Changes{}, 1); err != nil ||
		p.Cost != work.NewCost(cost, 1) || p.Units[0].Cost != p.Cost {
		t.Errorf("preview %+v, error %v", p, err)
	}
	moved, _, err := l.Units.RetryAll(t.Context(), UnitFilter{Tenant: work.DefaultTenant, Backend: "claude"}, Changes{})
	if err != nil || len(moved) != 1 || moved[0].Cost() != work.NewCost(cost, 1) {
		t.Errorf("moved %+v, error %v", moved, err)
	}
	l.end(ending(silent, work.Succeeded, func(f *Finish) { f.TotalCostUSD = &cost }), Fenced)
	if got := l.unit(silent.ID).Cost; got != work.NewCost(2*cost, 0) {
		t.Errorf("after the late finish: %+v", got)
	}
	window, _ := work.WindowOf("1h")
	if f, err := l.Overview.Figures(t.Context(), work.DefaultTenant, window, time.Now()); err != nil ||
		f.Cost.Cost != work.NewCost(2*cost, 0) {
		t.Errorf("figures %+v, error %v", f.Cost, err)
	}
	untold := l.run(func(n *NewUnit) { n.Backend = "claude" })
	l.end(ending(untold, work.Succeeded), Recorded)
	if got := l.unit(untold.ID).Cost; got != work.NewCost(0, 1) || !got.CostUnknown() {
		t.Errorf("of a run that ended without a figure: %+v", got)
	}
}
