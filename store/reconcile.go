package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Reconciler is what one process at a time finds to do.
type Reconciler struct{ db *pg.DB }

// leadLock is the advisory lock of whoever reconciles.
const leadLock = 0x7069656365 // "piece"

// Lead runs round if no other process reconciles just now, and again at every tick
// until the lead is lost, a minute is over or ctx ends. It tells whether it led.
func (s *Reconciler) Lead(ctx context.Context, tick <-chan time.Time, round func(context.Context)) (bool, error) {
	return s.db.Lead(ctx, leadLock, tick, round)
}

// Pending tells what the reconciler would find something for.
type Pending struct {
	Lost       bool   `db:"lost"`       // runs of worker processes whose lease has ended
	Overdue    bool   `db:"overdue"`    // units past their deadline or their time to start
	Late       bool   `db:"late"`       // units of the batch lane that must run live
	Undone     bool   `db:"undone"`     // deliveries of worker processes that are late or dead
	Schedules  bool   `db:"schedules"`  // schedules whose time has come
	Batches    bool   `db:"batches"`    // batches that go on
	Unchecked  bool   `db:"unchecked"`  // units after the cursor whose messages are in doubt
	Unheard    bool   `db:"unheard"`    // deliveries that need a message
	RedisEpoch string `db:"redisepoch"` // as Epoch has it; empty: none yet
}

// Pending looks for everything that is asked for in each round, in one statement. It
// locks nothing, and what it finds may be gone a moment later. The first row of an
// index answers most of it; the rest counts what is at work just now.
func (s *Reconciler) Pending(ctx context.Context, after CheckCursor) (p Pending, err error) {
	err = s.db.GetContext(ctx, &p, `SELECT
		(SELECT count(*) FROM worker_runs r LEFT JOIN worker_processes p ON p.id = r.worker_process
			WHERE r.status = 'running' AND (p.id IS NULL OR NOT (`+alive+`))) > 0 AS lost,
		coalesce((SELECT deadline FROM work_units WHERE deadline IS NOT NULL AND state IN ('queued', 'waiting') ORDER BY deadline LIMIT 1) <= now(), false)
			OR coalesce((SELECT expires_at FROM work_units WHERE expires_at IS NOT NULL AND state = 'queued' AND started_at IS NULL
				ORDER BY expires_at LIMIT 1) <= now(), false) AS overdue,
		coalesce((SELECT lane_ends(created_at, deadline, expires_at) FROM work_units WHERE state = 'waiting' AND lane = 'batch'
			ORDER BY lane_ends(created_at, deadline, expires_at) LIMIT 1) <= now(), false) AS late,
		(SELECT count(*) FROM webhook_deliveries d WHERE `+undone+`) > 0 AS undone,
		coalesce((SELECT next_at FROM schedules WHERE NOT paused ORDER BY next_at LIMIT 1) <= clock_timestamp(), false) AS schedules,
		(SELECT count(*) FROM batches WHERE finished_at IS NULL AND `+goesOn+` = false) > 0 AS batches,
		(SELECT id FROM work_units WHERE state = 'queued' AND check_at <= now() AND (check_at, id) > ($1, $2)
			ORDER BY check_at, id LIMIT 1) IS NOT NULL AS unchecked,
		EXISTS (WITH `+pendingReceivers+` SELECT FROM receivers r WHERE EXISTS (SELECT FROM webhook_deliveries
			WHERE receiver = r.receiver AND `+unheard+`)) AS unheard,
		coalesce((SELECT value FROM settings WHERE name = 'redis_epoch'), '') AS redisepoch`, after.at, after.id)
	if err != nil {
		return p, pg.Translate(fmt.Errorf("look for what is due: %w", err))
	}
	return p, nil
}

// ClockBack mends what was to happen after some time, when Postgres's clock was
// set back by that much: retries, looks at messages and at providers' batches, tries of
// deliveries, leases on batches that are enumerated. A time that a caller has named stays
// what it is, and so does what was mended or written since. It returns how many
// rows that concerned.
func (s *Reconciler) ClockBack(ctx context.Context, by time.Duration) (rows int64, err error) {
	for _, statement := range []string{
		`WITH later AS (
			SELECT id FROM work_units WHERE state = 'queued' AND NOT held AND check_at ` + beforeTheStep + `
			AND (run_count > 0 OR not_before IS NULL OR not_before <= clock_timestamp()) ORDER BY id FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET check_at = u.check_at - $1 * interval '1 second',
			not_before = CASE WHEN u.run_count > 0 THEN u.not_before - $1 * interval '1 second' ELSE u.not_before END
		FROM later WHERE u.id = later.id`,
		`WITH later AS (
			SELECT id FROM webhook_deliveries WHERE state = 'pending' AND greatest(next_at, check_at, lease_until) ` + beforeTheStep + `
			ORDER BY id FOR UPDATE SKIP LOCKED)
		UPDATE webhook_deliveries d SET next_at = d.next_at - $1 * interval '1 second',
			check_at = d.check_at - $1 * interval '1 second', lease_until = d.lease_until - $1 * interval '1 second'
		FROM later WHERE d.id = later.id`,
		`UPDATE provider_batches SET look_at = look_at - $1 * interval '1 second' WHERE finished_at IS NULL AND look_at ` + beforeTheStep,
		`UPDATE batches SET fill_until = fill_until - $1 * interval '1 second' WHERE fill_until ` + beforeTheStep,
	} {
		result, err := s.db.ExecContext(ctx, statement, by.Seconds())
		if err != nil {
			return rows, pg.Translate(fmt.Errorf("mend what is to happen later: %w", err))
		}
		n, err := result.RowsAffected()
		if err != nil {
			return rows, err
		}
		rows += n
	}
	return rows, nil
}

// beforeTheStep holds for a time that was written before the clock was set back by
// $1 seconds: what is written afterwards lies nearer.
const beforeTheStep = `> clock_timestamp() + ($1 - 10) * interval '1 second'`

// ExpireLeases closes the runs of worker processes whose lease has ended as
// lost and puts their units back in the queue, or ends those that were asked to
// stop and those that have taken too many worker processes with them, the last
// while they ran alone. It returns how many, 1,000 at most. Units are locked before runs, as
// everywhere; one that somebody is at work on is left for the next look.
func (s *Runs) ExpireLeases(ctx context.Context) (int64, error) {
	result, err := s.db.ExecContext(ctx, `WITH victims AS (
			SELECT u.id AS unit_id, r.id AS run_id, 1 AS deaths, r.worker_type <> $3 AS unpriced,
				format('the worker process %s (pid %s) stopped giving signs of life', p.hostname, p.pid) AS why
			FROM worker_runs r JOIN work_units u ON u.id = r.unit_id
			LEFT JOIN worker_processes p ON p.id = r.worker_process
			WHERE r.status = 'running' AND (p.id IS NULL OR NOT (`+alive+`))
			ORDER BY u.id LIMIT $4 FOR UPDATE OF u SKIP LOCKED
		), `+giveUp, work.MaxCrashes, work.MaxLosses, work.MockBackend, maxRows)
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("expire leases: %w", err))
	}
	return result.RowsAffected()
}

// GiveUp closes a run of a worker process that says that it does not have it,
// as Runs.ExpireLeases does. unpriced tells that it may have cost something.
func (s *Runs) GiveUp(ctx context.Context, process uuid.UUID, o Owned, unpriced bool) error {
	_, err := s.db.ExecContext(ctx, `WITH victims AS (
			SELECT u.id AS unit_id, r.id AS run_id, 0 AS deaths, $5::boolean AS unpriced,
				CASE WHEN $5 THEN 'the end of the run was lost on the disk of its worker process'
					ELSE 'the run was claimed, but the worker process never heard of it' END AS why
			FROM worker_runs r JOIN work_units u ON u.id = r.unit_id
			WHERE r.status = 'running' AND r.id = $3 AND r.worker_process = $4 FOR UPDATE OF u
		), `+giveUp, work.MaxCrashes, work.MaxLosses, o.RunID, process, unpriced)
	if err != nil {
		return pg.Translate(fmt.Errorf("give up run %s: %w", o.RunID, err))
	}
	return nil
}

// giveUp closes the runs of victims as lost, and what they come back with later
// is fenced. In: victims (unit_id, run_id, deaths that it adds, unpriced, why); $1 the
// deaths and $2 the lost runs in a row after which a unit ends.
var giveUp = `lost AS (
			UPDATE worker_runs r SET status = 'lost', given_up = true, completed_at = clock_timestamp(), error_class = 'infra',
				error_message = v.why, total_cost_usd = CASE WHEN NOT v.unpriced THEN 0 END, cost_incomplete = v.unpriced,
				execution_time = extract(epoch FROM clock_timestamp() - r.started_at)
			FROM victims v WHERE r.id = v.run_id AND r.status = 'running' RETURNING r.*, v.deaths
		), verdicts AS (
			SELECT u.id, lost.id AS run, lost.session_id, lost.deaths, lost.cost_incomplete,
				CASE WHEN u.deaths + lost.deaths >= $1 THEN format('%s worker processes in a row died while it ran, the last while it ran alone', u.deaths + 1)
					WHEN ` + lostBefore("u.id") + ` + 1 >= $2 THEN format('%s runs in a row were lost, the last because %s', $2, lost.error_message)
				END AS ends, u.cancel_requested_at IS NOT NULL AS cancelled
			FROM lost JOIN work_units u ON u.id = lost.unit_id AND u.state = 'running' AND u.run_count = lost.attempt
		)
		UPDATE work_units u SET losses = losses + 1, deaths = u.deaths + v.deaths, dispatch = dispatch + 1, check_at = clock_timestamp(),
			unpriced_runs = unpriced_runs + v.cost_incomplete::int,
			state = CASE WHEN v.cancelled THEN 'cancelled' WHEN v.ends IS NOT NULL THEN 'failed' ELSE 'queued' END,
			finished_at = CASE WHEN v.cancelled OR v.ends IS NOT NULL THEN clock_timestamp() END,
			final_run = CASE WHEN NOT v.cancelled AND v.ends IS NOT NULL THEN v.run END,
			error_class = CASE WHEN NOT v.cancelled AND v.ends IS NOT NULL THEN 'crash' ELSE u.error_class END,
			error_message = CASE WHEN NOT v.cancelled AND v.ends IS NOT NULL THEN v.ends ELSE u.error_message END,
			resume_session = CASE WHEN u.session_policy = 'resume' THEN v.session_id END,
			session_cost_usd = CASE WHEN u.session_policy = 'resume' AND v.session_id = u.resume_session THEN u.session_cost_usd ELSE 0 END
		FROM verdicts v WHERE u.id = v.id`

// ExpireDeadlines ends queued and waiting units whose deadline has passed, and
// those that have not started by their expires_at. It returns how many: 1,000 of
// either at most. Like Unchecked it asks for now(), which an index can find, unlike a clock that
// goes on.
func (s *Units) ExpireDeadlines(ctx context.Context) (int64, error) {
	result, err := s.db.ExecContext(ctx, `WITH late AS (
			SELECT id FROM work_units WHERE state IN ('queued', 'waiting') AND deadline <= now() ORDER BY deadline LIMIT $2 FOR UPDATE SKIP LOCKED
		), expired AS (
			SELECT id FROM work_units WHERE state = 'queued' AND started_at IS NULL AND expires_at <= now() ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
		), overdue AS (SELECT id FROM late UNION SELECT id FROM expired)
		UPDATE work_units u SET state = 'timed_out', finished_at = clock_timestamp(), error_class = $1,
			error_message = CASE WHEN u.deadline <= now() THEN 'the deadline passed before the unit could run' || CASE WHEN u.run_count > 0 THEN ' again' ELSE '' END
				ELSE 'the unit expired before it could start' END
		FROM overdue WHERE u.id = overdue.id`, string(work.ClassTimeout), maxRows)
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("expire deadlines: %w", err))
	}
	return result.RowsAffected()
}
