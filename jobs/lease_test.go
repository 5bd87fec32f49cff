package jobs

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// A lease runs out when nobody has renewed it for its length while somebody
// looked, and Postgres's clock has no part in that.
func TestLeaseWatch(t *testing.T) {
	t.Parallel()
	dead, alive := uuid.New(), uuid.New()
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var w leaseWatch
	var set time.Duration // of Postgres's clock
	var at time.Duration
	look := func(passed time.Duration, renewed bool) (over []store.Lease, seen time.Duration) {
		at += passed
		clock := base.Add(at + set)
		last := base
		if renewed {
			last = clock
		}
		return w.look([]store.Lease{
			{Process: dead, BeatAt: base, Length: 30},
			{Process: alive, BeatAt: last, Length: 30},
		}, at, clock)
	}
	look(time.Second, true)
	set = time.Hour
	if over, seen := look(time.Second, true); len(over) != 0 || seen != set {
		t.Errorf("a clock that was set by %v ended %v", seen, over)
	}
	set = -time.Hour
	if over, seen := look(time.Second, true); len(over) != 0 || seen != -2*time.Hour {
		t.Errorf("a clock that was set by %v ended %v", seen, over)
	}
	if over, _ := look(time.Hour, true); len(over) != 0 {
		t.Errorf("an hour in which nobody looked ended %v", over)
	}
	for i := range 60 {
		over, seen := look(time.Second, true)
		if seen != 0 || len(over) > 1 || len(over) == 1 && over[0].Process != dead {
			t.Fatalf("%v, set by %v", over, seen)
		}
		if len(over) == 1 {
			if i < 20 || i > 25 { // 2 s and 5 s have counted before
				t.Errorf("ended after %d s more", i)
			}
			return
		}
	}
	t.Error("the lease of a dead worker process does not end")
}

// Runs go on when the clock of the database's machine is set, forward or back,
// and what was to be looked at after a minute is looked at after a minute.
func TestClockOfPostgresIsSet(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]string{"forward": "1 hour", "back": "-1 hour"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			p := work.Process{ID: uuid.Must(uuid.NewV7()), Queues: []string{"default"}}
			f.must(f.store.Processes.Register(t.Context(), p, 30*time.Second))
			u := f.put()
			if c, err := f.store.Runs.Claim(t.Context(), store.Claim{UnitID: u.ID, RunID: uuid.New(), Process: p.ID, SessionID: "s",
				Backends: []string{"mock"}}); err != nil || c == nil {
				t.Fatal(c, err)
			}
			f.once()
			// What the clock says now is by later than what was written before.
			f.exec(`UPDATE worker_processes SET beat_at = beat_at - interval '` + by + `', lease_until = lease_until - interval '` + by + `'`)
			f.once()
			if u := f.unit(u.ID); u.State != work.Running {
				t.Errorf("the unit is %s", u.State)
			}
		})
	}
}

func TestClockBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	soon, named := f.put(), time.Now().Add(time.Hour).UTC()
	f.exec(`UPDATE work_units SET check_at = clock_timestamp() + interval '61 minutes', not_before = clock_timestamp() + interval '61 minutes', run_count = 1`)
	later := f.put()
	f.exec(`UPDATE work_units SET check_at = '` + named.Format(time.RFC3339) + `', not_before = '` + named.Format(time.RFC3339) + `' WHERE run_count = 0`)
	if n, err := f.store.Reconciler.ClockBack(t.Context(), time.Hour); err != nil || n != 1 {
		t.Errorf("%d mended, %v", n, err)
	}
	if n, err := f.store.Reconciler.ClockBack(t.Context(), time.Hour); err != nil || n != 0 {
		t.Errorf("%d mended again, %v", n, err)
	}
	if at := f.unit(soon.ID).NotBefore; at == nil || time.Until(*at) > 2*time.Minute {
		t.Errorf("the retry is due at %v", at)
	}
	if at := f.unit(later.ID).NotBefore; at == nil || time.Until(*at) < 50*time.Minute {
		t.Errorf("what a caller wanted later is due at %v", at)
	}
}
