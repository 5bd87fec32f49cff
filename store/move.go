package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
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
func one(tenant string, id uuid.UUID, states []work.State) pg.Where {
	var w pg.Where
	w.Add("id = ?", id)
	w.Add("tenant = ?", tenant)
	w.Add("state = ANY(?)", pg.TextArray(states))
	return w
}

// cancel ends queued and waiting units and asks running ones to stop.
func (s *Units) cancel(ctx context.Context, rows any, w pg.Where, lock, columns string) error {
	return pg.Translate(s.db.SelectContext(ctx, rows, `WITH chosen (unit_id) AS (SELECT id FROM work_units WHERE `+w.Text()+` `+lock+`)
		UPDATE work_units SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
			finished_at = CASE WHEN state IN ('queued', 'waiting') THEN clock_timestamp() END,
			state = CASE WHEN state IN ('queued', 'waiting') THEN 'cancelled' ELSE state END
		FROM chosen WHERE id = unit_id RETURNING `+columns, w.Args...))
}

// Cancel ends a queued or waiting unit at once and asks a running one to stop;
// the unit it returns tells which. A unit that is cancelled already is
// returned as it is; any other final unit is a conflict.
func (s *Units) Cancel(ctx context.Context, tenant string, id uuid.UUID) (work.Unit, error) {
	var rows []unitRow
	if err := s.cancel(ctx, &rows, one(tenant, id, Cancellable), lockOne, unitColumns); err != nil {
		return work.Unit{}, fmt.Errorf("cancel unit %s: %w", id, err)
	}
	if len(rows) == 1 {
		return rows[0].unit(), nil
	}
	u, err := s.Get(ctx, tenant, id)
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
	OnDenied *string
}

// retryNow holds for units that a retry may begin again. Units of a batch that is
// being cancelled or summed up are not among them: the batch is nearly over, and
// then they are. Nor is a synthesis that its batch cannot pay any more.
const retryNow = `NOT EXISTS (SELECT FROM batches b WHERE b.id = work_units.batch_id AND b.status IN ('cancelling', 'finalizing'))
	AND NOT EXISTS (SELECT FROM batches b WHERE b.synthesis_unit = work_units.id AND b.max_cost_usd <= (b.counts->>'cost_usd')::double precision)`

// retry puts units back in the queue. Those of a batch are held: only the batch
// admits them, within its window and its budget. A batch that was over goes on
// with them, and so does one whose synthesis is retried.
func (s *Units) retry(ctx context.Context, rows any, w pg.Where, lock, columns string, c Changes) error {
	chosen := w.Text()
	model, prompt, turns, denied := w.Arg(c.Model), w.Arg(c.Prompt), w.Arg(c.MaxTurns), w.Arg(c.OnDenied)
	return pg.Translate(s.db.SelectContext(ctx, rows, `WITH chosen (unit_id, of_batch, let_go) AS (
		SELECT id, batch_id, NOT held FROM work_units WHERE `+chosen+` `+lock+`
	), changed AS (
		UPDATE work_units SET state = CASE WHEN lane = 'batch' AND batch_id IS NULL THEN 'waiting' ELSE 'queued' END,
			held = batch_id IS NOT NULL, provider_batch = NULL, runs_live = false, finished_at = NULL, final_run = NULL,
			summary = NULL, error_class = NULL, error_message = NULL, cache = NULL, cached_from = NULL, cancel_requested_at = NULL, not_before = NULL,
			deadline = CASE WHEN deadline > clock_timestamp() THEN deadline END,
			expires_at = CASE WHEN expires_at > clock_timestamp() THEN expires_at END,
			failures = 0, losses = 0, waits = 0, crashes = 0, deaths = 0, dispatch = dispatch + 1,
			-- It takes time to enqueue many messages, about a sixth of a millisecond each.
			check_at = CASE WHEN batch_id IS NULL THEN clock_timestamp() + interval '2 seconds' + (SELECT count(*) FROM chosen) * interval '1 millisecond'
				ELSE 'infinity' END,
			resume_session = CASE WHEN `+model+`::text IS NULL AND `+prompt+`::text IS NULL THEN resume_session END,
			model = coalesce(`+model+`, model), prompt = coalesce(`+prompt+`, prompt), max_turns = coalesce(`+turns+`, max_turns),
			on_denied = coalesce(`+denied+`, on_denied),
			-- An answer that no run has used is forgotten before anybody has told its cost.
			unpriced_runs = unpriced_runs + EXISTS (SELECT FROM provider_answers a WHERE a.unit_id = work_units.id AND `+unusedAnswer+`)::int
		FROM chosen WHERE id = unit_id RETURNING work_units.*
	), forgotten AS (
		DELETE FROM provider_answers WHERE unit_id IN (SELECT unit_id FROM chosen)
	), affected AS (
		SELECT of_batch AS id, count(*) AS units, count(*) FILTER (WHERE let_go) AS let_go FROM chosen WHERE of_batch IS NOT NULL GROUP BY of_batch
		UNION ALL SELECT b.id, 0, 0 FROM batches b JOIN chosen ON b.synthesis_unit = unit_id
		WHERE b.finished_at IS NOT NULL AND b.status <> 'cancelled' AND NOT EXISTS (SELECT FROM chosen WHERE of_batch = b.id)
	), reopened AS (
		-- The row is changed whatever its status: it may end just now, and these units with it.
		UPDATE batches b SET released = greatest(released - let_go, 0), finished_at = NULL, counts = NULL,
			status = CASE WHEN units = 0 THEN 'finalizing'
				WHEN finished_at IS NOT NULL OR status = 'finalizing' THEN CASE WHEN test_first > 0 AND approved_at IS NULL THEN 'testing' ELSE 'in_progress' END
				WHEN status = 'awaiting_approval' THEN 'testing' ELSE status END,
			why = CASE WHEN finished_at IS NULL THEN why ELSE '' END,
			cancelled_at = CASE WHEN finished_at IS NULL THEN cancelled_at END,
			synthesis_unit = CASE WHEN units = 0 OR finished_at IS NULL AND status <> 'finalizing' THEN synthesis_unit END,
			rounds = rounds + (units > 0 AND (finished_at IS NOT NULL OR status = 'finalizing'))::integer,
			filler = CASE WHEN status <> 'finalizing' THEN filler END
		FROM affected WHERE b.id = affected.id
	) SELECT `+columns+` FROM changed`, w.Args...))
}

// Retry puts a failed, cancelled or timed-out unit back in the queue with its
// counts at zero. Its runs stay as they were. A unit of a batch is held until
// Batches.Advance admits it.
func (s *Units) Retry(ctx context.Context, tenant string, id uuid.UUID, c Changes) (work.Unit, error) {
	w := one(tenant, id, Retryable)
	w.Conds = append(w.Conds, retryNow)
	var rows []unitRow
	if err := s.retry(ctx, &rows, w, lockOne, unitColumns, c); err != nil {
		return work.Unit{}, fmt.Errorf("retry unit %s: %w", id, err)
	}
	if len(rows) == 1 {
		return rows[0].unit(), nil
	}
	u, err := s.Get(ctx, tenant, id)
	switch {
	case err != nil:
	case !slices.Contains(Retryable, u.State):
		err = fmt.Errorf("%w: the unit is %s; only a failed, cancelled or timed-out unit can be retried",
			work.ErrConflict, u.State)
	case u.BatchID != nil:
		err = fmt.Errorf("%w: the batch of the unit, %s, is about to end; retry the unit when the batch is over", work.ErrConflict, u.BatchID)
	default:
		err = fmt.Errorf("%w: the unit sums up a batch whose max_cost_usd is spent", work.ErrConflict)
	}
	return u, err
}

// Moved is one of many units that were retried or cancelled.
type Moved struct {
	Message
	State work.State `db:"state"`
	costRow
	BatchID *uuid.UUID `db:"batch_id"`
	Held    bool       `db:"held"` // its batch is to admit it
}

// Cost is what the unit has cost so far.
func (m Moved) Cost() work.Cost { return m.cost() }

const movedColumns = `id, dispatch, queue, backend, priority, state, batch_id, held, ` + costColumns

// RetryAll retries the units that f chooses and that can be retried, the
// oldest MaxBulk of them, and tells whether others are left. Those of batches
// are held, as Retry has it. Page and length of f do not count. Changes mean nothing to a unit that has a request: with any,
// those are left as they are.
func (s *Units) RetryAll(ctx context.Context, f UnitFilter, c Changes) ([]Moved, bool, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	w := f.retryable(c)
	var moved []Moved
	if err := s.retry(ctx, &moved, w, lockMany, movedColumns, c); err != nil {
		return nil, false, fmt.Errorf("retry units: %w", err)
	}
	return moved, s.any(ctx, w, len(moved)), nil
}

// CancelAll cancels the units that f chooses, as Units.RetryAll retries them.
// Running ones that were asked before are not asked again.
func (s *Units) CancelAll(ctx context.Context, f UnitFilter) ([]Moved, bool, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	w := f.cancellable()
	var moved []Moved
	if err := s.cancel(ctx, &moved, w, lockMany, movedColumns); err != nil {
		return nil, false, fmt.Errorf("cancel units: %w", err)
	}
	return moved, s.any(ctx, w, len(moved)), nil
}

// any tells whether w still chooses a unit. The change before it is committed,
// so its failure must not hide that: a full bulk is then taken for one of more.
func (s *Units) any(ctx context.Context, w pg.Where, moved int) bool {
	var more bool
	if err := s.db.GetContext(ctx, &more, `SELECT EXISTS (SELECT FROM work_units WHERE `+w.Text()+`)`, w.Args...); err != nil {
		return moved == MaxBulk
	}
	return more
}

func (f UnitFilter) retryable(c Changes) pg.Where {
	w := f.where()
	w.Add("state = ANY(?)", pg.TextArray(Retryable))
	w.Conds = append(w.Conds, retryNow)
	if c != (Changes{}) {
		w.Conds = append(w.Conds, "request IS NULL")
	}
	return w
}

func (f UnitFilter) cancellable() pg.Where {
	w := f.where()
	w.Add("state = ANY(?)", pg.TextArray(Cancellable))
	w.Conds = append(w.Conds, "(state <> 'running' OR cancel_requested_at IS NULL)")
	return w
}

// Preview is what a bulk would change.
type Preview struct {
	Count int
	Cost  work.Cost // so far
	Units []work.Unit
}

// PreviewRetry tells what Units.RetryAll would retry, in as many calls as it takes,
// and lists the first units.
func (s *Units) PreviewRetry(ctx context.Context, f UnitFilter, c Changes, list int) (Preview, error) {
	return s.preview(ctx, f.retryable(c), list)
}

// PreviewCancel tells what Units.CancelAll would cancel.
func (s *Units) PreviewCancel(ctx context.Context, f UnitFilter, list int) (Preview, error) {
	return s.preview(ctx, f.cancellable(), list)
}

func (s *Units) preview(ctx context.Context, w pg.Where, list int) (Preview, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var sum struct {
		Count int `db:"count"`
		costRow
	}
	err := s.db.GetContext(ctx, &sum, `SELECT count(*), `+sumOfCosts+` FROM work_units WHERE `+w.Text(), w.Args...)
	p := Preview{Count: sum.Count, Cost: sum.cost()}
	var rows []unitRow
	if err == nil {
		err = s.db.SelectContext(ctx, &rows, `SELECT `+listColumns+` FROM work_units WHERE `+w.Text()+
			fmt.Sprintf(` ORDER BY id LIMIT %d`, list), w.Args...)
	}
	if err != nil {
		return p, pg.Translate(fmt.Errorf("preview units: %w", err))
	}
	for _, r := range rows {
		p.Units = append(p.Units, r.unit())
	}
	return p, nil
}
