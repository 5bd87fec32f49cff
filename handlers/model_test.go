package handlers

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// A model of the whole: clients, messages that get lost, worker processes that die
// or freeze between any two steps, and the reconciler, around a store. Who does
// the next step is drawn from a seed, so what a seed finds it finds again. What
// a run's end means is decided by outcome, which moves are allowed by work, and
// what the store in memory does is compared with Postgres.

var (
	modelSeed  = flag.Uint64("model-seed", 0, "play this seed of the model only, and tell what happens")
	modelSeeds = flag.Uint64("model-seeds", 2000, "how many seeds of the model to play")
)

// world is one play.
type world struct {
	*rand.Rand
	books   books
	flaw    flaw
	orders  []*order
	queue   []uuid.UUID
	workers []*proc
	trees   map[uuid.UUID][]*task // live ones, by unit
	dead    []uuid.UUID           // worker processes whose lease goes on
	calm    bool                  // no fault happens any more
	found   []string
	tell    func(format string, args ...any)
}

// order is a request of a client and what its unit will do when it runs.
type order struct {
	unit    uuid.UUID
	key     string
	known   bool // the client knows the unit
	fails   int  // so many runs fail before one succeeds
	class   work.Class
	kills   bool // it kills its worker process
	cancels bool // the client will cancel it
	asked   bool // the cancel is committed, while the unit was not final
	runs    int  // at that moment
}

// proc is one worker process and, once it is dead, the next one in its place.
type proc struct {
	id     uuid.UUID
	epoch  int // of its lease; a lease that has run out is not renewed
	up     bool
	frozen bool
	lapsed bool // its lease has run out
	tasks  []*task
	spool  []store.Finish // outlives the process
}

// task is one unit on its way through a worker process.
type task struct {
	at      stage
	order   *order
	claim   store.Claim
	epoch   int // of the lease when it was claimed
	claimed *store.Claimed
	cause   error
	ran     ran
	finish  store.Finish
}

type stage int

const (
	taken  stage = iota // a message
	asked               // for the unit; the answer is not here yet
	owned               // not begun
	atWork              // its tree lives
	ended               // its tree is dead
	spooled
	finished
)

func (w *world) broken(format string, args ...any) {
	w.found = append(w.found, fmt.Sprintf(format, args...))
	w.tell("BROKEN: "+format, args...)
}

func (w *world) id() (id uuid.UUID) {
	for i := range id {
		id[i] = byte(w.Uint32())
	}
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id
}

func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

func newWorld(seed uint64, f flaw, tell func(string, ...any)) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), flaw: f, trees: map[uuid.UUID][]*task{}, tell: tell}
	w.books = newBook(f, w.broken)
	return w
}

func (w *world) people() {
	for i := range 4 {
		o := &order{key: fmt.Sprintf("%s-%d", w.id(), i), class: work.ClassInfra, cancels: w.chance(20)}
		switch w.IntN(6) {
		case 0:
			o.kills = true
		case 1:
			o.fails, o.class = 9, work.ClassCrash
		case 2:
			o.fails, o.class = w.IntN(3), work.ClassRateLimit
		default:
			o.fails = w.IntN(4)
		}
		w.orders = append(w.orders, o)
	}
	for range 3 {
		c := &proc{}
		w.workers = append(w.workers, c)
		w.begin(c)
	}
}

// play goes on for so many steps with faults and then until all is done.
func (w *world) play(steps int) {
	w.people()
	for range steps {
		w.step()
	}
	w.calm = true
	w.tell("from here on nothing breaks")
	for range 20_000 {
		if w.step(); w.over() {
			break
		}
	}
	w.judge()
}

func (w *world) over() bool {
	for _, o := range w.orders {
		if !o.known || !w.books.page(o.unit).State.Final() {
			return false
		}
	}
	for _, c := range w.workers {
		if len(c.tasks)+len(c.spool) > 0 {
			return false
		}
	}
	return true
}

// step lets somebody do one thing.
func (w *world) step() {
	c := w.workers[w.IntN(len(w.workers))]
	o := w.orders[w.IntN(len(w.orders))]
	switch n := w.IntN(100); {
	case n < 8:
		w.submit(o)
	case n < 11:
		w.cancel(o)
	case n < 18:
		w.books.expire()
	case n < 24:
		w.enqueueAgain(o)
	case n < 36:
		w.take(c)
	case n < 44:
		w.heartbeat(c)
	case n < 50:
		w.lifeOf(c)
	case n < 53:
		w.lapse(c)
	case n < 56:
		w.handIn(c)
	default:
		if c.up && !c.frozen && len(c.tasks) > 0 {
			w.goOn(c, c.tasks[w.IntN(len(c.tasks))])
		}
	}
	for unit, live := range w.trees {
		if len(live) > 1 {
			w.broken("unit %s has %d live trees", unit, len(live))
			w.trees[unit] = live[1:]
		}
	}
}

// submit asks until there is an answer, with the same key.
func (w *world) submit(o *order) {
	if o.known {
		return
	}
	n := store.NewUnit{IdempotencyKey: o.key, BodyHash: []byte(o.key), Unit: work.Unit{ID: w.id(), Tenant: work.DefaultTenant, Title: "t",
		Spec: work.Spec{Backend: "mock", Prompt: "x", Payload: noPayload, Labels: noPayload, Timeout: 60, IdleTimeout: 60,
			MissingKey: "fail", Queue: "default", Priority: 5}}}
	unit := w.books.accept(n)
	if o.unit != uuid.Nil && o.unit != unit {
		w.broken("the key of %s made %s too", o.unit, unit)
	}
	o.unit = unit
	if !w.calm && w.chance(40) {
		w.tell("%s is accepted, and the answer lost", unit)
		return // before the message, too
	}
	o.known = true
	w.tell("%s is accepted", unit)
	w.enqueue(unit)
}

// enqueue sends a message, which may be lost or come twice, and comes late.
func (w *world) enqueue(unit uuid.UUID) {
	if w.calm || !w.chance(20) {
		w.queue = append(w.queue, unit)
	}
	if !w.calm && w.chance(20) {
		w.queue = append(w.queue, unit)
	}
}

// enqueueAgain is the reconciler's look at what is queued.
func (w *world) enqueueAgain(o *order) {
	if o.unit != uuid.Nil && w.flaw != noReconciler && w.books.page(o.unit).State == work.Queued {
		w.enqueue(o.unit)
	}
}

func (w *world) cancel(o *order) {
	if !o.cancels || o.unit == uuid.Nil || o.asked {
		return
	}
	before := w.books.page(o.unit)
	if before.State.Final() {
		return
	}
	w.books.cancel(o.unit)
	o.asked, o.runs = true, before.RunCount
	w.tell("%s is cancelled while %s", o.unit, before.State)
}

// take gives a message to a worker process that has a slot.
func (w *world) take(c *proc) {
	if !c.up || c.frozen || len(w.queue) == 0 || len(c.tasks) > 2 {
		return
	}
	i := w.IntN(len(w.queue))
	unit := w.queue[i]
	w.queue = slices.Delete(w.queue, i, i+1)
	for _, o := range w.orders {
		if o.unit == unit {
			c.tasks = append(c.tasks, &task{order: o})
		}
	}
}

// lifeOf is what befalls a worker process as a whole.
func (w *world) lifeOf(c *proc) {
	switch {
	case !c.up:
		w.begin(c)
	case c.frozen:
		w.tell("%s goes on", c.id)
		c.frozen = false
	case w.calm:
	case w.chance(40):
		w.tell("%s is killed", c.id)
		w.die(c)
	case w.chance(50):
		w.tell("%s is frozen", c.id)
		c.frozen = true
	default:
		w.tell("%s is asked to stop", c.id)
		for _, e := range c.tasks {
			w.stop(e, work.ErrShutdown)
		}
	}
}

func (w *world) begin(c *proc) {
	c.id, c.up, c.frozen, c.lapsed, c.epoch = w.id(), true, false, false, 0
	w.books.heartbeat(c.id)
}

// die: the keepers end the trees at once.
func (w *world) die(c *proc) {
	for _, e := range c.tasks {
		w.fell(e)
	}
	if c.tasks, c.up, c.frozen = nil, false, false; !c.lapsed {
		w.dead = append(w.dead, c.id)
	}
}

func (w *world) fell(e *task) {
	w.trees[e.order.unit] = slices.DeleteFunc(w.trees[e.order.unit], func(x *task) bool { return x == e })
}

// stop ends a run's tree; the first reason counts.
func (w *world) stop(e *task, why error) {
	if e.at != owned && e.at != atWork {
		return
	}
	if e.cause == nil {
		e.cause = why
	}
	if e.at == atWork && w.flaw != releasedBeforeDead {
		w.fell(e)
	}
	e.at = ended
}

// lapse is the end of a lease that nobody renews. By then the process itself or
// the keepers have ended its trees.
func (w *world) lapse(c *proc) {
	if len(w.dead) > 0 {
		w.books.lapse(w.dead[0])
		w.dead = w.dead[1:]
		return
	}
	if !c.up || c.lapsed || !c.frozen && (w.calm || !w.chance(30)) {
		return
	}
	w.tell("the lease of %s runs out", c.id)
	if w.flaw != leaseNotWatched {
		for _, e := range c.tasks {
			if c.frozen {
				w.fell(e)
			} else {
				w.stop(e, work.ErrFenced)
			}
		}
	}
	c.lapsed = true
	w.books.lapse(c.id)
}

// heartbeat renews the lease and acts on the answer.
func (w *world) heartbeat(c *proc) {
	if !c.up || c.frozen {
		return
	}
	if c.lapsed {
		c.lapsed = false
		c.epoch++
	}
	theirs := map[uuid.UUID]bool{}
	for _, o := range w.books.heartbeat(c.id) {
		theirs[o.RunID] = true
		i := slices.IndexFunc(c.tasks, func(e *task) bool { return e.claim.RunID == o.RunID })
		switch {
		case i < 0 && !slices.ContainsFunc(c.spool, func(f store.Finish) bool { return f.RunID == o.RunID }):
			// The answer to its claim never came.
			w.books.finish(store.Finish{UnitID: o.UnitID, RunID: o.RunID, Attempt: o.Attempt, Status: work.RunLost, Next: work.Queued,
				Losses: 1, Error: work.Fail(work.ClassInfra, "never known")})
		case i >= 0 && o.Cancel:
			w.stop(c.tasks[i], work.ErrCancelled)
		}
	}
	for _, e := range c.tasks {
		if e.claimed != nil && !theirs[e.claim.RunID] {
			w.stop(e, work.ErrFenced)
		}
	}
}

// goOn does an task's next step.
func (w *world) goOn(c *proc, e *task) {
	switch e.at {
	case taken:
		if c.lapsed {
			w.heartbeat(c) // first a heartbeat
		}
		alone := len(c.tasks) == 1
		e.claim = store.Claim{UnitID: e.order.unit, RunID: w.id(), Process: c.id, SessionID: "s", Backends: []string{"mock"}, Alone: alone}
		e.at, e.epoch = asked, c.epoch
	case asked:
		claimed, err := w.books.claim(e.claim)
		switch {
		case err != nil, claimed == nil:
			w.drop(c, e)
		case !w.calm && w.chance(20): // the answer is lost: it asks again, or gives up
			if w.chance(30) {
				w.drop(c, e)
			}
		default:
			e.claimed, e.at = claimed, owned
			if e.order.asked && claimed.RunCount > e.order.runs {
				w.broken("run %d of %s was claimed after the cancel", claimed.RunCount, e.order.unit)
			}
		}
	case owned:
		if (e.epoch != c.epoch || c.lapsed) && w.flaw != lateStart {
			e.cause, e.at = work.ErrFenced, ended
			return
		}
		w.tell("run %d of %s begins in %s", e.claimed.RunCount, e.order.unit, c.id)
		e.at = atWork
		w.trees[e.order.unit] = append(w.trees[e.order.unit], e)
	case atWork:
		w.run(c, e)
	case ended:
		w.finish(c, e)
	case spooled:
		c.spool = slices.DeleteFunc(c.spool, func(f store.Finish) bool { return f.RunID == e.finish.RunID })
		w.record(e)
		e.at = finished
	case finished:
		w.fell(e)
		w.drop(c, e)
	}
}

func (w *world) drop(c *proc, e *task) {
	c.tasks = slices.DeleteFunc(c.tasks, func(x *task) bool { return x == e })
}

// run is the end of a run by itself.
func (w *world) run(c *proc, e *task) {
	live := slices.Contains(w.trees[e.order.unit], e)
	switch {
	case !live: // a keeper ended it
		e.cause = work.ErrFenced
	case e.order.kills:
		w.tell("%s kills %s", e.order.unit, c.id)
		w.die(c)
		return
	case e.claimed.Failures+e.claimed.Waits < e.order.fails:
		e.ran.Result = backend.Result{Error: work.Fail(e.order.class, "planned")}
	default:
		e.ran.Result = backend.Result{Success: true, Output: "the answer"}
	}
	if w.flaw != releasedBeforeDead {
		w.fell(e)
	}
	e.at = ended
}

// finish decides what the run's end means, as a worker process does.
func (w *world) finish(c *proc, e *task) {
	e.finish = outcome(e.claimed, e.ran, e.cause, false)
	e.finish.Delay = 0 // there is no time in this world
	if w.flaw == shutdownIsFailure && errors.Is(e.cause, work.ErrShutdown) {
		e.finish.Losses, e.finish.Failures = 0, 1
	}
	if w.chance(50) { // Postgres is away
		c.spool, e.at = append(c.spool, e.finish), spooled
		return
	}
	w.record(e)
	if w.calm || !w.chance(20) { // else the answer is lost, and it is handed in again
		e.at = finished
	}
}

func (w *world) record(e *task) {
	w.tell("run %d of %s ends: %s", e.finish.Attempt, e.order.unit, e.finish.Status)
	w.books.finish(e.finish)
}

// handIn takes what a process that died had spooled.
func (w *world) handIn(c *proc) {
	if !c.up || c.frozen || len(c.spool) == 0 {
		return
	}
	f := c.spool[0]
	if slices.ContainsFunc(c.tasks, func(e *task) bool { return e.finish.RunID == f.RunID }) {
		return
	}
	w.books.finish(f)
	c.spool = c.spool[1:]
}

// judge looks at what came of it.
func (w *world) judge() {
	for _, o := range w.orders {
		p := w.books.page(o.unit)
		if !p.State.Final() {
			w.broken("unit %s is %s in the end", o.unit, p.State)
			continue
		}
		counts := map[work.RunStatus]int{}
		for i, r := range p.Runs {
			counts[r.Status]++
			if r.Attempt != i+1 || r.Status == work.RunRunning {
				w.broken("run %d of %s is number %d and %s", i+1, o.unit, r.Attempt, r.Status)
			}
		}
		if p.RunCount != len(p.Runs) {
			w.broken("unit %s counts %d runs and has %d", o.unit, p.RunCount, len(p.Runs))
		}
		if n := counts[work.RunSucceeded]; n > 1 || (n == 1) != (p.State == work.Succeeded) || n == 1 &&
			p.Runs[len(p.Runs)-1].Status != work.RunSucceeded {
			w.broken("unit %s has %s, and %d of its runs succeeded", o.unit, p.State, n)
		}
		if p.State == work.Succeeded && p.Result != "the answer" {
			w.broken("unit %s has the result %q", o.unit, p.Result)
		}
		if p.Failures+p.Waits != counts[work.RunFailed] ||
			p.Losses != counts[work.RunLost]+counts[work.RunFenced]+counts[work.RunReleased] {
			w.broken("unit %s counts %d failures, %d waits, %d losses: its runs %v", o.unit, p.Failures, p.Waits, p.Losses, counts)
		}
		w.verdict(o, p)
	}
	for unit, live := range w.trees {
		if len(live) > 0 {
			w.broken("a tree of %s lives on", unit)
		}
	}
}

// verdict compares a unit's end with what was to be expected.
func (w *world) verdict(o *order, p page) {
	killed := len(p.Runs) >= work.MaxCrashes && !slices.ContainsFunc(p.Runs[max(0, len(p.Runs)-work.MaxCrashes):], func(l line) bool {
		return l.Status != work.RunLost && l.Status != work.RunFenced
	})
	most := min(o.fails, work.DefaultMaxRetries+1)
	if o.class == work.ClassRateLimit {
		most = 0
	}
	switch {
	case p.State == work.Cancelled:
		if !o.asked {
			w.broken("unit %s was cancelled by nobody", o.unit)
		}
	case p.State == work.Failed && p.Class == work.ClassCrash && killed: // three deaths
	case o.kills:
		w.broken("unit %s, which kills, has %s after %v", o.unit, p.State, p.Runs)
	case p.State == work.Failed && p.Failures != work.DefaultMaxRetries+1:
		w.broken("unit %s has failed after %d failures", o.unit, p.Failures)
	case p.State == work.Succeeded && p.Failures+p.Waits < o.fails:
		w.broken("unit %s has succeeded after %d failures", o.unit, p.Failures)
	}
	if p.Failures > most {
		w.broken("unit %s counts %d failures, and %d were its own", o.unit, p.Failures, most)
	}
	if o.kills && p.RunCount > 12*work.MaxCrashes {
		w.broken("unit %s had %d runs to kill in", o.unit, p.RunCount)
	}
	if o.asked && p.RunCount > o.runs {
		w.broken("unit %s ran again after its cancel", o.unit)
	}
}

const modelSteps = 250

// playSeed returns what a seed finds broken.
func playSeed(seed uint64, f flaw, tell func(string, ...any)) []string {
	w := newWorld(seed, f, tell)
	w.play(modelSteps)
	return w.found
}

func silent(string, ...any) {}

// TestModel plays many seeds, and one that is named aloud.
func TestModel(t *testing.T) {
	if *modelSeed != 0 {
		playSeed(*modelSeed, noFlaw, t.Logf)
		return
	}
	t.Parallel()
	for seed := uint64(1); seed <= *modelSeeds; seed++ {
		if found := playSeed(seed, noFlaw, silent); len(found) > 0 {
			t.Fatalf("seed %d: %s\nplay it again: go test ./handlers -run TestModel$ -v -model-seed %d", seed, strings.Join(found, "\n"), seed)
		}
	}
}

// What finds nothing proves nothing: each planted flaw must be found.
func TestModelFindsFlaws(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		flaw  flaw
		words string
	}{
		{"no fence", noFence, " went from "},
		{"no reconciler", noReconciler, " in the end"},
		{"released before the tree is dead", releasedBeforeDead, " live trees"},
		{"key ignored", keyIgnored, "the key of "},
		{"lease not watched", leaseNotWatched, " live trees"},
		{"begun under a lapsed lease", lateStart, " live trees"},
		{"cancel forgotten", cancelForgotten, " after the cancel"},
		{"shutdown counts as failure", shutdownIsFailure, " failures"},
		{"no end of poison", noPoison, " in the end"},
		{"a running unit is claimed", claimTakesRunning, " live trees"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for seed := uint64(1); seed <= 500; seed++ {
				for _, what := range playSeed(seed, test.flaw, silent) {
					if strings.Contains(what, test.words) {
						t.Logf("seed %d: %s", seed, what)
						return
					}
				}
			}
			t.Error("not found by 500 seeds")
		})
	}
}

// TestModelAgreesWithPostgres plays some seeds on both ledgers and compares
// them after each step.
func TestModelAgreesWithPostgres(t *testing.T) {
	t.Parallel()
	real := newPostgres(t, testkit.DB(t, migrate))
	for _, seed := range []uint64{1, 2, 3, 5, 166} { // in the last a claim is repeated after its run was given up
		w := newWorld(seed, noFlaw, silent)
		x := &both{t: t, a: w.books, b: real, met: map[string]int{}}
		w.books = x
		w.play(modelSteps)
		for _, what := range w.found {
			t.Errorf("seed %d: %s", seed, what)
		}
		t.Logf("seed %d: %d calls, the same answers; claims (claimed, suspect): %v", seed, x.calls, x.met)
	}
}
