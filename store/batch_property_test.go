package store

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

var (
	randomBatches = flag.Int("batches", 25, "random batches that TestBudgetsHold runs")
	firstBatch    = flag.Uint64("first-batch", 1, "the seed of the first of them")
)

// Random batches with windows, budgets, tests, retries, pauses, unknown prices,
// results from the cache and worker processes that die: at every moment no more
// units are admitted than the window lets, and the money that is spent is at most
// the budget and what was under way when it was reached. Each comes to its end.
func TestBudgetsHold(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	source := l.run()
	l.end(ending(source, work.Succeeded), Recorded)
	seeds := make(chan uint64)
	var all sync.WaitGroup
	var sum happened
	for range 4 {
		all.Go(func() {
			dead := l.register(-time.Second)
			for seed := range seeds {
				if t.Failed() {
					continue
				}
				b := &randomBatch{fixture: l, rand: rand.New(rand.NewPCG(seed, 0)), seed: seed, dead: dead, source: source.RunID, sum: &sum}
				b.live()
			}
		})
	}
	for i := range *randomBatches {
		seeds <- *firstBatch + uint64(i)
	}
	close(seeds)
	all.Wait()
	t.Logf("%d batches: %d runs, %d retried units, %d pauses by people, %d by the system (%d for unknown costs), %d hits, %d lost runs; at most $%.2f over a budget, with $%.2f under way",
		*randomBatches, sum.runs.Load(), sum.retried.Load(), sum.paused.Load(), sum.stopped.Load(), sum.unknown.Load(), sum.hits.Load(),
		sum.lost.Load(), float64(sum.over.Load())/100, float64(sum.underWay.Load())/100)
}

// happened counts what the batches of a test went through; money is in cents.
type happened struct{ runs, retried, paused, stopped, unknown, hits, lost, over, underWay atomic.Int64 }

// randomBatch is a batch with what is true of it beside what the database knows.
// Money is in cents, so that sums are exact.
type randomBatch struct {
	*fixture
	rand   *rand.Rand
	seed   uint64
	dead   uuid.UUID
	source uuid.UUID // a run whose result is taken over
	sum    *happened

	id      uuid.UUID
	window  int
	budget  int // cents; 0: none
	priced  bool
	units   []unitState
	status  work.BatchStatus
	why     *string // it is paused
	running map[uuid.UUID]randomRun

	spent   int  // as far as the database can know
	cover   int  // what may be spent beyond the budget: it was under way when that was reached
	unknown int  // runs without a price that no person let pass
	looked  bool // the batch was looked at since money was spent
	log     []string
}

type unitState struct {
	ID     uuid.UUID
	State  work.State
	Held   bool
	Status work.BatchStatus // of the batch
	Why    *string
}

type randomRun struct {
	*Claimed
	cost int
	dead bool
}

func (b *randomBatch) failf(format string, args ...any) {
	b.t.Errorf("batch of seed %d: %s\n%s", b.seed, fmt.Sprintf(format, args...), strings.Join(b.log[max(0, len(b.log)-40):], "\n"))
}

func (b *randomBatch) note(format string, args ...any) {
	b.log = append(b.log, fmt.Sprintf(format, args...))
}

// live makes the batch and brings it to its end.
func (b *randomBatch) live() {
	n := 3 + b.rand.IntN(8)
	b.running, b.priced = map[uuid.UUID]randomRun{}, b.rand.IntN(4) > 0
	nb := NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "random", Protocol: work.ProtocolNative}}
	b.id, b.window = nb.ID, work.BatchWindow
	if b.rand.IntN(4) > 0 {
		nb.Concurrency = 1 + b.rand.IntN(6)
		b.window = nb.Concurrency
	}
	if b.rand.IntN(5) > 0 {
		b.budget = 10 + b.rand.IntN(100)
		nb.MaxCostUSD = new(float64(b.budget) / 100)
	}
	if b.rand.IntN(4) == 0 {
		nb.TestFirst = 1 + b.rand.IntN(3)
	}
	b.fill(nb, n)
	b.look()
	b.note("%d units, window %d, budget %d, test %d, priced %t", n, b.window, b.budget, nb.TestFirst, b.priced)
	for step := 0; !b.t.Failed(); step++ {
		if step == 2000 {
			b.failf("it has not come to its end: %+v", b.read(b.id))
			return
		}
		b.step(step > 80)
		b.look()
		if b.status.Final() && (step > 80 || b.rand.IntN(3) > 0) {
			return
		}
	}
}

// fill makes the units. Only one batch is filled at a time, for FillBatch gives
// whichever is the oldest.
func (b *randomBatch) fill(nb NewBatch, n int) {
	filling.Lock()
	defer filling.Unlock()
	_, _, err := b.Batches.Add(b.t.Context(), nb)
	b.check(err)
	_, err = b.Batches.ClaimEnumeration(b.t.Context(), b.process)
	b.check(err)
	f := piece(b.id, 0, n)
	f.Process = b.process
	for i := range f.Units {
		f.Units[i].Backend = "claude"
	}
	b.check(b.Batches.AddChunk(b.t.Context(), f))
	b.check(b.Batches.FinishEnumeration(b.t.Context(), b.id, b.process))
}

var filling sync.Mutex

func (b *randomBatch) check(err error) {
	if err != nil {
		b.failf("%v", err)
	}
}

// look reads the units and holds what must be true at every moment.
func (b *randomBatch) look() {
	b.units = b.units[:0]
	b.check(b.db.SelectContext(b.t.Context(), &b.units, `SELECT u.id, u.state, u.held, b.status, CASE WHEN b.paused_at IS NOT NULL THEN b.paused_why END AS why
		FROM work_units u JOIN batches b ON b.id = u.batch_id WHERE b.id = $1 ORDER BY u.id`, b.id))
	b.status, b.why = b.units[0].Status, b.units[0].Why
	if n := len(b.admitted()); n > b.window {
		b.failf("%d units are admitted, the window is %d", n, b.window)
	}
	b.money()
}

func (b *randomBatch) admitted() (ids []uuid.UUID) {
	for _, u := range b.units {
		if !u.Held && !u.State.Final() {
			ids = append(ids, u.ID)
		}
	}
	return ids
}

// money holds that what was spent beyond the budget was under way when the budget
// was reached.
func (b *randomBatch) money() {
	over := b.spent - b.budget
	if b.budget == 0 || over <= 0 {
		return
	}
	b.sum.over.Store(max(b.sum.over.Load(), int64(over)))
	b.sum.underWay.Store(max(b.sum.underWay.Load(), int64(b.cover)))
	if over > b.cover {
		b.failf("%d cents of %d are spent, and no more than %d were under way", b.spent, b.budget, b.cover)
	}
}

// reached notes what is under way when the budget is reached.
func (b *randomBatch) reached() {
	if b.cover = 0; b.budget > 0 && b.spent >= b.budget {
		b.cover = b.spent - b.budget
		for _, r := range b.running {
			b.cover += r.cost
		}
	}
}

// step does one thing. In a hurry it does what brings the batch to its end.
func (b *randomBatch) step(hurry bool) {
	switch what := b.rand.IntN(100); {
	case what < 30:
		b.admits()
	case what < 55:
		b.begins()
	case what < 80:
		b.ends(hurry)
	case hurry || what < 90:
		b.person(hurry)
	case what < 93:
		_, err := b.Batches.Pause(b.t.Context(), work.DefaultTenant, b.id, "ann", "")
		b.mayRefuse(err)
		b.sum.paused.Add(1)
		b.note("pause: %v", err)
	case what < 97:
		moved, _, err := b.Batches.Retry(b.t.Context(), work.DefaultTenant, b.id, nil)
		b.check(err)
		b.sum.retried.Add(int64(len(moved)))
		b.note("retry %d", len(moved))
	case what < 99 && len(b.units) > 0:
		u := b.units[b.rand.IntN(len(b.units))]
		_, err := b.Units.Retry(b.t.Context(), work.DefaultTenant, u.ID, Changes{})
		b.mayRefuse(err)
		b.note("retry one: %v", err)
	case len(b.units) > 0:
		u := b.units[b.rand.IntN(len(b.units))]
		if _, ok := b.running[u.ID]; !ok {
			_, err := b.Units.Cancel(b.t.Context(), work.DefaultTenant, u.ID)
			b.mayRefuse(err)
			b.note("cancel one: %v", err)
		}
	}
}

func (b *randomBatch) mayRefuse(err error) {
	if err != nil && !strings.Contains(err.Error(), work.ErrConflict.Error()) {
		b.failf("%v", err)
	}
}

// admits lets the batch admit units, and holds that it may.
func (b *randomBatch) admits() {
	before := b.why
	b.look()
	// With nothing queued there is nothing to hold: what runs may be queued again.
	b.looked = slices.ContainsFunc(b.units, func(u unitState) bool { return u.State == work.Queued })
	a, err := b.Batches.Advance(b.t.Context(), b.id)
	b.check(err)
	if len(a.Messages) == 0 {
		if b.look(); before == nil && b.why != nil {
			b.sum.stopped.Add(1)
			if strings.Contains(*b.why, "not known") {
				b.sum.unknown.Add(1)
			}
			b.note("stopped: %s", *b.why)
		}
		return
	}
	b.note("admitted %d, spent %d of %d", len(a.Messages), b.spent, b.budget)
	switch {
	case before != nil:
		b.failf("a paused batch has admitted %d units", len(a.Messages))
	case b.budget > 0 && b.spent >= b.budget:
		b.failf("%d units were admitted although the budget was spent", len(a.Messages))
	case b.budget > 0 && b.unknown > 0:
		b.failf("%d units were admitted although the cost of a run is not known", len(a.Messages))
	}
}

// begins claims an admitted unit, now and then by a worker process that dies.
func (b *randomBatch) begins() {
	if len(b.admitted()) == 0 {
		return
	}
	unit := b.admitted()[b.rand.IntN(len(b.admitted()))]
	dead := b.rand.IntN(8) == 0
	process := b.process
	if dead {
		process = b.dead
	}
	c, err := b.Runs.Claim(b.t.Context(), claimOf(unit, process))
	b.check(err)
	if c == nil {
		return
	}
	b.sum.runs.Add(1)
	run := randomRun{c, 1 + b.rand.IntN(20), dead}
	if _, requeued := b.running[unit]; requeued { // its lost run was found, and the batch not looked at since
		b.looked = false
	}
	b.running[unit] = run
	switch {
	case b.budget == 0:
	case b.looked && b.spent >= b.budget:
		b.failf("a run began although the budget was spent")
	case b.looked && b.unknown > 0:
		b.failf("a run began although the cost of one is not known")
	case b.spent >= b.budget:
		b.cover += run.cost // it was admitted before
	}
	b.note("run of %s begins, dead %t", unit, dead)
}

// ends ends a run somehow.
func (b *randomBatch) ends(hurry bool) {
	var ids []uuid.UUID
	for id := range b.running {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return
	}
	slices.SortFunc(ids, func(x, y uuid.UUID) int { return strings.Compare(x.String(), y.String()) })
	id := ids[b.rand.IntN(len(ids))]
	run := b.running[id]
	delete(b.running, id)
	reached := b.spent >= b.budget
	b.looked = false
	if run.dead {
		b.loses(run)
		return
	}
	next := []work.State{work.Succeeded, work.Succeeded, work.Succeeded, work.Failed, work.Queued}[b.rand.IntN(5)]
	if hurry {
		next = work.Succeeded
	}
	f := ending(run.Claimed, next)
	f.TotalCostUSD = new(float64(run.cost) / 100)
	switch {
	case next == work.Succeeded && b.rand.IntN(6) == 0:
		run.cost = 0
		f.TotalCostUSD, f.Cache, f.CachedFrom = new(0.0), work.CacheHit, &b.source
		b.sum.hits.Add(1)
	case !b.priced && b.rand.IntN(2) == 0:
		f.TotalCostUSD = nil
		b.unknown++
	default:
		b.spent += run.cost
	}
	_, err := b.Runs.Finish(b.t.Context(), f)
	b.check(err)
	if !reached {
		b.reached()
	}
	b.note("run of %s: %s at %d, known %t; spent %d", id, next, run.cost, f.TotalCostUSD != nil, b.spent)
}

func (b *randomBatch) loses(run randomRun) {
	_, err := b.Runs.ExpireLeases(b.t.Context())
	b.check(err)
	b.sum.lost.Add(1)
	b.note("run of %s is lost at %d", run.ID, run.cost)
}

// person approves, or resumes, with more money when that is what it takes.
func (b *randomBatch) person(hurry bool) {
	switch {
	case b.status == work.BatchAwaitingApproval:
		_, err := b.Batches.Approve(b.t.Context(), work.DefaultTenant, b.id, BatchChanges{})
		b.mayRefuse(err)
		b.note("approve: %v", err)
	case b.why != nil:
		var c BatchChanges
		if b.budget > 0 && (hurry || b.rand.IntN(2) == 0) {
			b.budget += 20 + b.rand.IntN(50)
			c.MaxCostUSD = new(float64(b.budget) / 100)
		}
		b.unknown = 0
		b.reached()
		_, err := b.Batches.Resume(b.t.Context(), work.DefaultTenant, b.id, c)
		b.mayRefuse(err)
		b.note("resume with %d: %v", b.budget, err)
	}
}
