package store

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

func (l *ledger) beat(process uuid.UUID) []Owned {
	l.t.Helper()
	news, err := l.Beat(l.t.Context(), process, time.Hour, 3, []work.Offer{{Name: "claude", Available: true}})
	l.must(err)
	return news.Owned
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	p := work.Process{ID: uuid.Must(uuid.NewV7()), Hostname: "h", PID: 7, Identity: "i", Version: "v", Slots: 3,
		Queues: []string{"a", "b"}, Backends: []work.Offer{{Name: "claude", Detail: "no key"}}}
	l.must(l.Register(t.Context(), p, time.Hour))
	l.beat(p.ID)
	list, err := l.Processes(t.Context())
	if err != nil || len(list) != 2 || list[0].ID != p.ID || list[1].ID != l.process {
		t.Fatalf("processes %+v, error %v", list, err)
	}
	if got := list[0]; got.Hostname != "h" || got.PID != 7 || got.Identity != "i" || got.Version != "v" || got.Slots != 3 || got.Running != 3 ||
		!slices.Equal(got.Queues, p.Queues) || len(got.Backends) != 1 || !got.Backends[0].Available || !got.Live || !got.LeaseUntil.After(got.BeatAt) {
		t.Errorf("process %+v", got)
	}
	l.must(l.Stop(t.Context(), p.ID))
	if list, err = l.Processes(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("after one stopped: %+v, error %v", list, err)
	}
}

func TestBeat(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	if got := l.beat(l.process); len(got) != 0 {
		t.Errorf("owns %v before it claimed", got)
	}
	kept, cancelled, given := l.run(), l.run(), l.run()
	_, err := l.Cancel(t.Context(), work.DefaultTenant, cancelled.ID)
	l.must(err)
	l.end(ending(given, work.Succeeded), Recorded)
	got := l.beat(l.process)
	if len(got) != 2 || !slices.Contains(got, Owned{RunID: kept.RunID, UnitID: kept.ID, Attempt: 1}) || !slices.Contains(got, Owned{RunID: cancelled.RunID, UnitID: cancelled.ID, Attempt: 1, Cancel: true}) {
		t.Errorf("owns %+v", got)
	}
	l.exec(`UPDATE worker_processes SET lease_until = clock_timestamp() - interval '1 minute'`)
	l.beat(l.process)
	if n, err := l.ExpireLeases(t.Context()); n != 0 || err != nil {
		t.Errorf("%d lost after a sign of life, error %v", n, err)
	}
	if _, err := l.Beat(t.Context(), uuid.New(), time.Hour, 0, nil); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("a process that never registered: %v", err)
	}
}

// A process that was buried by mistake registers again and lives on.
func TestBury(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	c := l.run()
	if n, err := l.Bury(t.Context(), []uuid.UUID{l.process, uuid.New()}); n != 1 || err != nil {
		t.Errorf("%d buried, %v", n, err)
	}
	if n, err := l.ExpireLeases(t.Context()); n != 1 || err != nil {
		t.Errorf("%d lost, error %v", n, err)
	}
	if u := l.unit(c.ID); u.State != work.Queued {
		t.Errorf("its unit is %s", u.State)
	}
	if _, err := l.Beat(t.Context(), l.process, time.Hour, 0, nil); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("a buried process: %v", err)
	}
	l.must(l.Register(t.Context(), work.Process{ID: l.process, Queues: []string{"q"}}, time.Hour))
	l.beat(l.process)
}

// A process is told apart from a dead one by Postgres's clock.
func TestProcessesThatLive(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	dead := uuid.Must(uuid.NewV7())
	l.must(l.Register(t.Context(), work.Process{ID: dead, Queues: []string{"q"}}, -time.Second))
	list, err := l.Processes(t.Context())
	if err != nil || len(list) != 2 || list[0].Live || !list[1].Live {
		t.Errorf("processes %+v, error %v", list, err)
	}
}
