package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// Retryable and Cancellable are the states that each verb begins from.
var (
	Retryable   = []work.State{work.Failed, work.TimedOut, work.Cancelled}
	Cancellable = []work.State{work.Queued, work.Running, work.Waiting}
)

// MaxBulk is how many units one call retries or cancels at most.
const MaxBulk = 10_000

// How a statement locks the rows it is about to change. One row is waited for.
// Many are taken in the order of their ids, and those that somebody is at work
// on are left: so two statements never wait for each other.
var (
	lockOne  = "ORDER BY id FOR UPDATE"
	lockMany = fmt.Sprintf("ORDER BY id LIMIT %d FOR UPDATE SKIP LOCKED", MaxBulk)
)

// one chooses a unit that is in one of the states.
func one(tenant string, id uuid.UUID, states []work.State) where {
	var w where
	w.add("id = ?", id)
	w.add("tenant = ?", tenant)
	w.add("state = ANY(?)", textArray(states))
	return w
}

// cancel ends queued and waiting units and asks running ones to stop.
func (s *Store) cancel(ctx context.Context, rows any, w where, lock, columns string) error {
	return translate(s.db.SelectContext(ctx, rows, `WITH chosen (unit_id) AS (SELECT id FROM work_units WHERE `+w.text()+` `+lock+`)
		UPDATE work_units SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
			finished_at = CASE WHEN state IN ('queued', 'waiting') THEN clock_timestamp() END,
			state = CASE WHEN state IN ('queued', 'waiting') THEN 'cancelled' ELSE state END
		FROM chosen WHERE id = unit_id RETURNING `+columns, w.args...))
}

// Cancel ends a queued or waiting unit at once and asks a running one to stop;
// the unit it returns tells which. A unit that is cancelled already is
// returned as it is; any other final unit is a conflict.
func (s *Store) Cancel(ctx context.Context, tenant string, id uuid.UUID) (work.Unit, error) {
	var rows []unitRow
	if err := s.cancel(ctx, &rows, one(tenant, id, Cancellable), lockOne, unitColumns); err != nil {
		return work.Unit{}, fmt.Errorf("cancel unit %s: %w", id, err)
	}
	if len(rows) == 1 {
		return rows[0].unit(), nil
	}
	u, err := s.Unit(ctx, tenant, id)
	if err == nil && u.State != work.Cancelled {
		err = fmt.Errorf("%w: the unit has %s already; only a queued, waiting or running unit can be cancelled",
			work.ErrConflict, ended(u.State))
	}
	return u, err
}

func ended(s work.State) string {
	if s == work.TimedOut {
		return "timed out"
	}
	return string(s)
}

// Changes are what a retry may change about a unit; nil keeps what it was.
type Changes struct {
	Model    *string
	Prompt   *string
	MaxTurns *int
}

// retry puts units back in the queue. A batch that was over goes on with them.
func (s *Store) retry(ctx context.Context, rows any, w where, lock, columns string, c Changes) error {
	chosen := w.text()
	model, prompt, turns := w.arg(c.Model), w.arg(c.Prompt), w.arg(c.MaxTurns)
	return translate(s.db.SelectContext(ctx, rows, `WITH chosen (unit_id) AS (SELECT id FROM work_units WHERE `+chosen+` `+lock+`), changed AS (
		UPDATE work_units SET state = CASE WHEN lane = 'batch' THEN 'waiting' ELSE 'queued' END, provider_batch = NULL, finished_at = NULL, final_run = NULL,
			summary = NULL, error_class = NULL, error_message = NULL, cache = NULL, cached_from = NULL, cancel_requested_at = NULL, not_before = NULL,
			deadline = CASE WHEN deadline > clock_timestamp() THEN deadline END,
			expires_at = CASE WHEN expires_at > clock_timestamp() THEN expires_at END,
			failures = 0, losses = 0, waits = 0, crashes = 0, deaths = 0, dispatch = dispatch + 1,
			-- Many bells take their time to ring, about a sixth of a millisecond each.
			check_at = clock_timestamp() + interval '2 seconds' + (SELECT count(*) FROM chosen) * interval '1 millisecond',
			held = false,
			resume_session = CASE WHEN `+model+`::text IS NULL AND `+prompt+`::text IS NULL THEN resume_session END,
			model = coalesce(`+model+`, model), prompt = coalesce(`+prompt+`, prompt), max_turns = coalesce(`+turns+`, max_turns)
		FROM chosen WHERE id = unit_id RETURNING work_units.*
	), forgotten AS (
		DELETE FROM provider_answers WHERE unit_id IN (SELECT unit_id FROM chosen)
	), reopened AS (
		UPDATE batches SET status = 'in_progress', finished_at = NULL, counts = NULL, why = '', cancelled_at = NULL, synthesis_unit = NULL, rounds = rounds + 1
		WHERE id IN (SELECT batch_id FROM changed) AND finished_at IS NOT NULL
	) SELECT `+columns+` FROM changed`, w.args...))
}

// Retry puts a failed, cancelled or timed-out unit back in the queue with its
// counts at zero. Its runs stay as they were.
func (s *Store) Retry(ctx context.Context, tenant string, id uuid.UUID, c Changes) (work.Unit, error) {
	var rows []unitRow
	if err := s.retry(ctx, &rows, one(tenant, id, Retryable), lockOne, unitColumns, c); err != nil {
		return work.Unit{}, fmt.Errorf("retry unit %s: %w", id, err)
	}
	if len(rows) == 1 {
		return rows[0].unit(), nil
	}
	u, err := s.Unit(ctx, tenant, id)
	if err == nil {
		err = fmt.Errorf("%w: the unit is %s; only a failed, cancelled or timed-out unit can be retried",
			work.ErrConflict, u.State)
	}
	return u, err
}

// Moved is one of many units that were retried or cancelled.
type Moved struct {
	Dispatch
	State work.State `db:"state"`
	costRow
}

// Cost is what the unit has cost so far.
func (m Moved) Cost() work.Cost { return m.cost() }

const movedColumns = `id, dispatch, queue, backend, priority, state, ` + costColumns

// RetryAll retries the units that f chooses and that can be retried, the
// oldest MaxBulk of them, and tells whether others are left. Page and length
// of f do not count. Changes mean nothing to a unit that has a request: with any,
// those are left as they are.
func (s *Store) RetryAll(ctx context.Context, f UnitFilter, c Changes) ([]Moved, bool, error) {
	ctx = allow(ctx, longLimit)
	w := f.retryable(c)
	var moved []Moved
	if err := s.retry(ctx, &moved, w, lockMany, movedColumns, c); err != nil {
		return nil, false, fmt.Errorf("retry units: %w", err)
	}
	return moved, s.any(ctx, w, len(moved)), nil
}

// CancelAll cancels the units that f chooses, as RetryAll retries them.
// Running ones that were asked before are not asked again.
func (s *Store) CancelAll(ctx context.Context, f UnitFilter) ([]Moved, bool, error) {
	ctx = allow(ctx, longLimit)
	w := f.cancellable()
	var moved []Moved
	if err := s.cancel(ctx, &moved, w, lockMany, movedColumns); err != nil {
		return nil, false, fmt.Errorf("cancel units: %w", err)
	}
	return moved, s.any(ctx, w, len(moved)), nil
}

// any tells whether w still chooses a unit. The change before it is committed,
// so its failure must not hide that: a full bulk is then taken for one of more.
func (s *Store) any(ctx context.Context, w where, moved int) bool {
	var more bool
	if err := s.db.GetContext(ctx, &more, `SELECT EXISTS (SELECT FROM work_units WHERE `+w.text()+`)`, w.args...); err != nil {
		return moved == MaxBulk
	}
	return more
}

func (f UnitFilter) retryable(c Changes) where {
	w := f.where()
	w.add("state = ANY(?)", textArray(Retryable))
	if c != (Changes{}) {
		w.conds = append(w.conds, "request IS NULL")
	}
	return w
}

func (f UnitFilter) cancellable() where {
	w := f.where()
	w.add("state = ANY(?)", textArray(Cancellable))
	w.conds = append(w.conds, "(state <> 'running' OR cancel_requested_at IS NULL)")
	return w
}

// Preview is what a bulk would change.
type Preview struct {
	Count int
	Cost  work.Cost // so far
	Units []work.Unit
}

// PreviewRetry tells what RetryAll would retry, in as many calls as it takes,
// and lists the first units.
func (s *Store) PreviewRetry(ctx context.Context, f UnitFilter, c Changes, list int) (Preview, error) {
	return s.preview(ctx, f.retryable(c), list)
}

// PreviewCancel tells what CancelAll would cancel.
func (s *Store) PreviewCancel(ctx context.Context, f UnitFilter, list int) (Preview, error) {
	return s.preview(ctx, f.cancellable(), list)
}

func (s *Store) preview(ctx context.Context, w where, list int) (Preview, error) {
	ctx = allow(ctx, longLimit)
	var sum struct {
		Count int `db:"count"`
		costRow
	}
	err := s.db.GetContext(ctx, &sum, `SELECT count(*), `+sumOfCosts+` FROM work_units WHERE `+w.text(), w.args...)
	p := Preview{Count: sum.Count, Cost: sum.cost()}
	var rows []unitRow
	if err == nil {
		err = s.db.SelectContext(ctx, &rows, `SELECT `+listColumns+` FROM work_units WHERE `+w.text()+
			fmt.Sprintf(` ORDER BY id LIMIT %d`, list), w.args...)
	}
	if err != nil {
		return p, translate(fmt.Errorf("preview units: %w", err))
	}
	for _, r := range rows {
		p.Units = append(p.Units, r.unit())
	}
	return p, nil
}
