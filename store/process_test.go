package store

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

func (l *fixture) beat(process uuid.UUID) []Owned {
	l.t.Helper()
	l.must(l.Processes.Heartbeat(l.t.Context(), process, time.Hour, 3, []work.Offer{{Name: "claude", Available: true}}))
	news, err := l.Processes.Assignments(l.t.Context(), process)
	l.must(err)
	return news.Owned
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	p := work.Process{ID: uuid.Must(uuid.NewV7()), Hostname: "h", PID: 7, Identity: "i", Version: "v", Slots: 3,
		Queues: []string{"a", "b"}, Backends: []work.Offer{{Name: "claude", Detail: "no key"}}}
	l.must(l.Processes.Register(t.Context(), p, time.Hour))
	l.beat(p.ID)
	list, err := l.Processes.List(t.Context())
	if err != nil || len(list) != 2 || list[0].ID != p.ID || list[1].ID != l.process {
		t.Fatalf("processes %+v, error %v", list, err)
	}
	if got := list[0]; got.Hostname != "h" || got.PID != 7 || got.Identity != "i" || got.Version != "v" || got.Slots != 3 ||
		got.Running != 3 ||
		!slices.Equal(got.Queues, p.Queues) || len(got.Backends) != 1 || !got.Backends[0].Available || !got.Live ||
		!got.LeaseUntil.After(got.BeatAt) {
		t.Errorf("process %+v", got)
	}
	l.must(l.Processes.Stop(t.Context(), p.ID))
	if list, err = l.Processes.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("after one stopped: %+v, error %v", list, err)
	}
}

func TestBeat(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	if got := l.beat(l.process); len(got) != 0 {
		t.Errorf("owns %v before it claimed", got)
	}
	kept, cancelled, given := l.run(), l.run(), l.run()
	_, err := l.Units.Cancel(t.Context(), work.DefaultTenant, cancelled.ID)
	l.must(err)
	l.end(ending(given, work.Succeeded), Recorded)
	got := l.beat(l.process)
	if len(got) != 2 || !slices.Contains(got, Owned{RunID: kept.RunID, UnitID: kept.ID, Attempt: 1}) ||
		!slices.Contains(got, Owned{RunID: cancelled.RunID, UnitID: cancelled.ID, Attempt: 1, Cancel: true}) {
		t.Errorf("owns %+v", got)
	}
	l.exec(`UPDATE worker_processes SET lease_until = beat_at`)
	l.beat(l.process)
	if n, err := l.Runs.ExpireLeases(t.Context()); n != 0 || err != nil {
		t.Errorf("%d lost after a sign of life, error %v", n, err)
	}
	if err := l.Processes.Heartbeat(t.Context(), uuid.New(), time.Hour, 0, nil); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("a process that never registered: %v", err)
	}
}

// A process that was buried by mistake registers again and lives on.
func TestBury(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	if n, err := l.Processes.EndDead(t.Context(), []uuid.UUID{l.process, uuid.New()}); n != 1 || err != nil {
		t.Errorf("%d buried, %v", n, err)
	}
	if n, err := l.Runs.ExpireLeases(t.Context()); n != 1 || err != nil {
		t.Errorf("%d lost, error %v", n, err)
	}
	if u := l.unit(c.ID); u.State != work.Queued {
		t.Errorf("its unit is %s", u.State)
	}
	if err := l.Processes.Heartbeat(t.Context(), l.process, time.Hour, 0, nil); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("a buried process: %v", err)
	}
	l.must(l.Processes.Register(t.Context(), work.Process{ID: l.process, Queues: []string{"q"}}, time.Hour))
	l.beat(l.process)
}

// A process is told apart from a dead one by Postgres's clock.
func TestProcessesThatLive(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	dead := uuid.Must(uuid.NewV7())
	l.must(l.Processes.Register(t.Context(), work.Process{ID: dead, Queues: []string{"q"}}, -time.Second))
	list, err := l.Processes.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Live || !list[1].Live {
		t.Errorf("processes %+v, error %v", list, err)
	}
}

// Whatever locks the units, a heartbeat comes through, and a process stays the
// owner of its runs.
func TestBeatBesideALock(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.run()
	tx, err := l.db.BeginTxx(t.Context(), nil)
	l.must(err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.Exec(`LOCK TABLE work_units, worker_runs IN ACCESS EXCLUSIVE MODE`)
	l.must(err)
	blocked := make(chan error, 20)
	for range cap(blocked) { // all connections wait for the lock
		go func() {
			_, err := l.db.ExecContext(t.Context(), `SELECT count(*) FROM work_units`)
			blocked <- err
		}()
	}
	testkit.Eventually(t, "no connection free", func() bool { return l.db.Stats().WaitCount > 0 })
	l.must(l.Processes.Heartbeat(t.Context(), l.process, time.Hour, 1, nil))
	leases, _, err := l.Processes.Leases(t.Context())
	if err != nil || len(leases) != 1 || leases[0].Process != l.process || leases[0].Length != 3600 {
		t.Errorf("leases %+v, %v", leases, err)
	}
	l.must(tx.Rollback())
	for range cap(blocked) {
		<-blocked
	}
}

// A lease ends only if it is as it was when somebody looked, whatever any clock
// says.
func TestEndLeases(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	leases, now, err := l.Processes.Leases(t.Context())
	if err != nil || len(leases) != 1 || time.Since(now).Abs() > time.Hour {
		t.Fatalf("leases %+v at %v, %v", leases, now, err)
	}
	l.exec(`UPDATE worker_processes SET beat_at = beat_at - interval '2 hours', lease_until = lease_until - interval '2 hours'`) // as a clock that was set forward
	if n, err := l.Runs.ExpireLeases(t.Context()); n != 0 || err != nil {
		t.Errorf("%d lost by a clock that was set, %v", n, err)
	}
	l.beat(l.process)
	if n, err := l.Processes.EndLeases(t.Context(), leases); n != 0 || err != nil {
		t.Errorf("%d leases ended that were renewed, %v", n, err)
	}
	leases, _, err = l.Processes.Leases(t.Context())
	l.must(err)
	if n, err := l.Processes.EndLeases(t.Context(), leases); n != 1 || err != nil {
		t.Errorf("%d leases ended, %v", n, err)
	}
	if n, err := l.Runs.ExpireLeases(t.Context()); n != 1 || err != nil || l.unit(c.ID).State != work.Queued {
		t.Errorf("%d lost, %v", n, err)
	}
}
