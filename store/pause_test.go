package store

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

func (l *fixture) pause(kind PauseKind, name string) Pause {
	l.t.Helper()
	p, err := l.Pauses.Pause(l.t.Context(), kind, name, "ann", "rent is due")
	l.must(err)
	return p
}

func (l *fixture) resume(kind PauseKind, name string) Pause {
	l.t.Helper()
	p, err := l.Pauses.Resume(l.t.Context(), kind, name)
	l.must(err)
	return p
}

// due is what a worker process finds without Redis.
func (l *fixture) due() (ids []uuid.UUID) {
	l.t.Helper()
	found, err := l.Queues.Due(l.t.Context(), []string{"default", "slow"}, []string{"mock", "claude"}, nil, 100)
	l.must(err)
	for _, d := range found {
		ids = append(ids, d.UnitID)
	}
	return ids
}

// What is paused is neither claimed nor found due, by whatever process; the
// rest is, and what ran before goes on.
func TestPauseHoldsItsUnits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind PauseKind
		name string
		held func(*NewUnit)
	}{
		{PauseQueue, "slow", func(n *NewUnit) { n.Queue = "slow" }},
		{PauseBackend, "claude", func(n *NewUnit) { n.Backend = "claude" }},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			t.Parallel()
			l := newFixture(t)
			before, held, free := l.run(test.held), l.put(test.held), l.put()
			l.pause(test.kind, test.name)
			l.pause(PauseQueue, test.name+"-other")
			if other := l.register(time.Hour); l.take(held.ID, l.process) != nil || l.take(held.ID, other) != nil {
				t.Error("a paused unit was claimed")
			}
			if got := l.due(); !slices.Equal(got, []uuid.UUID{free.ID}) {
				t.Errorf("due: %v", got)
			}
			if l.take(free.ID, l.process) == nil {
				t.Error("a unit that is not paused was held back")
			}
			l.end(ending(before, work.Succeeded), Recorded)
			l.must(l.Queues.Defer(t.Context(), held.ID, uuid.Nil, time.Minute))
			l.resume(test.kind, test.name)
			if got := l.unchecked(); !slices.Equal(got, []uuid.UUID{held.ID}) {
				t.Errorf("in doubt after the resume: %v", got)
			}
			if l.take(held.ID, l.process) == nil {
				t.Error("not claimed after the resume")
			}
		})
	}
}

func TestPauseIsIdempotent(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	first := l.pause(PauseQueue, "q")
	again, err := l.Pauses.Pause(t.Context(), PauseQueue, "q", "", "another reason")
	if err != nil || !again.Since.Equal(*first.Since) || again.By != "ann" || again.Why != "another reason" {
		t.Errorf("first %+v, again %+v, error %v", first, again, err)
	}
	l.pause(PauseBackend, "q")
	if one, two := l.resume(PauseQueue, "q"), l.resume(PauseQueue, "q"); one.Since != nil || two.Since != nil ||
		!two.ResumedAt.After(*one.ResumedAt) {
		t.Errorf("resumed %+v, then %+v", one, two)
	}
	pauses, err := l.Pauses.List(t.Context())
	if err != nil || PauseOf(pauses, PauseQueue, "q") != nil || PauseOf(pauses, PauseBackend, "q") == nil {
		t.Errorf("pauses %+v, error %v", pauses, err)
	}
	if p := l.pause(PauseQueue, "q"); p.Since == nil || !p.Since.After(*first.Since) {
		t.Errorf("paused anew: %+v", p)
	}
}

// A worker process hears of pauses with each heartbeat, also when it runs
// nothing.
func TestPausesComeWithTheNews(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.pause(PauseBackend, "claude")
	l.run()
	l.run()
	want := l.resume(PauseQueue, "q")
	for _, process := range []uuid.UUID{l.process, l.register(time.Hour)} {
		news, err := l.Processes.Assignments(t.Context(), process)
		if err != nil || len(news.Pauses) != 2 || PauseOf(news.Pauses, PauseBackend, "claude") == nil {
			t.Fatalf("news %+v, error %v", news, err)
		}
		i := slices.IndexFunc(news.Pauses, func(p Pause) bool { return p.Name == "q" })
		if got := news.Pauses[i]; got.ResumedAt == nil || !got.ResumedAt.Equal(*want.ResumedAt) || got.Since != nil {
			t.Errorf("the resume came as %+v", got)
		}
	}
}

// Units that were refused for the backend's credentials wait for somebody to
// mend them: a resume says that somebody has. What waits for another reason
// waits on.
func TestResumeHurriesRefusedUnits(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	waits := func(class work.Class) uuid.UUID {
		c := l.run()
		l.end(ending(c, work.Queued, func(f *Finish) { f.Error, f.Delay = work.Fail(class, "no"), time.Hour }), Recorded)
		return c.ID
	}
	refused, limited := waits(work.ClassAuth), waits(work.ClassRateLimit)
	l.resume(PauseQueue, work.DefaultQueue)
	if l.take(refused, l.process) != nil {
		t.Error("a queue's resume hurried a unit")
	}
	l.resume(PauseBackend, "mock")
	if got := l.unchecked(); !slices.Equal(got, []uuid.UUID{refused}) {
		t.Errorf("in doubt: %v", got)
	}
	if l.take(refused, l.process) == nil || l.take(limited, l.process) != nil {
		t.Error("the refused unit waits on, or the limited one does not")
	}
}

func TestQueues(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	later := time.Now().Add(time.Hour)
	slow := func(n *NewUnit) { n.Queue = "slow" }
	old := l.put(slow)
	l.exec(`UPDATE work_units SET created_at = created_at - interval '1 hour' WHERE id = $1`, old.ID)
	l.put(slow, func(n *NewUnit) { n.NotBefore = &later })
	l.run(slow)
	l.end(ending(l.run(), work.Succeeded), Recorded)
	l.run()
	l.put(func(n *NewUnit) { n.Tenant = "other" })
	queues, err := l.Queues.List(t.Context(), work.DefaultTenant)
	if err != nil || len(queues) != 2 {
		t.Fatalf("queues %+v, error %v", queues, err)
	}
	if q := queues[0]; q.Name != "default" || q.Queued != 0 || q.Running != 1 || q.Oldest != nil {
		t.Errorf("default: %+v", q)
	}
	if q := queues[1]; q.Name != "slow" || q.Queued != 2 || q.Due != 1 || q.Running != 1 || *q.Oldest < 3600 || *q.Oldest > 4000 {
		t.Errorf("slow: %+v", q)
	}
}
