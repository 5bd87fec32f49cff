package store

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// unused are the units whose answers no run will use.
func (l *fixture) unused() (ids []uuid.UUID) {
	l.t.Helper()
	rows, err := l.ProviderBatches.UnusedAnswers(l.t.Context(), []string{"mock"}, 10)
	l.must(err)
	for _, r := range rows {
		ids = append(ids, r.UnitID)
	}
	return ids
}

// What a provider has answered is paid for, also when its unit was cancelled
// before a run: its cost is noted once, on the unit and on a batch that is over.
func TestUnusedAnswersAreCharged(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ctx := t.Context()
	cost := 0.25
	before, after, used := l.patient(), l.patient(), l.patient()
	b := l.packed(l.process)
	cancel := func(u work.Unit) {
		t.Helper()
		_, err := l.Units.Cancel(ctx, u.Tenant, u.ID)
		l.must(err)
	}
	answers := []ProviderAnswer{{UnitID: before.ID, Status: 200, Body: []byte("{}")}, {UnitID: after.ID, Status: 200, Body: []byte("{}")},
		{UnitID: used.ID, Status: 200, Body: []byte("{}")}}
	cancel(before)
	l.must(l.ProviderBatches.AddAnswers(ctx, b.ID, answers))
	l.must(l.ProviderBatches.AddAnswers(ctx, b.ID, answers)) // as another would after a death
	cancel(after)
	c := l.take(used.ID, l.process)
	l.end(ending(c, work.Succeeded), Recorded) // and the answer was not forgotten
	if ids := l.unused(); len(ids) != 0 {
		t.Errorf("%v while the batch may be read again", ids)
	}
	l.must(l.ProviderBatches.ChargeAnswer(ctx, before.ID, &cost))
	_, err := l.ProviderBatches.Finish(ctx, l.process, b.ID, nil)
	l.must(err)
	if ids := l.unused(); len(ids) != 2 || ids[0] != before.ID || ids[1] != after.ID {
		t.Errorf("unused are %v", ids)
	}
	for range 2 {
		l.must(l.ProviderBatches.ChargeAnswer(ctx, before.ID, &cost))
		l.must(l.ProviderBatches.ChargeAnswer(ctx, after.ID, nil))
		l.must(l.ProviderBatches.ChargeAnswer(ctx, used.ID, &cost))
		l.must(l.ProviderBatches.AddAnswers(ctx, b.ID, answers)) // by a process that was frozen meanwhile
	}
	if u := l.unit(before.ID); u.Known() != 0.25 || u.Unpriced != 0 || u.RunCount != 0 || u.State != work.Cancelled {
		t.Errorf("cancelled before its answer: %+v", u.Cost)
	}
	if u := l.unit(after.ID); u.Known() != 0 || u.Unpriced != 1 {
		t.Errorf("of unknown cost: %+v", u.Cost)
	}
	if u := l.unit(used.ID); u.Known() != 0 || u.Unpriced != 1 { // as its run
		t.Errorf("used by its run: %+v", u.Cost)
	}
	if n, err := l.Retention.PruneAnswers(ctx, 10); n != 1 || err != nil {
		t.Errorf("%d answers removed, error %v", n, err)
	}
}

// A unit that is retried, or that nobody looks at for a week, loses its answer: what
// that has cost is unknown.
func TestUnusedAnswersOfUnknownCost(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ctx := t.Context()
	retried, kept := l.patient(), l.patient()
	b := l.packed(l.process)
	l.must(l.ProviderBatches.AddAnswers(ctx, b.ID, []ProviderAnswer{{UnitID: retried.ID, Status: 200, Body: []byte("{}")},
		{UnitID: kept.ID, Status: 200, Body: []byte("{}")}}))
	for _, u := range []work.Unit{retried, kept} {
		_, err := l.Units.Cancel(ctx, u.Tenant, u.ID)
		l.must(err)
	}
	_, err := l.ProviderBatches.Finish(ctx, l.process, b.ID, nil)
	l.must(err)
	for range 2 {
		_, _ = l.Units.Retry(ctx, retried.Tenant, retried.ID, Changes{})
	}
	if u := l.unit(retried.ID); u.Unpriced != 1 || u.State != work.Waiting {
		t.Errorf("retried: %s, %+v", u.State, u.Cost)
	}
	if n, err := l.Retention.PruneAnswers(ctx, 10); n != 0 || err != nil {
		t.Errorf("%d answers removed at once, error %v", n, err)
	}
	l.exec(`UPDATE provider_answers SET answered_at = answered_at - $1 * interval '1 second'`, (answerKept + time.Hour).Seconds())
	for _, want := range []int{1, 0} {
		if n, err := l.Retention.PruneAnswers(ctx, 10); n != want || err != nil {
			t.Errorf("%d answers removed, want %d; error %v", n, want, err)
		}
	}
	if u := l.unit(kept.ID); u.Unpriced != 1 {
		t.Errorf("kept for a week: %+v", u.Cost)
	}
}

// The counts of a batch that was cancelled have the cost of answers that came
// afterwards.
func TestUnusedAnswerOfABatchThatIsOver(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	ctx := t.Context()
	id := l.laneBatch(2)
	b := l.packed(l.process)
	units, err := l.ProviderBatches.Units(ctx, b.ID, uuid.Nil, 10)
	l.must(err)
	_, err = l.Batches.Cancel(ctx, work.DefaultTenant, id, "")
	l.must(err)
	for range 2 {
		l.advance(id)
	}
	if over := l.read(id); over.Status != work.BatchCancelled || over.Counts.Known() != 0 {
		t.Fatalf("%s, %+v", over.Status, over.Counts)
	}
	l.must(l.ProviderBatches.AddAnswers(ctx, b.ID, []ProviderAnswer{{UnitID: units[0].ID, Status: 200, Body: []byte("{}")},
		{UnitID: units[1].ID, Status: 200, Body: []byte("{}")}}))
	_, err = l.ProviderBatches.Finish(ctx, l.process, b.ID, nil)
	l.must(err)
	cost := 0.25
	for range 2 {
		l.must(l.ProviderBatches.ChargeAnswer(ctx, units[0].ID, &cost))
		l.must(l.ProviderBatches.ChargeAnswer(ctx, units[1].ID, nil))
	}
	if c := l.read(id).Counts; c.Known() != 0.25 || c.Unpriced != 1 || c.Total != 2 || c.Cancelled != 2 {
		t.Errorf("%+v", c)
	}
}
