package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store/pg"
)

func pick(c *Claimed) []uuid.UUID { return []uuid.UUID{c.ID} }

func (l *fixture) unchecked() (ids []uuid.UUID) {
	l.t.Helper()
	due, _, err := l.Queues.Unchecked(l.t.Context(), CheckCursor{}, 100)
	l.must(err)
	for _, d := range due {
		ids = append(ids, d.UnitID)
	}
	return ids
}

func (l *fixture) overdue(ids ...uuid.UUID) {
	l.t.Helper()
	l.exec(`UPDATE work_units SET check_at = clock_timestamp() - interval '1 second' WHERE id = ANY($1::uuid[])`, pg.UUIDs(ids))
}

func TestBells(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	u, running := l.put(func(n *NewUnit) { n.Queue, n.Priority = "q", 9 }), l.run()
	if got := l.unchecked(); len(got) != 0 {
		t.Errorf("a fresh unit's bell is in doubt: %v", got)
	}
	l.overdue(u.ID, running.ID)
	due, cursor, err := l.Queues.Unchecked(t.Context(), CheckCursor{}, 10)
	if want := (Message{UnitID: u.ID, Number: 1, Queue: "q", Backend: "mock", Priority: 9}); err != nil ||
		!slices.Equal(due, []Message{want}) || MessageOf(u) != want {
		t.Errorf("in doubt: %+v, error %v", due, err)
	}
	both := []uuid.UUID{u.ID, running.ID}
	if after, _, err := l.Queues.Unchecked(t.Context(), cursor, 10); err != nil || len(after) != 0 {
		t.Errorf("behind the last: %v, error %v", after, err)
	}
	if late, _, err := l.Queues.Unchecked(t.Context(), cursor.Back(), 10); err != nil || len(late) != 1 {
		t.Errorf("a moment before: %v, error %v", late, err)
	}
	l.must(l.Queues.Recheck(t.Context(), both))
	if got := l.unchecked(); !slices.Equal(got, both[:1]) {
		t.Errorf("in doubt: %v", got)
	}
	bells, err := l.Queues.Redispatch(t.Context(), both)
	if err != nil || len(bells) != 1 || bells[0].Number != 2 || bells[0].UnitID != u.ID {
		t.Errorf("bells %+v, error %v", bells, err)
	}
	if got := l.unchecked(); len(got) != 0 || l.unit(u.ID).Dispatch != 2 {
		t.Errorf("in doubt after a new bell: %v", got)
	}
}

func TestRecheckAll(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	soon := time.Now().Add(time.Hour)
	u := l.put()
	l.put(func(n *NewUnit) { n.NotBefore = &soon })
	l.run()
	if n, err := l.Queues.RecheckAll(t.Context()); err != nil || n != 1 {
		t.Errorf("%d in doubt, error %v", n, err)
	}
	if got := l.unchecked(); !slices.Equal(got, []uuid.UUID{u.ID}) {
		t.Errorf("in doubt: %v", got)
	}
}

// Whoever reconciles passes over a unit that somebody is at work on: it must
// not hang behind it, nor end in a deadlock with claims of many units.
func TestReconcileWaitsForNobody(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	past := time.Now().Add(-time.Second)
	busy, free := l.put(func(n *NewUnit) { n.Deadline = &past }), l.put()
	l.overdue(busy.ID)
	ids := []uuid.UUID{busy.ID, free.ID}
	l.locked(busy.ID, func() {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		if bells, err := l.Queues.Redispatch(ctx, ids); err != nil || len(bells) != 1 {
			t.Errorf("bells %v, error %v", bells, err)
		}
		if n, err := l.Queues.RecheckAll(ctx); err != nil || n != 1 {
			t.Errorf("%d in doubt, error %v", n, err)
		}
		if n, err := l.Units.ExpireDeadlines(ctx); err != nil || n != 0 {
			t.Errorf("%d overdue, error %v", n, err)
		}
		l.must(l.Queues.Recheck(ctx, ids))
	})
	if n, err := l.Units.ExpireDeadlines(t.Context()); err != nil || n != 1 {
		t.Errorf("%d overdue, error %v", n, err)
	}
	if u := l.unit(busy.ID); u.State != work.TimedOut || u.Error.Class != work.ClassTimeout || !strings.HasSuffix(u.Error.Message, "could run") {
		t.Errorf("overdue unit %+v", u)
	}
}

// A unit expires until it has started, and a retry takes off what has passed.
func TestExpiry(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	soon := time.Now().Add(time.Hour)
	expires := func(n *NewUnit) { n.ExpiresAt = &soon }
	never, begun, back := l.put(expires), l.run(expires), l.run(expires)
	l.end(ending(back, work.Queued), Recorded)
	l.exec(`UPDATE work_units SET expires_at = clock_timestamp() - interval '1 second', not_before = NULL`)
	if n, err := l.Units.ExpireDeadlines(t.Context()); err != nil || n != 1 {
		t.Errorf("%d expired, error %v", n, err)
	}
	if u := l.unit(never.ID); u.State != work.TimedOut || u.Error.Class != work.ClassTimeout || !strings.Contains(u.Error.Message, "before it could start") {
		t.Errorf("%s, error %v", u.State, u.Error)
	}
	if got := l.unit(begun.ID).State; got != work.Running {
		t.Errorf("the running unit is %s", got)
	}
	if l.take(back.ID, l.process) == nil {
		t.Error("a unit that has run before does not run again")
	}
	l.end(ending(begun, work.Queued), Recorded)
	l.exec(`UPDATE work_units SET deadline = clock_timestamp() - interval '1 second' WHERE id = $1`, begun.ID)
	if n, err := l.Units.ExpireDeadlines(t.Context()); err != nil || n != 1 {
		t.Errorf("%d expired, error %v", n, err)
	}
	if u := l.unit(begun.ID); !strings.HasSuffix(u.Error.Message, "could run again") {
		t.Errorf("error %v", u.Error)
	}
	if _, err := l.Units.Retry(t.Context(), never.Tenant, never.ID, Changes{}); err != nil {
		t.Fatal(err)
	}
	if c := l.take(never.ID, l.process); c == nil || c.ExpiresAt != nil {
		t.Errorf("retried: %+v", c)
	}
}

func TestExpireLeases(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	alive := l.run()
	dying := *l
	dying.process = l.register(-time.Second)
	lost, cancelled, over := dying.run(), dying.run(), dying.run()
	dying.process = uuid.New() // one that never registered
	stranger := dying.run()
	_, err := l.Units.Cancel(t.Context(), work.DefaultTenant, cancelled.ID)
	l.must(err)
	l.end(ending(over, work.Succeeded), Recorded)
	for _, want := range []int64{3, 0} {
		if n, err := l.Runs.ExpireLeases(t.Context()); err != nil || n != want {
			t.Errorf("%d lost, error %v, want %d", n, err, want)
		}
	}
	for _, test := range []struct {
		run    *Claimed
		state  work.State
		losses int
		status work.RunStatus
	}{
		{alive, work.Running, 0, work.RunRunning},
		{lost, work.Queued, 1, work.RunLost},
		{cancelled, work.Cancelled, 1, work.RunLost},
		{over, work.Succeeded, 0, work.RunSucceeded},
		{stranger, work.Queued, 1, work.RunLost},
	} {
		u, r := l.unit(test.run.ID), l.theRun(test.run.RunID)
		if u.State != test.state || u.Losses != test.losses || u.Failures != 0 || r.Status != test.status {
			t.Errorf("unit %s with %d losses, run %s, want %+v", u.State, u.Losses, r.Status, test)
		}
	}
	if got := l.unchecked(); len(got) != 2 {
		t.Errorf("units whose bell must ring: %v", got)
	}
}

// A unit that has seen two worker processes die is a suspect; with the third it
// has failed. One that ended in between, or came back, is none.
func TestPoison(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	die := func(id uuid.UUID) *Claimed {
		t.Helper()
		c := l.take(id, l.register(-time.Second))
		if n, err := l.Runs.ExpireLeases(t.Context()); err != nil || n != 1 {
			t.Fatalf("%d lost, error %v", n, err)
		}
		return c
	}
	poison := l.put().ID
	for deaths := range 3 {
		if u := l.unit(poison); u.Deaths != deaths {
			t.Fatalf("%+v", u)
		}
		c := claimOf(poison, l.process)
		c.Alone = false
		if deaths == work.SuspectDeaths {
			if _, err := l.Runs.Claim(t.Context(), c); !errors.Is(err, ErrSuspect) {
				t.Fatalf("a suspect is given to a process that runs others: %v", err)
			}
		}
		die(poison)
	}
	u := l.unit(poison)
	if u.State != work.Failed || u.Error.Class != work.ClassCrash || !strings.Contains(u.Error.Message, "3 worker processes in a row") || u.Losses != 3 {
		t.Errorf("unit %s, error %v", u.State, u.Error)
	}
	if u, err := l.Units.Retry(t.Context(), work.DefaultTenant, poison, Changes{}); err != nil || u.Deaths != 0 {
		t.Errorf("retried with %d deaths, error %v", u.Deaths, err)
	}
	ended := l.put().ID
	die(ended)
	l.end(ending(l.take(ended, l.process), work.Queued), Recorded)
	if u := l.unit(ended); u.Deaths != 0 {
		t.Errorf("%d deaths after a run that ended", u.Deaths)
	}
	back := l.put().ID
	c := die(back)
	l.end(ending(c, work.Succeeded), Fenced)
	if u := l.unit(back); u.Deaths != 0 {
		t.Errorf("%d deaths of a worker process that came back", u.Deaths)
	}
}

// The run after a lost one goes on with its session, unless the caller wants a
// fresh one.
func TestExpireLeasesKeepsTheSession(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	dying := *l
	dying.process = l.register(-time.Second)
	kept := dying.run()
	fresh := dying.take(l.put(func(n *NewUnit) { n.SessionPolicy = work.Fresh }).ID, dying.process)
	if n, err := l.Runs.ExpireLeases(t.Context()); err != nil || n != 2 {
		t.Fatalf("%d lost, error %v", n, err)
	}
	if c := l.take(kept.ID, l.process); c.ResumeSession == "" || c.ResumeSession != kept.SessionID || c.SessionPolicy != work.Resume {
		t.Errorf("goes on with %q, was %q", c.ResumeSession, kept.SessionID)
	}
	if c := l.take(fresh.ID, l.process); c.ResumeSession != "" {
		t.Errorf("goes on with %q though it should begin afresh", c.ResumeSession)
	}
}

func TestDue(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	soon := time.Now().Add(time.Hour)
	low := l.put(func(n *NewUnit) { n.Priority = 1 })
	mid := l.put()
	high := l.put(func(n *NewUnit) { n.Priority = 9 })
	l.put(func(n *NewUnit) { n.Queue = "other" })
	l.put(func(n *NewUnit) { n.Backend = "claude" })
	l.put(func(n *NewUnit) { n.NotBefore = &soon })
	l.run()
	due, err := l.Queues.Due(t.Context(), []string{"default"}, []string{"mock"}, nil, 10)
	var ids []uuid.UUID
	for _, d := range due {
		ids = append(ids, d.UnitID)
	}
	if err != nil || !slices.Equal(ids, []uuid.UUID{high.ID, mid.ID, low.ID}) {
		t.Errorf("due %v, error %v", ids, err)
	}
	for range 3 {
		l.put(func(n *NewUnit) { n.Priority, n.Model = 9, "shut" })
	}
	due, err = l.Queues.Due(t.Context(), []string{"default"}, []string{"mock"}, []ModelOf{{"mock", "shut"}, {"claude", ""}}, 1)
	if err != nil || len(due) != 1 || due[0].UnitID != high.ID {
		t.Errorf("due %v beside a shut model, error %v", due, err)
	}
}

// A unit that may not begin yet is put off for as long as its model is shut, and
// for a minute at most when another worker process may know of no limit.
func TestDefer(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for name, test := range map[string]struct {
		offer work.Offer
		after time.Duration
	}{
		"alone":       {work.Offer{}, 4 * time.Minute},
		"elsewhere":   {work.Offer{Name: "mock", Available: true}, recheck},
		"other model": {work.Offer{Name: "mock", Available: true, Limits: []work.ModelLimit{{Model: "fast"}}}, recheck},
		"shut there": {work.Offer{Name: "mock", Available: true,
			Limits: []work.ModelLimit{{Model: "fast"}, {Model: "slow", Message: "429"}}}, 4 * time.Minute},
		"not there": {work.Offer{Name: "mock"}, 4 * time.Minute},
	} {
		other := work.Process{ID: uuid.Must(uuid.NewV7()), Queues: []string{"default"}, Backends: []work.Offer{test.offer}}
		if err := l.Processes.Register(t.Context(), other, time.Hour); err != nil {
			t.Fatal(err)
		}
		u := l.put(func(n *NewUnit) { n.Model = "slow" })
		if of, err := l.Units.ModelOf(t.Context(), u.ID); err != nil || of != (ModelOf{"mock", "slow"}) {
			t.Errorf("the model is %+v, error %v", of, err)
		}
		if err := l.Queues.Defer(t.Context(), u.ID, l.process, 4*time.Minute); err != nil {
			t.Fatal(err)
		}
		var left float64
		if err := l.db.Get(&left, `SELECT extract(epoch FROM check_at - clock_timestamp())::double precision FROM work_units WHERE id = $1`, u.ID); err != nil {
			t.Fatal(err)
		}
		if want := test.after.Seconds(); left > want || left < want-60 && want > 60 || left < 0 {
			t.Errorf("%s: comes again in %v s, want %v", name, left, want)
		}
		if err := l.Processes.Stop(t.Context(), other.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEpoch(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for _, fresh := range []string{"first", "second"} {
		if got, err := l.Queues.Epoch(t.Context(), fresh); err != nil || got != "first" {
			t.Errorf("epoch %q, error %v", got, err)
		}
	}
}
