package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
)

// laneBatch is a batch of n units of the batch lane that were let go.
func (l *fixture) laneBatch(n int, change ...func(*NewBatch)) uuid.UUID {
	l.t.Helper()
	id := l.enumerating(change...)
	f := piece(id, 0, n)
	f.Process = l.process
	for i := range f.Units {
		f.Units[i].Lane = work.LaneBatch
	}
	l.must(l.Batches.AddChunk(l.t.Context(), f))
	l.must(l.Batches.FinishEnumeration(l.t.Context(), id, l.process))
	for l.advance(id).More {
	}
	return id
}

// Postgres refuses every combination of state, held, lane, provider batch and
// running live that no unit may be in, whatever the statement.
func TestWhereAUnitWaits(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.laneBatch(1)
	seen := map[string]bool{}
	for _, state := range []string{"queued", "running", "waiting"} {
		for i := range 32 {
			held, batch, member, packed, live := i&1 > 0, i&2 > 0, i&4 > 0, i&8 > 0, i&16 > 0
			lane := map[bool]string{false: "live", true: "batch"}[batch]
			_, err := l.db.ExecContext(t.Context(), `UPDATE work_units SET state = $1, held = $2, lane = $3,
				batch_id = CASE WHEN $4 THEN (SELECT id FROM batches) END, provider_batch = CASE WHEN $5 THEN gen_random_uuid() END, runs_live = $6,
				started_at = now()`, state, held, lane, member, packed, live)
			var refused *pq.Error
			if err != nil && (!errors.As(err, &refused) || refused.Constraint != "where_it_waits") {
				t.Fatal(err)
			}
			want := batch || !packed && !live
			switch state {
			case "queued":
				want = want && (!held || member && (!packed || live))
			case "waiting":
				want = want && batch && !held && !live
			case "running":
				want = want && !held
			}
			if got := err == nil; got != want {
				t.Errorf("%s, held %t, lane %s, member %t, packed %t, runs live %t: allowed %t", state, held, lane, member, packed, live, got)
			}
			seen[fmt.Sprint(state, want)] = true
		}
	}
	if len(seen) != 6 {
		t.Errorf("seen: %v", seen)
	}
}

// A pause keeps nothing from its answer: units that the provider has answered
// run, and what comes back without an answer runs live after the resume.
func TestPauseOfABatchInTheLane(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before the answers", "after the answers"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			l := newFixture(t)
			id := l.laneBatch(3)
			b := l.packed(l.process)
			units, err := l.ProviderBatches.Units(t.Context(), b.ID, uuid.Nil, 10)
			l.must(err)
			l.must(l.ProviderBatches.Sending(t.Context(), l.process, b.ID, 3))
			answer := func() {
				t.Helper()
				l.must(l.ProviderBatches.AddAnswers(t.Context(), b.ID,
					[]ProviderAnswer{{UnitID: units[0].ID, Status: 200, Body: []byte(`{}`)}}))
				_, err = l.ProviderBatches.Finish(t.Context(), l.process, b.ID, nil) // the others were not answered
				l.must(err)
				if when == "after the answers" {
					l.advance(id)
				}
			}
			if when == "after the answers" {
				answer()
			}
			_, err = l.Batches.Pause(t.Context(), work.DefaultTenant, id, "me", "")
			l.must(err)
			if when == "before the answers" {
				answer()
			}
			l.advance(id)
			if n := l.admitted(id); n != 1 {
				t.Errorf("%d units may run during the pause; want the one that is answered", n)
			}
			l.works([]Message{{UnitID: units[0].ID}}, nil, 0)
			_, err = l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{})
			l.must(err)
			bells := l.advance(id).Messages
			if len(bells) != 2 {
				t.Fatalf("%d units run live after the resume", len(bells))
			}
			l.works(bells, nil, 0)
			l.advance(id)
			l.is(id, work.BatchCompleted)
		})
	}
}

// Statements of the version before, which knows no runs_live, are either as good
// as they were or refused: none makes a unit wait for ever.
func TestOlderProcessesBesideTheLane(t *testing.T) {
	t.Parallel()
	const (
		goLiveBefore  = `UPDATE work_units u SET state = 'queued', dispatch = dispatch + 1, check_at = clock_timestamp() WHERE state = 'waiting'`
		releaseBefore = `UPDATE work_units u SET held = false, dispatch = dispatch + 1, state = CASE WHEN lane = 'batch' THEN 'waiting' ELSE 'queued' END,
			check_at = clock_timestamp() WHERE held AND state = 'queued'`
		pauseBefore = `UPDATE work_units SET held = true, check_at = 'infinity', state = 'queued'
			WHERE NOT held AND (state = 'queued' OR state = 'waiting' AND lane = 'batch' AND provider_batch IS NULL)`
	)
	try := func(l *fixture, query string, refused bool) {
		l.t.Helper()
		_, err := l.db.ExecContext(l.t.Context(), query)
		if got := err != nil && strings.Contains(err.Error(), "where_it_waits"); got != refused || err != nil && !got {
			l.t.Errorf("refused %t, %v; want refused %t", got, err, refused)
		}
	}
	goOn := func(l *fixture, id uuid.UUID) {
		l.t.Helper()
		_, err := l.Batches.Pause(t.Context(), work.DefaultTenant, id, "me", "")
		l.must(err)
		try(l, releaseBefore, true)
		_, err = l.Batches.Resume(t.Context(), work.DefaultTenant, id, BatchChanges{})
		l.must(err)
		l.runsToItsEnd(id, nil, 0)
		l.is(id, work.BatchCompleted)
	}
	t.Run("not packed", func(t *testing.T) {
		l := newFixture(t)
		id := l.laneBatch(2)
		try(l, pauseBefore, false)
		try(l, releaseBefore, false)
		try(l, goLiveBefore, false)
		_, err := l.Batches.Pause(t.Context(), work.DefaultTenant, id, "me", "")
		l.must(err)
	})
	t.Run("packed", func(t *testing.T) {
		l := newFixture(t)
		id := l.laneBatch(2)
		l.packed(l.process)
		try(l, goLiveBefore, false)
		try(l, pauseBefore, true) // and a process of this version does it
		goOn(l, id)
	})
	t.Run("unanswered", func(t *testing.T) {
		l := newFixture(t)
		id := l.laneBatch(2)
		b := l.packed(l.process)
		_, err := l.ProviderBatches.Finish(t.Context(), l.process, b.ID, nil)
		l.must(err)
		try(l, releaseBefore, true)
		l.advance(id)
		try(l, pauseBefore, false)
		goOn(l, id)
	})
}
