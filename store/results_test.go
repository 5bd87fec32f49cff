package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

func TestBatchFigures(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.batch(8, func(b *NewBatch) { b.Title = "letters" })
	other := l.batch(2)
	before, err := l.Batches.Heads(t.Context())
	if l.must(err); before[id] == "" || before[other] == "" {
		t.Errorf("heads: %v", before)
	}
	bells := l.advance(id).Messages
	l.works(bells[:5], func(i int) bool { return i < 3 }, 0.5)
	l.exec(`UPDATE work_units SET error_class = 'crash', error_message = 'killed' WHERE id = $1`, bells[0].UnitID)

	groups, err := l.Batches.Failures(t.Context(), id, 100)
	if l.must(err); len(groups) != 2 || groups[0] != (BatchFailure{work.ClassRefusal, 2, work.NewCost(1, 0), "no"}) ||
		groups[1] != (BatchFailure{work.ClassCrash, 1, work.NewCost(0.5, 0), "killed"}) {
		t.Errorf("failures: %+v", groups)
	}
	if groups, err = l.Batches.Failures(t.Context(), id, 1); err != nil || len(groups) != 1 || groups[0].Count != 1 {
		t.Errorf("one failure: %+v %v", groups, err)
	}
	pace, err := l.Batches.Pace(t.Context(), work.DefaultTenant, id, time.Hour)
	if l.must(err); pace.Finished != 5 || pace.Seconds <= 0 || pace.Seconds > 600 {
		t.Errorf("pace: %+v", pace)
	}
	l.exec(`UPDATE batches SET resumed_at = clock_timestamp() WHERE id = $1`, id)
	if pace, err = l.Batches.Pace(t.Context(), work.DefaultTenant, id, time.Hour); err != nil || pace.Finished != 0 {
		t.Errorf("since it goes on again: %+v %v", pace, err)
	}
	after, err := l.Batches.Heads(t.Context())
	if l.must(err); after[id] == before[id] || after[other] != before[other] {
		t.Errorf("heads: %v, %v", before, after)
	}

	if title, err := l.Batches.Title(t.Context(), work.DefaultTenant, id); err != nil || title != "letters" {
		t.Errorf("title: %q %v", title, err)
	}
	if _, err := l.Batches.Title(t.Context(), work.DefaultTenant, uuid.New()); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("title of none: %v", err)
	}
	counts, err := l.Batches.Count(t.Context(), BatchFilter{Tenant: work.DefaultTenant}, 100)
	if l.must(err); counts[work.BatchInProgress] != 2 || len(counts) != 1 {
		t.Errorf("counts: %v", counts)
	}
	l.works(bells[5:], nil, 0)
	l.advance(id)
	if counts, err = l.Batches.Count(t.Context(), BatchFilter{Tenant: work.DefaultTenant}, 1); err != nil ||
		counts[work.BatchInProgress] != 1 || len(counts) != 1 {
		t.Errorf("counts of the newest: %v %v", counts, err)
	}
	if late, err := l.Batches.Heads(t.Context()); err != nil || late[id] == "" || late[id] == after[id] {
		t.Errorf("head of a batch that has just ended: %v %v", late, err)
	}
}
