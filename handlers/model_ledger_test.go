package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// books is what the model asks of a store. There is one in memory, the real
// one, and both at once, which compares them.
type books interface {
	accept(store.NewUnit) (unit uuid.UUID)
	claim(store.Claim) (*store.Claimed, error)
	finish(store.Finish) store.Verdict
	cancel(unit uuid.UUID)
	heartbeat(process uuid.UUID) []store.Owned
	lapse(process uuid.UUID) // its lease runs out
	expire()
	page(unit uuid.UUID) page
}

// page is what a store says of a unit.
type page struct {
	State                                                   work.State
	Runs                                                    []line
	RunCount, Failures, Losses, Waits, Crashes, Deaths, Dis int
	Asked                                                   bool // to stop
	Result                                                  string
	Class                                                   work.Class
}

type line struct {
	ID      uuid.UUID
	Attempt int
	Status  work.RunStatus
}

// flaw is a bug planted in the model.
type flaw int

const (
	noFlaw flaw = iota
	noFence
	noReconciler
	releasedBeforeDead
	keyIgnored
	leaseNotWatched
	lateStart
	cancelForgotten
	shutdownIsFailure
	noPoison
	claimTakesRunning
)

// book is the store in memory. It has the guards of store's statements.
type book struct {
	flaw   flaw
	units  map[uuid.UUID]*entry
	order  []*entry
	keys   map[string]*entry
	leases map[uuid.UUID]bool // by process: not run out
	broken func(format string, args ...any)
}

type entry struct {
	store.NewUnit
	runs   []*run
	result string
	class  work.Class
}

type run struct {
	line
	process uuid.UUID
	givenUp bool
}

func newBook(f flaw, broken func(string, ...any)) *book {
	return &book{flaw: f, units: map[uuid.UUID]*entry{}, keys: map[string]*entry{}, leases: map[uuid.UUID]bool{}, broken: broken}
}

// move changes a unit's state, by the one table of moves.
func (b *book) move(e *entry, to work.State) {
	if !work.CanMove(e.State, to) {
		b.broken("unit %s went from %s to %s", e.ID, e.State, to)
	}
	if e.State = to; to == work.Queued {
		e.Dispatch++
	}
}

func (b *book) accept(n store.NewUnit) uuid.UUID {
	if first := b.keys[n.IdempotencyKey]; first != nil && b.flaw != keyIgnored {
		return first.ID
	}
	e := &entry{NewUnit: n}
	e.State, e.Dispatch = work.Queued, 1
	b.units[n.ID], b.keys[n.IdempotencyKey] = e, e
	b.order = append(b.order, e)
	return n.ID
}

func (b *book) claim(c store.Claim) (*store.Claimed, error) {
	e := b.units[c.UnitID]
	free := e.State == work.Queued || b.flaw == claimTakesRunning && e.State == work.Running
	if n := len(e.runs); n > 0 && e.runs[n-1].ID == c.RunID && e.runs[n-1].Status == work.RunRunning {
		return b.claimed(e, c), nil // its answer was lost
	}
	switch {
	case !free, e.find(c.RunID) != nil && (e.Deaths < work.SuspectDeaths || c.Alone):
		return nil, nil // the second was answered before, and its run given up since
	case e.Deaths >= work.SuspectDeaths && !c.Alone:
		return nil, store.ErrSuspect
	}
	if e.State == work.Queued {
		b.move(e, work.Running)
	}
	e.RunCount++
	e.runs = append(e.runs, &run{line: line{c.RunID, e.RunCount, work.RunRunning}, process: c.Process})
	return b.claimed(e, c), nil
}

func (b *book) claimed(e *entry, c store.Claim) *store.Claimed {
	return &store.Claimed{Unit: e.Unit, RunID: c.RunID, SessionID: c.SessionID}
}

func (e *entry) find(id uuid.UUID) *run {
	for _, r := range e.runs {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func (b *book) finish(f store.Finish) store.Verdict {
	e := b.units[f.UnitID]
	r := e.find(f.RunID)
	mine := e.State == work.Running && e.RunCount == f.Attempt && r.Status == work.RunRunning || b.flaw == noFence
	open := r.Status == work.RunRunning || r.Status == work.RunLost && r.givenUp
	next := f.Next
	if next == work.Queued && e.CancelRequestedAt != nil && b.flaw != cancelForgotten {
		next = work.Cancelled
	}
	switch {
	case mine:
		b.move(e, next)
		e.Failures, e.Losses, e.Waits, e.Crashes = e.Failures+f.Failures, e.Losses+f.Losses, e.Waits+f.Waits, e.Crashes+f.Crashes
		if e.Deaths, e.class = 0, ""; f.Error != nil {
			e.class = f.Error.Class
		}
		if next != work.Queued {
			e.result = f.Result
		}
		r.Status = f.Status
	case open:
		e.Deaths, r.Status = max(e.Deaths-1, 0), work.RunFenced
	case r.Status != work.RunFenced:
		return store.Recorded // a repeat
	}
	if mine {
		return store.Recorded
	}
	return store.Fenced
}

func (b *book) cancel(unit uuid.UUID) {
	e := b.units[unit]
	if e.State != work.Queued && e.State != work.Running {
		return
	}
	now := time.Now()
	e.CancelRequestedAt = &now
	if e.State == work.Queued {
		b.move(e, work.Cancelled)
	}
}

func (b *book) heartbeat(process uuid.UUID) (owned []store.Owned) {
	b.leases[process] = true
	for _, e := range b.order {
		for _, r := range e.runs {
			if r.process == process && r.Status == work.RunRunning {
				owned = append(owned, store.Owned{RunID: r.ID, UnitID: e.ID, Attempt: r.Attempt, Cancel: e.CancelRequestedAt != nil})
			}
		}
	}
	return owned
}

func (b *book) lapse(process uuid.UUID) { b.leases[process] = false }

func (b *book) expire() {
	if b.flaw == noReconciler {
		return
	}
	for _, e := range b.order {
		for _, r := range e.runs {
			if r.Status != work.RunRunning || b.leases[r.process] {
				continue
			}
			r.Status, r.givenUp = work.RunLost, true
			if e.State != work.Running || e.RunCount != r.Attempt {
				continue
			}
			e.Losses, e.Deaths = e.Losses+1, e.Deaths+1
			switch {
			case e.CancelRequestedAt != nil && b.flaw != cancelForgotten:
				b.move(e, work.Cancelled)
			case e.Deaths >= work.MaxCrashes && b.flaw != noPoison:
				b.move(e, work.Failed)
				e.class = work.ClassCrash
			default:
				b.move(e, work.Queued)
			}
			if e.State != work.Queued {
				e.Dispatch++ // as the statement does; nobody enqueues it
			}
		}
	}
}

func (b *book) page(unit uuid.UUID) page {
	e := b.units[unit]
	p := page{State: e.State, RunCount: e.RunCount, Failures: e.Failures, Losses: e.Losses, Waits: e.Waits, Crashes: e.Crashes,
		Deaths: e.Deaths, Dis: e.Dispatch, Asked: e.CancelRequestedAt != nil, Result: e.result, Class: e.class}
	for _, r := range e.runs {
		p.Runs = append(p.Runs, r.line)
	}
	return p
}

// postgres is the real store.
type postgres struct {
	t     testing.TB
	store *store.Store
	blob  []byte
}

func (p postgres) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p postgres) accept(n store.NewUnit) uuid.UUID {
	u, _, err := p.store.Units.Accept(p.t.Context(), n)
	p.must(err)
	return u.ID
}

func (p postgres) claim(c store.Claim) (*store.Claimed, error) {
	claimed, err := p.store.Runs.Claim(p.t.Context(), c)
	if !errors.Is(err, store.ErrSuspect) {
		p.must(err)
	}
	return claimed, err
}

func (p postgres) finish(f store.Finish) store.Verdict {
	f.Blob = p.blob
	verdict, err := p.store.Runs.Finish(p.t.Context(), f)
	p.must(err)
	return verdict
}

func (p postgres) cancel(unit uuid.UUID) {
	if _, err := p.store.Units.Cancel(p.t.Context(), work.DefaultTenant, unit); !errors.Is(err, work.ErrConflict) {
		p.must(err)
	}
}

func (p postgres) heartbeat(process uuid.UUID) []store.Owned {
	p.must(p.store.Processes.Register(p.t.Context(), work.Process{ID: process, Queues: []string{"default"}}, time.Hour))
	p.must(p.store.Processes.Heartbeat(p.t.Context(), process, time.Hour, 0, nil))
	news, err := p.store.Processes.Assignments(p.t.Context(), process)
	p.must(err)
	return news.Owned
}

func (p postgres) lapse(process uuid.UUID) {
	p.must(p.store.Processes.Heartbeat(p.t.Context(), process, -time.Second, 0, nil))
}

func (p postgres) expire() {
	_, err := p.store.Runs.ExpireLeases(p.t.Context())
	p.must(err)
}

func (p postgres) page(unit uuid.UUID) page {
	u, err := p.store.Units.Get(p.t.Context(), work.DefaultTenant, unit)
	p.must(err)
	runs, err := p.store.Runs.OfUnit(p.t.Context(), unit)
	p.must(err)
	g := page{State: u.State, RunCount: u.RunCount, Failures: u.Failures, Losses: u.Losses, Waits: u.Waits, Crashes: u.Crashes,
		Deaths: u.Deaths, Dis: u.Dispatch, Asked: u.CancelRequestedAt != nil}
	if u.Output != nil {
		g.Result = *u.Output
	}
	if u.Error != nil {
		g.Class = u.Error.Class
	}
	for _, r := range runs {
		g.Runs = append(g.Runs, line{r.ID, r.Attempt, r.Status})
	}
	return g
}

// both asks two ledgers the same and compares what they say.
type both struct {
	t     testing.TB
	a, b  books
	units []uuid.UUID
	calls int
	met   map[string]int // answers to claims
}

func (x *both) same(what string, a, b any) {
	x.t.Helper()
	x.calls++
	if !reflect.DeepEqual(a, b) {
		x.t.Fatalf("call %d, %s: the model says %+v, Postgres %+v", x.calls, what, a, b)
	}
	for _, id := range x.units {
		if a, b := x.a.page(id), x.b.page(id); !reflect.DeepEqual(a, b) {
			x.t.Fatalf("call %d, after %s: the model has\n%+v\nPostgres\n%+v", x.calls, what, a, b)
		}
	}
}

func (x *both) accept(n store.NewUnit) uuid.UUID {
	a, b := x.a.accept(n), x.b.accept(n)
	if a == n.ID {
		x.units = append(x.units, a)
	}
	x.same("accept", a, b)
	return a
}

func (x *both) claim(c store.Claim) (*store.Claimed, error) {
	a, errA := x.a.claim(c)
	b, errB := x.b.claim(c)
	say := func(c *store.Claimed, err error) string {
		return fmt.Sprint(c != nil, errors.Is(err, store.ErrSuspect))
	}
	x.same("claim", say(a, errA), say(b, errB))
	x.met[say(b, errB)]++
	return b, errB
}

func (x *both) finish(f store.Finish) store.Verdict {
	a, b := x.a.finish(f), x.b.finish(f)
	x.same("finish as "+string(f.Status), a, b)
	return a
}

func (x *both) cancel(unit uuid.UUID) {
	x.a.cancel(unit)
	x.b.cancel(unit)
	x.same("cancel", nil, nil)
}

func (x *both) heartbeat(process uuid.UUID) []store.Owned {
	a, b := x.a.heartbeat(process), x.b.heartbeat(process)
	byRun := func(owned []store.Owned) map[uuid.UUID]store.Owned {
		m := map[uuid.UUID]store.Owned{}
		for _, o := range owned {
			m[o.RunID] = o
		}
		return m
	}
	x.same("heartbeat", byRun(a), byRun(b))
	return a
}

func (x *both) lapse(process uuid.UUID) {
	x.a.lapse(process)
	x.b.lapse(process)
	x.same("lapse", nil, nil)
}

func (x *both) expire() {
	x.a.expire()
	x.b.expire()
	x.same("expire", nil, nil)
}

func (x *both) page(unit uuid.UUID) page { return x.a.page(unit) }

// newPostgres opens an empty store.
func newPostgres(t *testing.T, url string) postgres {
	s, err := store.Open(context.WithoutCancel(t.Context()), url, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	blob, err := s.Transcripts.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	return postgres{t: t, store: s, blob: blob}
}

var noPayload = json.RawMessage(`{}`)
