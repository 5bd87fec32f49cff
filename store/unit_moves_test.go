package store

import (
	"errors"
	"testing"
	"time"

	"github.com/lib/pq"

	"piecework/internal/work"
)

// bring takes a unit that has had one run into a state, by the store's own
// verbs, and returns its last run.
func (l *fixture) bring(to work.State) *Claimed {
	l.t.Helper()
	dying := *l
	dying.process = l.register(-time.Second)
	c := dying.run()
	l.end(ending(c, work.Queued), Recorded)
	if to == work.Queued {
		return c
	}
	c = dying.take(c.ID, dying.process)
	if to == work.Waiting { // which is for units of the batch lane
		l.exec(`UPDATE work_units SET lane = 'batch' WHERE id = $1`, c.ID)
	}
	if to != work.Running {
		l.end(ending(c, to), Recorded)
	}
	return c
}

type verb struct {
	do   func(*fixture, *Claimed)
	want map[work.State]work.State // where it leads; elsewhere it changes nothing
}

func verbs() map[string]verb {
	all := map[string]verb{
		"claim": {func(l *fixture, c *Claimed) { l.take(c.ID, l.process) }, map[work.State]work.State{work.Queued: work.Running}},
		"cancel": {
			func(l *fixture, c *Claimed) {
				_, err := l.Units.Cancel(l.t.Context(), c.Tenant, c.ID)
				l.mayConflict(err)
			},
			map[work.State]work.State{work.Queued: work.Cancelled, work.Waiting: work.Cancelled},
		},
		"retry": {
			func(l *fixture, c *Claimed) {
				_, err := l.Units.Retry(l.t.Context(), c.Tenant, c.ID, Changes{})
				l.mayConflict(err)
			},
			map[work.State]work.State{work.Failed: work.Queued, work.Cancelled: work.Queued, work.TimedOut: work.Queued},
		},
		"cancel all": {
			func(l *fixture, c *Claimed) {
				_, _, err := l.Units.CancelAll(l.t.Context(), UnitFilter{Tenant: c.Tenant})
				l.must(err)
			},
			map[work.State]work.State{work.Queued: work.Cancelled, work.Waiting: work.Cancelled},
		},
		"retry all": {
			func(l *fixture, c *Claimed) {
				_, _, err := l.Units.RetryAll(l.t.Context(), UnitFilter{Tenant: c.Tenant}, Changes{})
				l.must(err)
			},
			map[work.State]work.State{work.Failed: work.Queued, work.Cancelled: work.Queued, work.TimedOut: work.Queued},
		},
		"expire leases": {
			func(l *fixture, _ *Claimed) { _, err := l.Runs.ExpireLeases(l.t.Context()); l.must(err) },
			map[work.State]work.State{work.Running: work.Queued},
		},
		"expire deadlines": {
			func(l *fixture, c *Claimed) {
				l.exec(`UPDATE work_units SET deadline = clock_timestamp() - interval '1 second' WHERE id = $1`, c.ID)
				_, err := l.Units.ExpireDeadlines(l.t.Context())
				l.must(err)
			},
			map[work.State]work.State{work.Queued: work.TimedOut, work.Waiting: work.TimedOut},
		},
		"redispatch": {func(l *fixture, c *Claimed) { _, err := l.Queues.Redispatch(l.t.Context(), pick(c)); l.must(err) }, nil},
	}
	for _, next := range []work.State{work.Succeeded, work.Failed, work.Cancelled, work.TimedOut, work.Queued, work.Waiting} {
		all["finish as "+string(next)] = verb{
			func(l *fixture, c *Claimed) {
				if next == work.Waiting {
					l.exec(`UPDATE work_units SET lane = 'batch' WHERE id = $1`, c.ID)
				}
				_, err := l.Runs.Finish(l.t.Context(), ending(c, next))
				l.must(err)
			},
			map[work.State]work.State{work.Running: next},
		}
	}
	return all
}

func (l *fixture) mayConflict(err error) {
	l.t.Helper()
	if err != nil && !errors.Is(err, work.ErrConflict) {
		l.t.Fatal(err)
	}
}

// Every verb from every state does what the table of moves allows.
func TestEveryVerbFromEveryState(t *testing.T) {
	t.Parallel()
	for name, v := range verbs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newFixture(t)
			for _, from := range work.States {
				c := l.bring(from)
				if u := l.unit(c.ID); u.State != from {
					t.Fatalf("brought to %s, not to %s", u.State, from)
				}
				want, moves := v.want[from]
				if !moves {
					want = from
				}
				v.do(l, c)
				if got := l.unit(c.ID).State; got != want || got != from && !work.CanMove(from, got) {
					t.Errorf("from %s to %s, want %s; the table allows it: %t", from, got, want, work.CanMove(from, got))
				}
			}
		})
	}
}

// What no statement does Postgres would refuse besides.
func TestConstraints(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	for name, query := range map[string]string{
		"finished_when_final":       `UPDATE work_units SET state = 'succeeded'`,
		"started_when_running":      `UPDATE work_units SET started_at = NULL`,
		"error_when_failed":         `UPDATE work_units SET state = 'failed', finished_at = now()`,
		"work_units_state_check":    `UPDATE work_units SET state = 'done'`,
		"work_units_priority_check": `UPDATE work_units SET priority = 10`,
		"work_units_timeout_check":  `UPDATE work_units SET timeout = 0`,
		"completed_when_over":       `UPDATE worker_runs SET status = 'succeeded'`,
		"worker_runs_status_check":  `UPDATE worker_runs SET status = 'done', completed_at = now()`,
		"worker_runs_one_live": `INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, started_at)
			SELECT gen_random_uuid(), tenant, unit_id, 2, worker_type, 'running', now() FROM worker_runs`,
		"one_run_per_attempt": `INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, started_at, completed_at)
			SELECT gen_random_uuid(), tenant, unit_id, 1, worker_type, 'failed', now(), now() FROM worker_runs`,
	} {
		_, err := l.db.ExecContext(t.Context(), query)
		var refused *pq.Error
		if !errors.As(err, &refused) || refused.Constraint != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.end(ending(c, work.Succeeded), Recorded)
}
