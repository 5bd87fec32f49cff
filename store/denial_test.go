package store

import (
	"strings"
	"testing"

	"piecework/internal/work"
)

// Denials are counted on the run and on the unit, as cost is: over all runs, once,
// also of one that comes too late. What nobody counted is unknown.
func TestDenialsAreCounted(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	with := func(n int) func(*Finish) { return func(f *Finish) { f.Denials = &n } }
	c := l.run()
	if u := l.unit(c.ID); u.Denials != nil || u.OnDenied != work.OnDeniedFail || l.theRun(c.RunID).Denials != nil {
		t.Errorf("before the end: %v, %q", u.Denials, u.OnDenied)
	}
	l.end(ending(c, work.Queued, with(2)), Recorded)
	l.exec(`UPDATE work_units SET not_before = NULL`)
	again := l.take(c.ID, l.process)
	l.end(ending(again, work.Queued), Recorded) // by a worker process that does not count
	l.exec(`UPDATE work_units SET not_before = NULL`)
	l.end(ending(l.take(c.ID, l.process), work.Succeeded, with(1)), Recorded)
	if u := l.unit(c.ID); u.Denials == nil || *u.Denials != 3 || *l.theRun(c.RunID).Denials != 2 || l.theRun(again.RunID).Denials != nil {
		t.Errorf("unit %v", u.Denials)
	}
	late := l.run()
	l.lose(late)
	for range 2 {
		l.end(ending(late, work.Succeeded, with(3)), Fenced)
	}
	if u := l.unit(late.ID); u.Denials == nil || *u.Denials != 3 {
		t.Errorf("of a run that came late: %v", u.Denials)
	}
	none := l.run()
	l.end(ending(none, work.Succeeded, with(0)), Recorded)
	if u := l.unit(none.ID); u.Denials == nil || *u.Denials != 0 {
		t.Errorf("of a run without any: %v", u.Denials)
	}
}

// A batch counts the units in which a tool was denied, and may stop for them.
func TestBatchStopsForDenials(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	tenth := 0.1
	id := l.batch(20, func(b *NewBatch) {
		b.Concurrency, b.StopWhen = 10, &work.StopWhen{Window: 10, DenialRate: &tenth}
	})
	for i, d := range l.advance(id).Messages {
		denials := max(0, i-7) // two of ten
		l.end(ending(l.take(d.UnitID, l.process), work.Succeeded, func(f *Finish) { f.Denials = &denials }), Recorded)
	}
	more, b := l.advance(id).Messages, l.read(id)
	if len(more) > 0 || b.Paused == nil || !strings.Contains(b.Paused.Why, "denied in 2 of the last 10 units") || b.Counts.Denied != 2 || b.Counts.Total != 20 {
		t.Errorf("%d let go, paused %+v, counts %+v", len(more), b.Paused, b.Counts)
	}
}

// A retry may say that denials are only to be noted.
func TestRetryChangesOnDenied(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id, note := l.endAs(work.ClassToolDenied), work.OnDeniedNote
	if _, err := l.Units.Retry(t.Context(), work.DefaultTenant, id, Changes{OnDenied: &note}); err != nil {
		t.Fatal(err)
	}
	if u := l.unit(id); u.OnDenied != work.OnDeniedNote || u.State != work.Queued {
		t.Errorf("%s, %q", u.State, u.OnDenied)
	}
}
