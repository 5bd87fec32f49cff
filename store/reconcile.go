package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Queues are the queued units: which are due, and which may have no message in Redis.
type Queues struct{ db *pg.DB }

// recheck is how long a bell that was seen on its way is trusted.
const recheck = time.Minute

// pieceRows is how many rows one statement of a look at the ledger changes: what is
// more comes with the next, so that nobody waits long for a row.
const pieceRows = 1000

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
		), `+giveUp, work.MaxCrashes, work.MaxLosses, work.MockBackend, pieceRows)
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
		FROM overdue WHERE u.id = overdue.id`, string(work.ClassTimeout), pieceRows)
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("expire deadlines: %w", err))
	}
	return result.RowsAffected()
}

// Dispatch is one bell: unit X may be runnable.
type Dispatch struct {
	UnitID   uuid.UUID `db:"id"`
	Number   int       `db:"dispatch"`
	Queue    string    `db:"queue"`
	Backend  string    `db:"backend"`
	Priority int       `db:"priority"`
}

// DispatchOf returns the newest bell of a unit.
func DispatchOf(u work.Unit) Dispatch {
	return Dispatch{UnitID: u.ID, Number: u.Dispatch, Queue: u.Queue, Backend: u.Backend, Priority: u.Priority}
}

// CheckCursor is how far a walk over the units that are due has come.
type CheckCursor struct {
	at time.Time
	id uuid.UUID
}

// committedLate is by how much a unit that became due may be committed after another
// that became so later.
const committedLate = 500 * time.Millisecond

// Back is the cursor from which nothing is missed that was committed late.
func (c CheckCursor) Back() CheckCursor {
	if c.at.IsZero() {
		return c
	}
	return CheckCursor{at: c.at.Add(-committedLate)}
}

// Unchecked returns queued units that are due after a cursor, in the order in which
// they became so, and the cursor behind them: whoever walks on sees those that have
// become due meanwhile. What waits is not written to for being looked at.
func (s *Queues) Unchecked(ctx context.Context, after CheckCursor, limit int) ([]Dispatch, CheckCursor, error) {
	var rows []struct {
		Dispatch
		CheckAt time.Time `db:"check_at"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT id, dispatch, queue, backend, priority, check_at FROM work_units
		WHERE state = 'queued' AND check_at <= now() AND (check_at, id) > ($1, $2)
		ORDER BY check_at, id LIMIT $3`, after.at, after.id, limit)
	if err != nil {
		return nil, after, pg.Translate(fmt.Errorf("find units whose messages may be lost: %w", err))
	}
	due := make([]Dispatch, len(rows))
	for i, r := range rows {
		due[i], after = r.Dispatch, CheckCursor{r.CheckAt, r.UnitID}
	}
	return due, after, nil
}

// Defer puts off the dispatch of a unit that process has taken from the queue and
// may not begin yet. When another live worker process has the unit's backend and
// knows of no limit of its model, that one may try after a minute at most.
func (s *Queues) Defer(ctx context.Context, unit, process uuid.UUID, after time.Duration) error {
	_, err := s.db.ExecContext(ctx, `WITH queued AS (
			SELECT id, EXISTS (SELECT FROM worker_processes p WHERE p.id <> $2 AND p.stopped_at IS NULL AND p.lease_until > clock_timestamp()
				AND p.backends @> jsonb_build_array(jsonb_build_object('name', backend, 'available', true))
				AND NOT p.backends @> jsonb_build_array(jsonb_build_object('name', backend, 'limits', jsonb_build_array(jsonb_build_object('model', model))))) AS elsewhere
			FROM work_units WHERE id = $1 AND `+isQueued+` AND NOT held FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET check_at = clock_timestamp() + CASE WHEN elsewhere THEN least($3::double precision, $4::double precision) ELSE $3::double precision END * interval '1 second'
		FROM queued WHERE u.id = queued.id`, unit, process, after.Seconds(), recheck.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("defer unit %s: %w", unit, err))
	}
	return nil
}

// Recheck notes that nobody knows whether the units' bells rang.
func (s *Queues) Recheck(ctx context.Context, units []uuid.UUID) error {
	return s.lookAgain(ctx, units, 0)
}

func (s *Queues) lookAgain(ctx context.Context, units []uuid.UUID, after time.Duration) error {
	_, err := s.db.ExecContext(ctx, `WITH `+stillQueued+` UPDATE work_units u
		SET check_at = clock_timestamp() + $2 * interval '1 second' FROM queued WHERE u.id = queued.id`,
		pg.UUIDs(units), after.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("note when to look again: %w", err))
	}
	return nil
}

// stillQueued locks those of $1 that are queued. One that is locked is being
// claimed or cancelled just now, and waiting for it could end in a deadlock.
const stillQueued = `queued AS (
	SELECT id FROM work_units WHERE id = ANY($1::uuid[]) AND ` + isQueued + ` AND NOT held ORDER BY id FOR UPDATE SKIP LOCKED)`

// Redispatch gives each unit that is still queued a new bell and returns the
// bells to ring.
func (s *Queues) Redispatch(ctx context.Context, units []uuid.UUID) ([]Dispatch, error) {
	var bells []Dispatch
	err := s.db.SelectContext(ctx, &bells, `WITH `+stillQueued+` UPDATE work_units u SET dispatch = dispatch + 1,
		check_at = clock_timestamp() + $2 * interval '1 second'
		FROM queued WHERE u.id = queued.id RETURNING u.id, dispatch, queue, backend, priority`,
		pg.UUIDs(units), recheck.Seconds())
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("redispatch units: %w", err))
	}
	return bells, nil
}

// RecheckAll makes every queued unit's bell doubtful: Redis has forgotten
// what it was told. It returns how many. It goes on piece by piece until ctx ends.
func (s *Queues) RecheckAll(ctx context.Context) (n int64, err error) {
	now, err := s.db.Clock(ctx)
	if err != nil {
		return 0, fmt.Errorf("recheck all units: %w", err)
	}
	for done := pieceRows; err == nil && done == pieceRows; n += int64(done) {
		done, err = s.db.ExecCount(ctx, "recheck all units", `WITH due AS (
			SELECT id FROM work_units WHERE state = 'queued' AND NOT held AND check_at > $1
			AND (not_before IS NULL OR not_before <= $1) ORDER BY check_at LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET check_at = $1 FROM due WHERE u.id = due.id`, now, pieceRows)
	}
	return n, err
}

// ModelOf names a model of a backend, as units do: empty is the backend's own.
type ModelOf struct {
	Backend string `db:"backend"`
	Model   string `db:"model"`
}

// ModelOf returns the model of a unit.
func (s *Units) ModelOf(ctx context.Context, unit uuid.UUID) (ModelOf, error) {
	var of ModelOf
	if err := s.db.GetContext(ctx, &of, `SELECT backend, model FROM work_units WHERE id = $1`, unit); err != nil {
		return of, pg.Translate(fmt.Errorf("read the model of unit %s: %w", unit, err))
	}
	return of, nil
}

// Untaken returns those of the bells whose unit is still queued and due, and
// waits for no worker process to be alone with it.
func (s *Queues) Untaken(ctx context.Context, bells []Dispatch) ([]uuid.UUID, error) {
	units, numbers := make([]uuid.UUID, len(bells)), make([]int64, len(bells))
	for i, b := range bells {
		units[i], numbers[i] = b.UnitID, int64(b.Number)
	}
	var untaken []uuid.UUID
	err := s.db.SelectContext(ctx, &untaken, `SELECT u.id FROM unnest($1::uuid[], $2::integer[]) AS b(id, dispatch)
		JOIN work_units u ON u.id = b.id AND u.dispatch = b.dispatch
		WHERE `+isQueued+` AND NOT u.held AND (u.not_before IS NULL OR u.not_before <= clock_timestamp()) AND u.deaths < $3`,
		pg.UUIDs(units), pq.Array(numbers), work.SuspectDeaths)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("find units that nobody began: %w", err))
	}
	return untaken, nil
}

// ClockBack mends what was to happen after some time, when Postgres's clock was
// set back by that much: retries, looks at bells and at providers' batches, tries of
// deliveries, leases on batches that are filled. A time that a caller has named stays
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

// Due returns queued units that may run now on one of the backends, most
// urgent first: what a worker process asks when Redis is away. It takes the
// first few of each queue and backend, as the index has them: to sort the whole
// backlog at every look would cost more than the work. Units of the shut models
// are passed over.
func (s *Queues) Due(ctx context.Context, queues, backends []string, shut []ModelOf, limit int) ([]Dispatch, error) {
	names := make([]string, len(shut)) // a backend's name has no colon
	for i, m := range shut {
		names[i] = m.Backend + ":" + m.Model
	}
	var due []Dispatch
	err := s.db.SelectContext(ctx, &due, `SELECT u.* FROM unnest($1::text[]) AS q, unnest($2::text[]) AS b, LATERAL (
			SELECT id, dispatch, queue, backend, priority FROM work_units u
			WHERE state = 'queued' AND NOT held AND queue = q AND backend = b AND (not_before IS NULL OR not_before <= clock_timestamp()) AND `+notPaused+`
				AND backend || ':' || model <> ALL ($4::text[])
			ORDER BY priority DESC, id LIMIT $3) AS u
		ORDER BY priority DESC, id LIMIT $3`, pq.Array(queues), pq.Array(backends), limit, pq.Array(names))
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("find due units: %w", err))
	}
	return due, nil
}

// Epoch returns the mark that Redis should bear, making one from fresh when
// there is none yet.
func (s *Queues) Epoch(ctx context.Context, fresh string) (string, error) {
	var epoch string
	err := s.db.GetOrMake(ctx, &epoch, `WITH made AS (
			INSERT INTO settings (name, value) VALUES ('redis_epoch', $1) ON CONFLICT (name) DO NOTHING RETURNING value)
		SELECT value FROM made UNION ALL SELECT value FROM settings WHERE name = 'redis_epoch' LIMIT 1`, fresh)
	if err != nil {
		return "", pg.Translate(fmt.Errorf("read redis epoch: %w", err))
	}
	return epoch, nil
}
