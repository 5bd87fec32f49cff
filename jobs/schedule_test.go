package jobs

import (
	"encoding/json"
	"testing"
	"time"

	"piecework/internal/work"
	"piecework/store"
)

// schedule puts a schedule whose next time lies so far back.
func (f *fixture) schedule(name string, catchUp work.CatchUp, ago time.Duration) work.Schedule {
	f.t.Helper()
	s, err := f.store.Schedules.Put(f.t.Context(), work.Schedule{
		Tenant: work.DefaultTenant, Name: name, Cron: "@every 1h", Timezone: "UTC", CatchUp: catchUp, Title: name,
		NextAt: time.Now().Add(-ago).Truncate(time.Second),
		Unit: work.Spec{Backend: "mock", Prompt: name, Payload: json.RawMessage(`{}`), Labels: json.RawMessage(`{}`), Timeout: 60,
			IdleTimeout: 60, MissingKey: "fail", Queue: "default", Priority: 5},
	})
	f.must(err)
	return s
}

func (f *fixture) made(title string) (units []work.Unit) {
	f.t.Helper()
	units, _, err := f.store.Units.List(f.t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Search: title})
	f.must(err)
	return units
}

// A schedule makes each of its units once, also when the round is done again
// from the beginning.
func TestScheduledUnitsAreMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	missed, later := f.schedule("missed", work.CatchUpAll, 150*time.Minute), f.schedule("later", work.CatchUpAll, -time.Hour)
	f.must(f.rec.makeUnits(t.Context(), missed, time.Now())) // by one beside us
	_, err := f.store.Schedules.Put(t.Context(), missed)     // by one who died before it was noted
	f.must(err)
	f.once()
	f.once()
	if n := len(f.made("missed")); n != 3 {
		t.Errorf("%d units of three missed times", n)
	}
	if n := len(f.made("later")); n != 0 {
		t.Errorf("%d units before their time", n)
	}
	s, err := f.store.Schedules.Get(t.Context(), work.DefaultTenant, "missed")
	f.must(err)
	if !s.NextAt.Equal(missed.NextAt.Add(3*time.Hour)) || s.LastAt == nil || *s.LastUnit != f.made("missed")[0].ID {
		t.Errorf("%+v", s)
	}
	f.must(f.store.Schedules.Delete(t.Context(), work.DefaultTenant, later.Name))
	if f.pending(f.made("missed")...) != 3 {
		t.Error("not every unit was enqueued")
	}
}

// A schedule that was replaced while its units were made keeps its new time; a
// paused one makes none.
func TestScheduleIsReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := f.schedule("s", work.CatchUpOne, time.Minute)
	next := f.schedule("s", work.CatchUpOne, -time.Hour)
	f.must(f.rec.makeUnits(t.Context(), old, time.Now()))
	if s, err := f.store.Schedules.Get(t.Context(), work.DefaultTenant, "s"); err != nil || !s.NextAt.Equal(next.NextAt) {
		t.Errorf("next %s, want %s, error %v", s.NextAt, next.NextAt, err)
	}
	next.Paused, next.NextAt, next.Name, next.Title = true, old.NextAt, "paused", "paused"
	_, err := f.store.Schedules.Put(t.Context(), next)
	f.must(err)
	f.once()
	if n := len(f.made("paused")); n != 0 {
		t.Errorf("%d units of a paused schedule", n)
	}
}
