package jobs

import (
	"encoding/json"
	"testing"
	"time"

	"piecework/internal/work"
	"piecework/store"
)

// schedule puts a schedule whose next time lies so far back.
func (h *house) schedule(name string, catchUp work.CatchUp, ago time.Duration) work.Schedule {
	h.t.Helper()
	s, err := h.store.Schedules.Put(h.t.Context(), work.Schedule{
		Tenant: work.DefaultTenant, Name: name, Cron: "@every 1h", Timezone: "UTC", CatchUp: catchUp, Title: name,
		NextAt: time.Now().Add(-ago).Truncate(time.Second),
		Unit: work.Spec{Backend: "mock", Prompt: name, Payload: json.RawMessage(`{}`), Labels: json.RawMessage(`{}`), Timeout: 60,
			IdleTimeout: 60, MissingKey: "fail", Queue: "default", Priority: 5},
	})
	h.must(err)
	return s
}

func (h *house) made(title string) (units []work.Unit) {
	h.t.Helper()
	units, _, err := h.store.Units.List(h.t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Search: title})
	h.must(err)
	return units
}

// A schedule makes each of its units once, also when the round is done again
// from the beginning.
func TestScheduledUnitsAreMadeOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	missed, later := h.schedule("missed", work.CatchUpAll, 150*time.Minute), h.schedule("later", work.CatchUpAll, -time.Hour)
	h.must(h.rec.makeUnits(t.Context(), missed, time.Now())) // by one beside us
	_, err := h.store.Schedules.Put(t.Context(), missed)     // by one who died before it was noted
	h.must(err)
	h.once()
	h.once()
	if n := len(h.made("missed")); n != 3 {
		t.Errorf("%d units of three missed times", n)
	}
	if n := len(h.made("later")); n != 0 {
		t.Errorf("%d units before their time", n)
	}
	s, err := h.store.Schedules.Get(t.Context(), work.DefaultTenant, "missed")
	h.must(err)
	if !s.NextAt.Equal(missed.NextAt.Add(3*time.Hour)) || s.LastAt == nil || *s.LastUnit != h.made("missed")[0].ID {
		t.Errorf("%+v", s)
	}
	h.must(h.store.Schedules.Delete(t.Context(), work.DefaultTenant, later.Name))
	if h.pending(h.made("missed")...) != 3 {
		t.Error("not every bell rang")
	}
}

// A schedule that was replaced while its units were made keeps its new time; a
// paused one makes none.
func TestScheduleIsReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	old := h.schedule("s", work.CatchUpOne, time.Minute)
	next := h.schedule("s", work.CatchUpOne, -time.Hour)
	h.must(h.rec.makeUnits(t.Context(), old, time.Now()))
	if s, err := h.store.Schedules.Get(t.Context(), work.DefaultTenant, "s"); err != nil || !s.NextAt.Equal(next.NextAt) {
		t.Errorf("next %s, want %s, error %v", s.NextAt, next.NextAt, err)
	}
	next.Paused, next.NextAt, next.Name, next.Title = true, old.NextAt, "paused", "paused"
	_, err := h.store.Schedules.Put(t.Context(), next)
	h.must(err)
	h.once()
	if n := len(h.made("paused")); n != 0 {
		t.Errorf("%d units of a paused schedule", n)
	}
}
