package store

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/work"
)

func movedIDs(moved []Moved) (ids []uuid.UUID) {
	for _, m := range moved {
		ids = append(ids, m.UnitID)
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

func ofTenant(f UnitFilter) UnitFilter {
	f.Tenant = work.DefaultTenant
	return f
}

// endAs runs a unit that ends with an error of the class.
func (l *fixture) endAs(class work.Class, change ...func(*NewUnit)) uuid.UUID {
	l.t.Helper()
	c, cost := l.run(change...), 0.5
	l.end(ending(c, work.Failed, func(f *Finish) { f.Error, f.TotalCostUSD = work.Fail(class, "no"), &cost }), Recorded)
	return c.ID
}

func TestRetryAll(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	first, second := l.endAs(work.ClassRefusal), l.endAs(work.ClassRefusal)
	other := l.endAs(work.ClassInfra)
	done := l.run()
	l.end(ending(done, work.Succeeded), Recorded)
	l.endAs(work.ClassRefusal, func(n *NewUnit) { n.Tenant = "other" })
	waits := l.put()

	call := l.endAs(work.ClassRefusal, func(n *NewUnit) { n.Prompt, n.Request = "", []byte(`{"endpoint":"/v1/messages","body":{}}`) })

	f, model := ofTenant(UnitFilter{Class: work.ClassRefusal}), "better"
	p, err := l.Units.PreviewRetry(t.Context(), f, Changes{Model: &model}, 1)
	if err != nil || p.Count != 2 || p.Cost.Known() != 1 || len(p.Units) != 1 || p.Units[0].ID != first {
		t.Errorf("preview %+v, error %v", p, err)
	}
	moved, more, err := l.Units.RetryAll(t.Context(), f, Changes{Model: &model})
	if err != nil || more || !slices.Equal(movedIDs(moved), []uuid.UUID{first, second}) {
		t.Errorf("moved %+v, more %t, error %v", moved, more, err)
	}
	u := l.unit(first)
	if u.State != work.Queued || u.Model != model || u.Error != nil ||
		MessageOf(u) != moved[slices.IndexFunc(moved, func(m Moved) bool { return m.UnitID == first })].Message {
		t.Errorf("unit %+v, moved %+v", u, moved)
	}
	// A repeat, as after a lost answer, finds nothing left.
	if moved, more, err = l.Units.RetryAll(t.Context(), f, Changes{Model: &model}); err != nil || more || len(moved) != 0 {
		t.Errorf("again: %+v, more %t, error %v", moved, more, err)
	}
	if moved, _, err = l.Units.RetryAll(t.Context(), f, Changes{}); err != nil || !slices.Equal(movedIDs(moved), []uuid.UUID{call}) {
		t.Errorf("with a request: %+v, error %v", moved, err)
	}
	if moved, _, err = l.Units.RetryAll(t.Context(), ofTenant(UnitFilter{}), Changes{}); err != nil ||
		!slices.Equal(movedIDs(moved), []uuid.UUID{other}) {
		t.Errorf("all: %+v, error %v", moved, err)
	}
	if l.unit(done.ID).State != work.Succeeded || l.unit(waits.ID).Dispatch != 1 {
		t.Error("what cannot be retried was touched")
	}
}

func TestCancelAll(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	queued, running, stays := l.put(), l.run(), l.put(func(n *NewUnit) { n.Backend = "claude" })
	f := ofTenant(UnitFilter{Backend: "mock"})
	if p, err := l.Units.PreviewCancel(t.Context(), f, 20); err != nil || p.Count != 2 || len(p.Units) != 2 {
		t.Errorf("preview %+v, error %v", p, err)
	}
	moved, more, err := l.Units.CancelAll(t.Context(), f)
	if err != nil || more || !slices.Equal(movedIDs(moved), []uuid.UUID{queued.ID, running.ID}) {
		t.Errorf("moved %+v, more %t, error %v", moved, more, err)
	}
	for _, m := range moved {
		if want := map[uuid.UUID]work.State{queued.ID: work.Cancelled, running.ID: work.Running}[m.UnitID]; m.State != want {
			t.Errorf("%s is %s, want %s", m.UnitID, m.State, want)
		}
	}
	if l.unit(running.ID).CancelRequestedAt == nil || l.unit(stays.ID).State != work.Queued {
		t.Error("the running unit was not asked, or another was cancelled")
	}
	// One that was asked is no news, or a caller who goes on while there are
	// more would never end.
	if moved, more, err := l.Units.CancelAll(t.Context(), f); err != nil || more || len(moved) != 0 {
		t.Errorf("again: %+v, more %t, error %v", moved, more, err)
	}
}

// A bulk has a bound, takes the oldest first, and says that others are left.
func TestBulkIsBounded(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.exec(`INSERT INTO work_units (id, tenant, state, title, backend, queue, priority, prompt, payload, missing_key, timeout,
			idle_timeout, check_at, created_at, started_at, finished_at, error_class)
		SELECT (lpad(to_hex(g), 12, '0') || '70008000000000000000')::uuid, 'default', 'failed', 't', 'mock', 'default', 5, '', '{}',
			'fail', 1, 1, now(), now(), now(), now(), 'infra' FROM generate_series(1, $1::integer) g`, MaxBulk+5)
	moved, more, err := l.Units.RetryAll(t.Context(), ofTenant(UnitFilter{}), Changes{})
	if ids := movedIDs(moved); err != nil || !more || len(ids) != MaxBulk || ids[0][5] != 1 {
		t.Fatalf("%d moved, more %t, error %v", len(ids), more, err)
	}
	if moved, more, err = l.Units.RetryAll(t.Context(), ofTenant(UnitFilter{}), Changes{}); err != nil || more || len(moved) != 5 {
		t.Errorf("then %d moved, more %t, error %v", len(moved), more, err)
	}
	var all int
	for more = true; more; {
		if moved, more, err = l.Units.CancelAll(t.Context(), ofTenant(UnitFilter{})); err != nil {
			t.Fatal(err)
		}
		all += len(moved)
	}
	if all != MaxBulk+5 {
		t.Errorf("%d cancelled", all)
	}
}

// A bulk waits for nobody: a unit that somebody is at work on is left, and
// counts as left.
func TestBulkWaitsForNobody(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	busy, free := l.endAs(work.ClassInfra), l.endAs(work.ClassInfra)
	l.locked(busy, func() {
		moved, more, err := l.Units.RetryAll(t.Context(), ofTenant(UnitFilter{}), Changes{})
		if err != nil || !more || !slices.Equal(movedIDs(moved), []uuid.UUID{free}) {
			t.Errorf("moved %+v, more %t, error %v", moved, more, err)
		}
	})
	if moved, more, err := l.Units.RetryAll(t.Context(), ofTenant(UnitFilter{}), Changes{}); err != nil || more || len(moved) != 1 {
		t.Errorf("later %+v, more %t, error %v", moved, more, err)
	}
}

// Several at once move each unit once.
func TestBulksAtOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	const units = 40
	for range units {
		l.endAs(work.ClassInfra)
	}
	var mu sync.Mutex
	var all []uuid.UUID
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for more := true; more; {
				var moved []Moved
				var err error
				if moved, more, err = l.Units.RetryAll(t.Context(), ofTenant(UnitFilter{}), Changes{}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				all = append(all, movedIDs(moved)...)
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	seen := map[uuid.UUID]bool{}
	for _, id := range all {
		if seen[id] || l.unit(id).Dispatch != 2 {
			t.Errorf("%s was moved twice", id)
		}
		seen[id] = true
	}
	if len(seen) != units {
		t.Errorf("%d of %d moved", len(seen), units)
	}
}
