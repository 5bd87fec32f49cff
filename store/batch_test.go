package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// batch adds a batch of n units, filled some at a time, and lets it begin.
func (l *fixture) batch(n int, change ...func(*NewBatch)) uuid.UUID {
	l.t.Helper()
	id := l.enumerating(change...)
	for from := 0; from < n; from += 100 {
		l.fillMore(id, from, min(from+100, n))
	}
	l.must(l.Batches.FinishEnumeration(l.t.Context(), id, l.process))
	return id
}

func (l *fixture) enumerating(change ...func(*NewBatch)) uuid.UUID {
	l.t.Helper()
	b := NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "a batch", Protocol: work.ProtocolNative}}
	for _, f := range change {
		f(&b)
	}
	_, _, err := l.Batches.Add(l.t.Context(), b)
	l.must(err)
	f, err := l.Batches.ClaimEnumeration(l.t.Context(), l.process)
	l.must(err)
	if f == nil || f.ID != b.ID {
		l.t.Fatalf("was given %v to fill", f)
	}
	return b.ID
}

// piece is a piece of a batch that is refused when the batch has a custom id of it.
func piece(batch uuid.UUID, from, to int) (f Chunk) {
	f = Chunk{Batch: batch, Cursor: json.RawMessage(fmt.Sprint(to)), Begun: func() {},
		BeforeCommit: func(_ context.Context, repeated []string) ([]work.BatchProblem, error) {
			if len(repeated) > 0 {
				return nil, fmt.Errorf("repeated: %v", repeated)
			}
			return nil, nil
		}}
	for i := from; i < to; i++ {
		f.Units = append(f.Units, newUnit(func(n *NewUnit) { n.BatchID, n.CustomID, n.Held = &batch, fmt.Sprint("c", i), true }))
	}
	return f
}

func (l *fixture) fillMore(batch uuid.UUID, from, to int) {
	l.t.Helper()
	f := piece(batch, from, to)
	f.Process = l.process
	l.must(l.Batches.AddChunk(l.t.Context(), f))
}

func (l *fixture) advance(batch uuid.UUID) Advanced {
	l.t.Helper()
	a, err := l.Batches.Advance(l.t.Context(), batch)
	l.must(err)
	return a
}

func (l *fixture) read(batch uuid.UUID) work.Batch {
	l.t.Helper()
	b, err := l.Batches.Get(l.t.Context(), work.DefaultTenant, batch)
	l.must(err)
	if c := b.Counts; c.Total != c.Queued+c.Running+c.Waiting+c.Finished() {
		l.t.Errorf("counts do not add up: %+v", c)
	}
	return b
}

func (l *fixture) is(batch uuid.UUID, status work.BatchStatus) work.Batch {
	l.t.Helper()
	b := l.read(batch)
	if b.Status != status {
		l.t.Fatalf("the batch is %s (%+v), want %s", b.Status, b.Counts, status)
	}
	return b
}

// works runs the units that were let go to their end; fail chooses those that
// fail.
func (l *fixture) works(bells []Message, fail func(i int) bool, cost float64) {
	l.t.Helper()
	for i, d := range bells {
		c := l.take(d.UnitID, l.process)
		if c == nil {
			l.t.Fatalf("unit %s was let go and cannot be claimed", d.UnitID)
		}
		f := ending(c, work.Succeeded)
		if fail != nil && fail(i) {
			f = ending(c, work.Failed)
			f.Error = work.Fail(work.ClassRefusal, "no")
		}
		f.TotalCostUSD = &cost
		l.end(f, Recorded)
	}
}

func TestBatchRunsToItsEnd(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(2500)
	if a := l.advance(id); len(a.Messages) != work.BatchWindow {
		t.Fatalf("%d units were let go at once", len(a.Messages))
	} else {
		l.works(a.Messages[:5], nil, 0.5)
	}
	if a := l.advance(id); len(a.Messages) != 5 {
		t.Errorf("%d units were let go for 5 that ended", len(a.Messages))
	}
	b := l.is(id, work.BatchInProgress)
	if b.Counts.Succeeded != 5 || b.Counts.Total != 2500 || b.Counts.Known() != 2.5 {
		t.Errorf("%+v", b.Counts)
	}
	l.exec(`UPDATE work_units SET state = 'succeeded', finished_at = now(), started_at = now(), held = false WHERE batch_id = $1`, id)
	l.advance(id)
	l.is(id, work.BatchCompleted)
	if a := l.advance(id); a.Moved || a.More {
		t.Errorf("a batch that is over moved: %+v", a)
	}
}

// Units that begin alike are let go one after another, but a test takes those
// that were submitted first.
func TestUnitsThatBeginAlikeAreLetGoTogether(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for _, c := range []struct {
		first int
		want  string
	}{{0, "c0 c2 c4 c1"}, {4, "c0 c2 c1 c3"}} {
		id := l.enumerating(func(b *NewBatch) { b.Concurrency, b.TestFirst = 4, c.first })
		p := piece(id, 0, 6)
		p.Process = l.process
		for i := range p.Units {
			p.Units[i].StartOrder = 1 + i%2
		}
		l.must(l.Batches.AddChunk(t.Context(), p))
		l.must(l.Batches.FinishEnumeration(t.Context(), id, l.process))
		var got []string
		for _, d := range l.advance(id).Messages {
			u, err := l.Units.Get(t.Context(), work.DefaultTenant, d.UnitID)
			l.must(err)
			got = append(got, u.CustomID)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("test_first %d: %v were let go, want %s", c.first, got, c.want)
		}
	}
}

// A held unit cannot begin, whoever rings for it and however.
func TestHeldUnitsDoNotBegin(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(3, func(b *NewBatch) { b.Concurrency = 1 })
	bells := l.advance(id).Messages
	if len(bells) != 1 {
		t.Fatalf("%d units were let go", len(bells))
	}
	units, _, err := l.Units.List(t.Context(), UnitFilter{Tenant: work.DefaultTenant, Batch: id})
	l.must(err)
	for _, u := range units {
		if u.ID == bells[0].UnitID {
			continue
		}
		again, err := l.Queues.Redispatch(t.Context(), []uuid.UUID{u.ID})
		if l.must(err); len(again) > 0 {
			t.Error("a held unit got a bell")
		}
		if c := l.take(u.ID, l.process); c != nil {
			t.Error("a held unit was claimed")
		}
	}
	_, err = l.Queues.RecheckAll(t.Context())
	l.must(err)
	if unchecked := l.unchecked(); len(unchecked) > 1 {
		t.Errorf("%d units are to be looked for", len(unchecked))
	}
	if due := l.due(); len(due) != 1 {
		t.Errorf("%d units are due", len(due))
	}
	if a := l.advance(id); len(a.Messages) != 0 {
		t.Error("more than the concurrency was let go")
	}
}

func TestBatchEnds(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	later := `{"prompt":"sum up"}`
	for _, c := range []struct {
		name   string
		change func(*NewBatch)
		fail   int
		status work.BatchStatus
	}{
		{"all succeed", func(*NewBatch) {}, 0, work.BatchCompleted},
		{"one fails", func(*NewBatch) {}, 1, work.BatchCompletedWithFailures},
		{"synthesis", func(b *NewBatch) { b.Synthesis = json.RawMessage(later) }, 0, work.BatchFinalizing},
		{"synthesis only of all", func(b *NewBatch) { b.Synthesis = json.RawMessage(later) }, 1, work.BatchCompletedWithFailures},
		{"synthesis despite failures", func(b *NewBatch) { b.Synthesis = json.RawMessage(`{"despite_failures":true}`) }, 1, work.BatchFinalizing},
		{"synthesis of nothing", func(b *NewBatch) { b.Synthesis = json.RawMessage(`{"despite_failures":true}`) }, 3, work.BatchCompletedWithFailures},
	} {
		id := l.batch(3, c.change)
		l.works(l.advance(id).Messages, func(i int) bool { return i < c.fail }, 0)
		l.advance(id)
		b := l.read(id)
		if b.Status != c.status || b.Counts.Failed != c.fail || b.Counts.Succeeded != 3-c.fail {
			t.Errorf("%s: %s %+v", c.name, b.Status, b.Counts)
		}
		if c.status != work.BatchFinalizing {
			continue
		}
		f, err := l.Batches.ClaimEnumeration(t.Context(), l.process)
		if l.must(err); f == nil || f.ID != id {
			t.Fatalf("%s: nobody is to prepare the synthesis", c.name)
		}
		u, err := l.Batches.Synthesize(t.Context(), id, l.process, newUnit(func(n *NewUnit) { n.IdempotencyKey = "synthesis " + id.String() }))
		l.must(err)
		l.advance(id)
		l.is(id, work.BatchFinalizing)
		l.works([]Message{MessageOf(u)}, nil, 0)
		l.advance(id)
		if b := l.read(id); !b.Status.Final() {
			t.Errorf("%s: %s after the synthesis", c.name, b.Status)
		}
	}
}

func TestBatchTestsFirst(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(10, func(b *NewBatch) { b.TestFirst = 3 })
	bells := l.advance(id).Messages
	if len(bells) != 3 {
		t.Fatalf("%d units were let go for a test of 3", len(bells))
	}
	l.works(bells[:2], nil, 1)
	l.advance(id)
	l.is(id, work.BatchTesting)
	l.works(bells[2:], nil, 1)
	l.advance(id)
	l.is(id, work.BatchAwaitingApproval)
	if a := l.advance(id); len(a.Messages) > 0 {
		t.Error("units were let go without approval")
	}
	b, trial, err := l.Batches.GetTested(t.Context(), work.DefaultTenant, id)
	if l.must(err); trial.Finished != 3 || trial.Cost == nil || *trial.Cost != (Spread{3, 1, 0}) || trial.Left != 7 ||
		b.Counts != l.is(id, work.BatchAwaitingApproval).Counts {
		t.Errorf("%+v %+v", trial, b.Counts)
	}
	if _, err := l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{}); !errors.Is(err, work.ErrConflict) {
		t.Errorf("resume of a batch that waits for approval: %v", err)
	}
	_, err = l.Batches.Approve(t.Context(), work.DefaultTenant, id, BatchChanges{})
	l.must(err)
	l.works(l.advance(id).Messages, nil, 1)
	l.advance(id)
	l.is(id, work.BatchCompleted)

	small := l.batch(2, func(b *NewBatch) { b.TestFirst = 3 })
	l.works(l.advance(small).Messages, nil, 0)
	l.advance(small)
	l.is(small, work.BatchCompleted) // nobody is asked about nothing
}

func TestBatchPausesAndGoesOn(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(30)
	bells := l.advance(id).Messages
	l.works(bells[:4], nil, 0)
	running := l.take(bells[4].UnitID, l.process)
	_, err := l.Batches.Pause(t.Context(), work.DefaultTenant, id, "ann", "too dear")
	l.must(err)
	b := l.is(id, work.BatchInProgress)
	if b.Paused == nil || b.Paused.By != "ann" || b.Paused.Why != "too dear" {
		t.Errorf("paused: %+v", b.Paused)
	}
	if c := l.take(bells[5].UnitID, l.process); c != nil {
		t.Error("a unit of a paused batch began")
	}
	l.end(ending(running, work.Succeeded), Recorded)
	if a := l.advance(id); len(a.Messages) > 0 {
		t.Error("units of a paused batch were let go")
	}
	_, err = l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{})
	l.must(err)
	bells = l.advance(id).Messages
	if len(bells) != 25 {
		t.Fatalf("%d units were let go after the resume", len(bells))
	}
	l.works(bells, nil, 0)
	l.advance(id)
	l.is(id, work.BatchCompleted)
}

func TestBatchKeepsToItsBudget(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	budget := 5.0
	id := l.batch(100, func(b *NewBatch) { b.MaxCostUSD = &budget })
	for rounds := 0; ; rounds++ {
		a := l.advance(id)
		l.works(a.Messages, nil, 0.5)
		if len(a.Messages) == 0 {
			break
		}
	}
	b := l.is(id, work.BatchInProgress)
	if b.Counts.Known() != 5 || b.Paused == nil || b.Paused.By != work.BySystem || !strings.Contains(b.Paused.Why, "budget") {
		t.Errorf("%+v %+v", b.Counts, b.Paused)
	}
	budget = 6
	_, err := l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{MaxCostUSD: &budget})
	l.must(err)
	if a := l.advance(id); len(a.Messages) != 2 {
		t.Errorf("%d units were let go for one more dollar", len(a.Messages))
	}
}

func TestBatchStopsWhenItGoesWrong(t *testing.T) {
	t.Parallel()
	half := 0.5
	for _, c := range []struct {
		name string
		rule work.StopWhen
		fail func(int) bool
		cost float64
		why  string
	}{
		{"failures", work.StopWhen{Window: 10, FailureRate: &half}, func(i int) bool { return i%3 < 2 }, 0, "failure_rate"},
		{"refusals", work.StopWhen{Window: 10, RefusalRate: &half}, func(i int) bool { return i%3 < 2 }, 0, "refusal_rate"},
		{"cost", work.StopWhen{Window: 10, MeanCostUSD: &half}, nil, 0.6, "mean_cost_usd"},
		{"all is well", work.StopWhen{Window: 10, FailureRate: &half, RefusalRate: &half, MeanCostUSD: &half},
			func(i int) bool { return i%2 == 0 }, 0.5, ""},
		{"too few to tell", work.StopWhen{Window: 13, FailureRate: &half}, func(int) bool { return true }, 0, ""},
	} {
		l := newFixture(t)
		id := l.batch(40, func(b *NewBatch) { b.Concurrency, b.StopWhen = 12, &c.rule })
		l.works(l.advance(id).Messages, c.fail, c.cost)
		more := l.advance(id).Messages
		b := l.read(id)
		if c.why == "" {
			if b.Paused != nil || len(more) != 12 {
				t.Errorf("%s: paused: %+v, %d let go", c.name, b.Paused, len(more))
			}
			continue
		}
		if len(more) > 0 || b.Paused == nil || !strings.Contains(b.Paused.Why, c.why) {
			t.Errorf("%s: %d let go, paused %+v", c.name, len(more), b.Paused)
		}
		_, err := l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{})
		l.must(err)
		if more := l.advance(id).Messages; len(more) != 12 { // what was seen before a person said so does not count
			t.Errorf("%s: %d let go after the resume", c.name, len(more))
		}
	}
}

func TestBatchIsCancelled(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(cancelChunk + 100)
	running := l.take(l.advance(id).Messages[0].UnitID, l.process)
	_, err := l.Batches.Cancel(t.Context(), work.DefaultTenant, id, "no need")
	l.must(err)
	stopped := 0
	for a := l.advance(id); a.More; a = l.advance(id) {
		stopped += len(a.Stopped)
	}
	l.is(id, work.BatchCancelling)
	l.end(ending(running, work.Cancelled), Recorded)
	l.advance(id)
	b := l.is(id, work.BatchCancelled)
	if stopped != cancelChunk+100 || b.Counts.Cancelled != stopped || b.Why != "no need" {
		t.Errorf("%d stopped, %+v, %q", stopped, b.Counts, b.Why)
	}
	again, err := l.Batches.Cancel(t.Context(), work.DefaultTenant, id, "")
	if l.must(err); again.Status != work.BatchCancelled {
		t.Errorf("cancelled again it is %s", again.Status)
	}
}

func TestRetryBeginsABatchAgain(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(3)
	l.works(l.advance(id).Messages, func(i int) bool { return i == 0 }, 0)
	l.advance(id)
	l.is(id, work.BatchCompletedWithFailures)
	moved, more, err := l.Batches.Retry(t.Context(), work.DefaultTenant, id, nil)
	if l.must(err); len(moved) != 1 || more {
		t.Fatalf("%d units are retried", len(moved))
	}
	l.advance(id)
	l.is(id, work.BatchInProgress)
	l.works([]Message{moved[0].Message}, nil, 0)
	l.advance(id)
	l.is(id, work.BatchCompleted)
}

// A process that fills a batch is missed soon when it dies: with the look once a
// second another goes on within three. One that lives keeps its batch, and one
// that met an error leaves it to others after a pause.
func TestFillingIsHeldShortly(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.enumerating()
	left := func() float64 {
		t.Helper()
		return get[float64](l, `SELECT extract(epoch FROM fill_until - clock_timestamp())::double precision FROM batches`)
	}
	if s := left(); s <= 0 || s > 2 {
		t.Errorf("a batch is held for %v s", s)
	}
	l.fillMore(id, 0, 10)
	if s := left(); s <= 0 || s > 2 {
		t.Errorf("after a piece a batch is held for %v s", s)
	}
	l.exec(`UPDATE batches SET fill_until = clock_timestamp() - interval '1 second'`)
	l.must(l.Batches.RenewEnumeration(t.Context(), id, l.process)) // late, and nobody has come
	if s := left(); s <= 0 || s > 2 {
		t.Errorf("kept, a batch is held for %v s", s)
	}
	other := uuid.New()
	if err := l.Batches.RenewEnumeration(t.Context(), id, other); !errors.Is(err, work.ErrConflict) {
		t.Errorf("another keeps it: %v", err)
	}
	l.must(l.Batches.LeaveEnumeration(t.Context(), id, other, 0)) // it is not its to leave
	l.must(l.Batches.LeaveEnumeration(t.Context(), id, l.process, time.Minute))
	if f, err := l.Batches.ClaimEnumeration(t.Context(), other); err != nil || f != nil {
		t.Errorf("taken in the pause: %v %v", f, err)
	}
	if err := l.Batches.RenewEnumeration(t.Context(), id, l.process); !errors.Is(err, work.ErrConflict) {
		t.Errorf("who left keeps it: %v", err)
	}
	l.exec(`UPDATE batches SET fill_until = clock_timestamp()`)
	f, err := l.Batches.ClaimEnumeration(t.Context(), other)
	if l.must(err); f == nil {
		t.Error("nobody goes on after the pause")
	}
	l.must(l.Batches.FinishEnumeration(t.Context(), id, other))
	if err := l.Batches.RenewEnumeration(t.Context(), id, other); !errors.Is(err, work.ErrConflict) {
		t.Errorf("kept although it is filled: %v", err)
	}
}

// Whoever goes on with an enumeration after a death makes nothing twice, and
// who was thought dead makes nothing more.
func TestFillingGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.enumerating()
	l.fillMore(id, 0, 50)
	other := uuid.New()
	if f, err := l.Batches.ClaimEnumeration(t.Context(), other); err != nil || f != nil {
		t.Fatalf("two fill a batch: %v %v", f, err)
	}
	l.exec(`UPDATE batches SET fill_until = now() - interval '1 second'`)
	f, err := l.Batches.ClaimEnumeration(t.Context(), other)
	if l.must(err); f == nil || string(f.Cursor) != "50" {
		t.Fatalf("it goes on at %+v", f)
	}
	late := piece(id, 50, 60)
	late.Process = l.process
	if err := l.Batches.AddChunk(t.Context(), late); !errors.Is(err, work.ErrConflict) {
		t.Errorf("who lost the batch added to it: %v", err)
	}
	twice := piece(id, 45, 55)
	twice.Process = other
	twice.Units = append(twice.Units, twice.Units[9])
	twice.Units[10].ID = uuid.Must(uuid.NewV7())
	if err := l.Batches.AddChunk(t.Context(), twice); err == nil || err.Error() != "repeated: [c45 c46 c47 c48 c49 c54]" {
		t.Errorf("%v", err)
	}
	if b := l.read(id); b.Counts.Total != 50 {
		t.Errorf("%d units", b.Counts.Total)
	}
	l.must(l.Batches.FailEnumeration(t.Context(), id, other, "line 3 is no JSON", []work.BatchProblem{{Line: 3, Detail: "no JSON"}}))
	b := l.is(id, work.BatchFailed)
	if b.Counts.Total != 0 || b.Rejected != 1 || b.Problems[0].Line != 3 {
		t.Errorf("%+v %+v", b.Counts, b.Problems)
	}
	if n := get[int](l, `SELECT count(*) FROM work_units`); n != 0 {
		t.Errorf("%d units of a batch that failed", n)
	}
}

func TestBatchIsAddedOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	add := func(key, body string) (work.Batch, bool, error) {
		return l.Batches.Add(t.Context(), NewBatch{Batch: work.Batch{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant,
			Protocol: work.ProtocolNative},
			IdempotencyKey: key, BodyHash: []byte(body)})
	}
	first, replayed, err := add("k", "one")
	if l.must(err); replayed {
		t.Error("the first is a replay")
	}
	if again, replayed, err := add("k", "one"); err != nil || !replayed || again.ID != first.ID {
		t.Errorf("again: %v %t %v", again.ID, replayed, err)
	}
	if _, _, err := add("k", "two"); !errors.Is(err, ErrKeyReused) {
		t.Errorf("another body: %v", err)
	}
}

// However many look at a batch at once, no unit is let go twice, none is
// forgotten, and it ends once.
func TestManyAdvanceABatch(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(40, func(b *NewBatch) { b.Concurrency = 8 })
	var mu sync.Mutex
	bells, ends := map[uuid.UUID]int{}, 0
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for !l.read(id).Status.Final() {
				a, err := l.Batches.Advance(t.Context(), id)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, b := range a.Messages {
					bells[b.UnitID]++
				}
				if a.Moved {
					ends++
				}
				mu.Unlock()
				l.works(a.Messages, nil, 0)
			}
		})
	}
	all.Wait()
	b := l.is(id, work.BatchCompleted)
	if len(bells) != 40 || b.Counts.Succeeded != 40 || ends != 1 {
		t.Errorf("%d units were let go, %d succeeded, it ended %d times", len(bells), b.Counts.Succeeded, ends)
	}
	for unit, n := range bells {
		if n != 1 {
			t.Errorf("unit %s was let go %d times", unit, n)
		}
	}
}

// What came from the provider's prompt cache is told when the batch is over.
func TestPromptCacheOfABatch(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(4)
	for i, d := range l.advance(id).Messages {
		f := ending(l.take(d.UnitID, l.process), work.Succeeded)
		if f.Usage = (work.Usage{InputTokens: 100, OutputTokens: 9}); i > 0 {
			f.Usage.CacheReadTokens = 300
		} else {
			f.Usage.CacheCreationTokens = 300
		}
		l.end(f, Recorded)
	}
	if c := l.read(id).Counts; c.PromptCacheHitRate != nil {
		t.Errorf("told before the end: %v", *c.PromptCacheHitRate)
	}
	l.advance(id)
	b := l.is(id, work.BatchCompleted)
	if hits := b.Counts.PromptCacheHitRate; hits == nil || *hits != 900.0/1600 {
		t.Errorf("%+v", b.Counts)
	}
	none := l.batch(1)
	l.works(l.advance(none).Messages, nil, 0)
	l.exec(`UPDATE worker_runs SET input_tokens = 0, cache_read_tokens = 0, cache_creation_tokens = 0`)
	l.advance(none)
	if c := l.is(none, work.BatchCompleted).Counts; c.PromptCacheHitRate != nil {
		t.Errorf("told of no input: %v", *c.PromptCacheHitRate)
	}
}

func TestBatchResults(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(250)
	l.works(l.advance(id).Messages, func(i int) bool { return i == 7 }, 0.25)
	l.exec(`UPDATE work_units SET prompt = '', request = '{"endpoint":"/v1/responses","body":{"model":"m"}}' WHERE custom_id = 'c8'`)
	var got []string
	l.must(l.Batches.Results(t.Context(), id, []work.State{work.Succeeded, work.Failed}, func(r BatchResult) error {
		got = append(got, r.CustomID)
		if want := map[bool]string{true: "{}"}[r.CustomID == "c8"]; string(r.Request) != want { // there is one, and what is in it was not read
			t.Errorf("%s: request %s", r.CustomID, r.Request)
		}
		if r.CustomID == "c8" && (r.Output == nil || *r.Output != "the answer") {
			t.Errorf("%+v", r)
		}
		return nil
	}))
	if len(got) != 250 || got[0] != "c0" || got[249] != "c249" {
		t.Errorf("%d results, from %v", len(got), got[:min(3, len(got))])
	}
}

func TestBatches(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	var ids []uuid.UUID
	for range 5 {
		ids = append(ids, l.batch(1))
	}
	page, next, err := l.Batches.List(t.Context(), BatchFilter{Tenant: work.DefaultTenant, Limit: 2})
	if l.must(err); len(page) != 2 || page[0].ID != ids[4] || next == nil {
		t.Fatalf("%d, %v", len(page), next)
	}
	page, _, err = l.Batches.List(t.Context(), BatchFilter{Tenant: work.DefaultTenant, Before: ids[1], Limit: 2})
	if l.must(err); len(page) != 2 || page[0].ID != ids[3] || page[1].ID != ids[2] {
		t.Errorf("before: %d", len(page))
	}
	if page[0].Counts.Total != 1 {
		t.Errorf("%+v", page[0].Counts)
	}
}
