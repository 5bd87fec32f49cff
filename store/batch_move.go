package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"piecework/internal/work"
)

// Advanced is what a look at a batch has changed.
type Advanced struct {
	Bells   []Dispatch  // of the units that were let go
	Stopped []uuid.UUID // units that were cancelled, or asked to stop
	More    bool        // it is worth to look again at once
	Moved   bool        // the batch itself has another status, or was paused
}

// cancelPiece is how many units of a batch are cancelled in one transaction.
const cancelPiece = 2000

// LiveBatches returns the batches that may go on by themselves, oldest first: with
// idle those that are paused, in which only what runs can end, else the others.
func (s *Store) LiveBatches(ctx context.Context, idle bool) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	err := s.db.SelectContext(ctx, &ids, `SELECT id FROM batches WHERE finished_at IS NULL
		AND status NOT IN ('enumerating', 'awaiting_approval') AND (paused_at IS NOT NULL AND status IN ('testing', 'in_progress')) = $1 ORDER BY id`, idle)
	if err != nil {
		return nil, translate(fmt.Errorf("find live batches: %w", err))
	}
	return ids, nil
}

// AdvanceBatch lets go what may begin, and ends the batch when nothing is left.
// Whoever sees a unit of it end may call it, and the reconciler does: it looks
// at the ledger alone, so a call that was lost costs nothing but time.
func (s *Store) AdvanceBatch(ctx context.Context, id uuid.UUID) (a Advanced, err error) {
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return a, translate(fmt.Errorf("advance batch %s: %w", id, err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	var rows []advancing
	// Units that are added hold a key share lock on the row, which this one is not in the way of.
	err = tx.SelectContext(ctx, &rows, `SELECT `+batchColumns+`, released FROM batches
		WHERE id = $1 AND finished_at IS NULL FOR NO KEY UPDATE`, id)
	if err == nil && len(rows) == 1 {
		b := &rows[0]
		b.tx, b.out = tx, &a
		if b.Batch, err = b.batch(); err == nil {
			err = b.advance(ctx)
		}
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return Advanced{}, translate(fmt.Errorf("advance batch %s: %w", id, err))
	}
	return a, nil
}

// advancing is a batch whose row is locked.
type advancing struct {
	batchRow
	Released int `db:"released"`
	tx       *sqlx.Tx
	out      *Advanced
}

func (b *advancing) advance(ctx context.Context) error {
	switch b.Status {
	case work.BatchTesting, work.BatchInProgress:
		return b.letGo(ctx)
	case work.BatchCancelling:
		return b.cancelMore(ctx)
	case work.BatchFinalizing:
		return b.synthesized(ctx)
	}
	return nil // it waits for its units or for a person
}

// live counts the units that were let go and are not over; asleep are those of
// them that wait for a provider's batch, and take no room.
func (b *advancing) live(ctx context.Context) (live, asleep int, err error) {
	var n struct{ Live, Asleep int }
	err = b.tx.GetContext(ctx, &n, `SELECT count(*) AS live, count(*) FILTER (WHERE state = 'waiting' AND lane = 'batch') AS asleep FROM work_units
		WHERE batch_id = $1 AND NOT held AND state IN ('queued', 'running', 'waiting')`, b.ID)
	return n.Live, n.Asleep, err
}

// letGo lets units begin, as far as the batch allows.
func (b *advancing) letGo(ctx context.Context) error {
	live, asleep, err := b.live(ctx)
	if err != nil {
		return err
	}
	room, why := 0, ""
	if b.PausedAt == nil {
		if room, why, err = b.room(ctx, live, asleep); err != nil {
			return err
		}
	}
	if why != "" {
		return b.pause(ctx, work.BySystem, why)
	}
	if room > 0 {
		if n, err := b.release(ctx, room); err != nil || n > 0 {
			return err
		}
	}
	if live > 0 {
		return nil
	}
	var held bool
	err = b.tx.GetContext(ctx, &held, `SELECT EXISTS (SELECT FROM work_units WHERE batch_id = $1 AND held AND state = 'queued')`, b.ID)
	switch {
	case err != nil:
		return err
	case held && b.Status == work.BatchTesting && b.Released >= b.TestFirst:
		return b.become(ctx, work.BatchAwaitingApproval)
	case held:
		return nil // paused, or the budget waits for a unit to end
	}
	return b.over(ctx)
}

// room is how many more units may be let go; a reason means that the batch is
// to be paused.
func (b *advancing) room(ctx context.Context, live, asleep int) (room int, why string, err error) {
	most := work.BatchWindow
	if b.Concurrency > 0 {
		most = min(most, b.Concurrency)
	}
	room = most - (live - asleep)
	if b.Status == work.BatchTesting {
		room = min(room, b.TestFirst-b.Released)
	}
	if b.Batch.StopWhen != nil {
		if why, err = b.brokenRule(ctx); err != nil || why != "" {
			return 0, why, err
		}
	}
	if b.MaxCostUSD == nil || room <= 0 {
		return room, "", err
	}
	var spent struct {
		Cost     float64 `db:"cost"`
		Finished int     `db:"finished"`
		Held     bool    `db:"held"`
		Patient  bool    `db:"patient"` // what is held goes through the provider's batches
	}
	err = b.tx.GetContext(ctx, &spent, `SELECT coalesce(sum(cost_usd), 0) AS cost, count(*) FILTER (WHERE finished_at IS NOT NULL AND started_at IS NOT NULL) AS finished,
		coalesce(bool_or(held AND state = 'queued'), false) AS held,
		coalesce(bool_and(lane = 'batch') FILTER (WHERE held AND state = 'queued'), false) AS patient FROM work_units WHERE batch_id = $1`, b.ID)
	if err != nil {
		return 0, "", err
	}
	room = min(room, affordable(*b.MaxCostUSD-spent.Cost, spent.Cost, spent.Finished, live, spent.Patient))
	if room <= 0 && live == 0 && spent.Held && spent.Cost > 0 {
		why = fmt.Sprintf("the budget of $%.2f does not suffice for another unit: $%.2f is spent; resume it with a larger max_cost_usd, or cancel it",
			*b.MaxCostUSD, spent.Cost)
	}
	return room, why, nil
}

// affordable is how many units may begin besides those that are at work, when
// so much money is left. What a unit costs is known from those that are over;
// as long as few are, few begin. Patient units may wait a day for their answers:
// they do not begin by and by.
func affordable(left, spent float64, finished, live int, patient bool) int {
	known := max(1, 2*finished) - live
	if finished == 0 || spent == 0 {
		return known
	}
	paid := math.Floor(left/(spent/float64(finished)) + 1e-9)
	if patient {
		return int(math.Min(paid-float64(live), work.BatchWindow))
	}
	return min(known, int(math.Min(paid, work.BatchWindow))-live)
}

// brokenRule tells which of the batch's stop_when does not hold any more for
// the units that finished last, since a person let the batch go on.
func (b *advancing) brokenRule(ctx context.Context) (string, error) {
	rule := b.Batch.StopWhen
	var last struct {
		Count    int     `db:"count"`
		Failed   int     `db:"failed"`
		Refused  int     `db:"refused"`
		MeanCost float64 `db:"mean_cost"`
	}
	err := b.tx.GetContext(ctx, &last, `SELECT count(*), count(*) FILTER (WHERE state IN ('failed', 'timed_out')) AS failed,
			count(*) FILTER (WHERE error_class = 'refusal') AS refused, coalesce(avg(cost_usd), 0) AS mean_cost
		FROM (SELECT state, error_class, cost_usd FROM work_units WHERE batch_id = $1 AND state IN ('succeeded', 'failed', 'timed_out')
			AND finished_at > coalesce((SELECT resumed_at FROM batches WHERE id = $1), '-infinity')
			ORDER BY finished_at DESC LIMIT $2) AS u`, b.ID, rule.Window)
	if err != nil || last.Count < rule.Window {
		return "", err
	}
	over := func(limit *float64, value float64) bool { return limit != nil && value > *limit }
	switch n := float64(last.Count); {
	case over(rule.FailureRate, float64(last.Failed)/n):
		return fmt.Sprintf("%d of the last %d units failed; stop_when allows a failure_rate of %v", last.Failed, last.Count, *rule.FailureRate), nil
	case over(rule.RefusalRate, float64(last.Refused)/n):
		return fmt.Sprintf("the model declined %d of the last %d units; stop_when allows a refusal_rate of %v", last.Refused, last.Count, *rule.RefusalRate), nil
	case over(rule.MeanCostUSD, last.MeanCost):
		return fmt.Sprintf("the last %d units cost $%.4f each; stop_when allows a mean_cost_usd of %v", last.Count, last.MeanCost, *rule.MeanCostUSD), nil
	}
	return "", nil
}

// released is a unit that was let go.
type released struct {
	Dispatch
	State work.State `db:"state"`
	Turn  int        `db:"turn"`
}

// release lets n units go and tells how many there were: those that begin alike
// one after another, but a test takes the first that were submitted. Those of the batch
// lane have no bell: they wait for a provider's batch, but for a test, whose
// answers somebody wants to see.
func (b *advancing) release(ctx context.Context, n int) (int, error) {
	order := "turn, id"
	if b.Status == work.BatchTesting {
		order = "id"
	}
	var let []released
	err := b.tx.SelectContext(ctx, &let, `WITH next AS (SELECT id FROM work_units WHERE batch_id = $1 AND held AND state = 'queued'
			ORDER BY `+order+` LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET held = false, dispatch = dispatch + 1, state = CASE WHEN lane = 'batch' AND NOT $3 THEN 'waiting' ELSE 'queued' END,
			check_at = coalesce(u.not_before, clock_timestamp() + interval '2 seconds' + $2 * interval '1 millisecond')
		FROM next WHERE u.id = next.id RETURNING u.id, dispatch, queue, backend, priority, state, turn`, b.ID, n, b.Status == work.BatchTesting)
	if err != nil || len(let) == 0 {
		return 0, err
	}
	slices.SortFunc(let, func(a, b released) int {
		return cmp.Or(cmp.Compare(a.Turn, b.Turn), bytes.Compare(a.UnitID[:], b.UnitID[:]))
	})
	for _, u := range let {
		if u.State == work.Queued {
			b.out.Bells = append(b.out.Bells, u.Dispatch)
		}
	}
	b.out.More = len(b.out.Bells) == 0 // those that wait take no room
	_, err = b.tx.ExecContext(ctx, `UPDATE batches SET released = released + $2 WHERE id = $1`, b.ID, len(let))
	return len(let), err
}

// pause holds what has not begun.
func (b *advancing) pause(ctx context.Context, by, why string) error {
	_, err := b.tx.ExecContext(ctx, `WITH back AS (
			UPDATE work_units SET held = true, check_at = 'infinity', state = 'queued' WHERE id IN (
				SELECT id FROM work_units WHERE batch_id = $1 AND NOT held AND (state = 'queued' OR state = 'waiting' AND lane = 'batch' AND provider_batch IS NULL) ORDER BY id FOR UPDATE SKIP LOCKED) RETURNING id)
		UPDATE batches SET released = released - (SELECT count(*) FROM back), paused_at = coalesce(paused_at, clock_timestamp()), paused_by = $2, paused_why = $3
		WHERE id = $1`, b.ID, work.Clean(by), work.Clean(why))
	b.out.Moved = true
	return err
}

func (b *advancing) cancelMore(ctx context.Context) error {
	var moved []struct {
		ID    uuid.UUID  `db:"id"`
		State work.State `db:"state"`
	}
	err := b.tx.SelectContext(ctx, &moved, `WITH chosen AS (SELECT id AS unit_id FROM work_units WHERE batch_id = $1
			AND (state IN ('queued', 'waiting') OR state = 'running' AND cancel_requested_at IS NULL) ORDER BY state, id LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE work_units SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
			finished_at = CASE WHEN state IN ('queued', 'waiting') THEN clock_timestamp() END,
			state = CASE WHEN state IN ('queued', 'waiting') THEN 'cancelled' ELSE state END
		FROM chosen WHERE id = unit_id RETURNING id, state`, b.ID, cancelPiece)
	if err != nil {
		return err
	}
	for _, m := range moved {
		b.out.Stopped = append(b.out.Stopped, m.ID)
	}
	if len(moved) > 0 {
		b.out.More = true
		return nil
	}
	var live bool
	err = b.tx.GetContext(ctx, &live, `SELECT EXISTS (SELECT FROM work_units WHERE batch_id = $1 AND state IN ('queued', 'running', 'waiting'))`, b.ID)
	if err != nil || live {
		return err
	}
	return b.become(ctx, work.BatchCancelled)
}

// over is what follows when no unit is left.
func (b *advancing) over(ctx context.Context) error {
	counts, err := countBatch(ctx, b.tx, b.ID)
	if err != nil {
		return err
	}
	if b.wantsSynthesis(counts) {
		return b.become(ctx, work.BatchFinalizing)
	}
	return b.end(ctx, counts, "")
}

// synthesized ends a batch whose synthesis is over.
func (b *advancing) synthesized(ctx context.Context) error {
	if b.SynthesisUnit == nil {
		return nil
	}
	var state work.State
	if err := b.tx.GetContext(ctx, &state, `SELECT state FROM work_units WHERE id = $1`, *b.SynthesisUnit); err != nil || !state.Final() {
		return err
	}
	counts, err := countBatch(ctx, b.tx, b.ID)
	why := ""
	if state != work.Succeeded {
		why = fmt.Sprintf("the synthesis, unit %s, has %s", *b.SynthesisUnit, ended(state))
	}
	if err != nil {
		return err
	}
	return b.end(ctx, counts, why)
}

func (b *advancing) end(ctx context.Context, counts work.BatchCounts, why string) error {
	status := work.BatchCompleted
	if counts.Succeeded < counts.Total || why != "" {
		status = work.BatchCompletedWithFailures
	}
	if counts.Expired > 0 && b.ExpiresAt != nil {
		var late bool
		if err := b.tx.GetContext(ctx, &late, `SELECT expires_at <= clock_timestamp() FROM batches WHERE id = $1`, b.ID); err != nil {
			return err
		}
		if late {
			status, why = work.BatchExpired, cmp.Or(why, fmt.Sprintf("%d of its units had not finished when its time was over", counts.Expired))
		}
	}
	if why != "" {
		if _, err := b.tx.ExecContext(ctx, `UPDATE batches SET why = $2 WHERE id = $1`, b.ID, why); err != nil {
			return err
		}
	}
	return b.become(ctx, status)
}

// become gives the batch another status; a final one with its counts.
func (b *advancing) become(ctx context.Context, status work.BatchStatus) error {
	var counts *string
	if status.Final() {
		c, err := countBatch(ctx, b.tx, b.ID)
		if err == nil {
			c.Usage, err = usageOfBatch(ctx, b.tx, b.ID)
		}
		if err != nil {
			return err
		}
		text, err := encode(c)
		if err != nil {
			return err
		}
		counts = &text
	}
	_, err := b.tx.ExecContext(ctx, `UPDATE batches SET status = $2, counts = $3, items = CASE WHEN $3::jsonb IS NULL THEN items END,
		finished_at = CASE WHEN $3::jsonb IS NOT NULL THEN clock_timestamp() END,
		paused_at = CASE WHEN $3::jsonb IS NULL THEN paused_at END WHERE id = $1`, b.ID, string(status), counts)
	b.out.Moved, b.out.More = true, !status.Final()
	return err
}

// synthesisWish is the part of a batch's synthesis that the ledger reads.
type synthesisWish struct {
	DespiteFailures bool `json:"despite_failures"`
}

func (b *advancing) wantsSynthesis(c work.BatchCounts) bool {
	var wish synthesisWish
	if len(b.Synthesis) == 0 || b.SynthesisUnit != nil || json.Unmarshal(b.Synthesis, &wish) != nil {
		return false
	}
	return c.Succeeded == c.Total || wish.DespiteFailures && c.Succeeded > 0
}

// BatchChanges are what a resume or an approval may change about a batch; nil
// keeps what it was.
type BatchChanges struct {
	MaxCostUSD  *float64
	Concurrency *int
}

// moveBatch changes a batch that is in one of the statuses and returns it. A
// conflict says what it is in instead.
func (s *Store) moveBatch(ctx context.Context, tenant string, id uuid.UUID, from []work.BatchStatus, verb, set string, args ...any) (work.Batch, error) {
	args = append([]any{id, tenant, textArray(from)}, args...)
	result, err := s.db.ExecContext(ctx, `UPDATE batches SET `+set+` WHERE id = $1 AND tenant = $2 AND status = ANY($3)`, args...)
	if err != nil {
		return work.Batch{}, translate(fmt.Errorf("%s batch %s: %w", verb, id, err))
	}
	b, err := s.Batch(ctx, tenant, id)
	if err != nil {
		return b, err
	}
	if n, err := result.RowsAffected(); err == nil && n == 0 {
		return b, fmt.Errorf("%w: the batch is %s; %s goes with one that is %s", work.ErrConflict, b.Status, verb, orList(from))
	}
	return b, nil
}

func orList(from []work.BatchStatus) string {
	var text string
	for i, s := range from {
		switch {
		case i == 0:
		case i == len(from)-1:
			text += " or "
		default:
			text += ", "
		}
		text += string(s)
	}
	return text
}

// The statuses that each verb begins from.
var (
	goingOn    = []work.BatchStatus{work.BatchTesting, work.BatchInProgress}
	notOverYet = []work.BatchStatus{work.BatchEnumerating, work.BatchTesting, work.BatchAwaitingApproval, work.BatchInProgress,
		work.BatchFinalizing, work.BatchCancelling}
)

const changedBatch = `max_cost_usd = coalesce($4, max_cost_usd), concurrency = coalesce($5, concurrency)`

// ApproveBatch lets the rest of a batch run after its test.
func (s *Store) ApproveBatch(ctx context.Context, tenant string, id uuid.UUID, c BatchChanges) (work.Batch, error) {
	return s.moveBatch(ctx, tenant, id, []work.BatchStatus{work.BatchAwaitingApproval}, "approve",
		`status = 'in_progress', approved_at = clock_timestamp(), `+changedBatch, c.MaxCostUSD, c.Concurrency)
}

// PauseBatch lets no further unit of a batch begin; those that run go on.
func (s *Store) PauseBatch(ctx context.Context, tenant string, id uuid.UUID, by, why string) (work.Batch, error) {
	if _, err := s.moveBatch(ctx, tenant, id, goingOn, "pause", `paused_at = coalesce(paused_at, clock_timestamp()),
		paused_by = coalesce(nullif($4, ''), paused_by), paused_why = coalesce(nullif($5, ''), paused_why)`, work.Clean(by), work.Clean(why)); err != nil {
		return work.Batch{}, err
	}
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return work.Batch{}, translate(fmt.Errorf("pause batch %s: %w", id, err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	var rows []advancing
	err = tx.SelectContext(ctx, &rows, `SELECT `+batchColumns+`, released FROM batches
		WHERE id = $1 AND paused_at IS NOT NULL AND finished_at IS NULL FOR NO KEY UPDATE`, id)
	if err == nil && len(rows) == 1 {
		b := &rows[0]
		b.tx, b.out = tx, &Advanced{}
		err = b.pause(ctx, b.PausedBy, b.PausedWhy)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return work.Batch{}, translate(fmt.Errorf("pause batch %s: %w", id, err))
	}
	return s.Batch(ctx, tenant, id)
}

// ResumeBatch lets a paused batch go on.
func (s *Store) ResumeBatch(ctx context.Context, tenant string, id uuid.UUID, c BatchChanges) (work.Batch, error) {
	return s.moveBatch(ctx, tenant, id, goingOn, "resume",
		`paused_at = NULL, paused_by = '', paused_why = '', resumed_at = clock_timestamp(), `+changedBatch, c.MaxCostUSD, c.Concurrency)
}

// CancelBatch ends a batch: what has not begun does not, and what runs is asked
// to stop. One that is over is returned as it is. Anthropic counts what it was
// sent: a batch of its kind first gets all its units.
func (s *Store) CancelBatch(ctx context.Context, tenant string, id uuid.UUID, why string) (work.Batch, error) {
	b, err := s.moveBatch(ctx, tenant, id, notOverYet, "cancel", `cancelled_at = coalesce(cancelled_at, clock_timestamp()),
		status = CASE WHEN protocol = 'anthropic' AND status = 'enumerating' THEN status ELSE 'cancelling' END,
		filler = CASE WHEN protocol = 'anthropic' AND status = 'enumerating' THEN filler END,
		fill_until = CASE WHEN protocol = 'anthropic' AND status = 'enumerating' THEN fill_until END, why = coalesce(nullif($4, ''), why)`, work.Clean(why))
	if errors.Is(err, work.ErrConflict) {
		return b, nil
	}
	return b, err
}

// RetryBatch puts the failed, timed-out and cancelled units of a batch that is
// over back in the queue, MaxBulk of them at once, and tells whether others are
// left.
func (s *Store) RetryBatch(ctx context.Context, tenant string, id uuid.UUID, states []work.State) ([]Moved, bool, error) {
	return s.RetryAll(ctx, UnitFilter{Tenant: tenant, Batch: id, States: states}, Changes{})
}
