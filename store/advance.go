package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Advanced is what a look at a batch has changed.
type Advanced struct {
	Messages []Message   // to enqueue, of the units that were admitted
	Stopped  []uuid.UUID // units that were cancelled, or asked to stop
	More     bool        // it is worth to look again at once
	Moved    bool        // the batch itself has another status, or was paused
}

// cancelChunk is how many units of a batch are cancelled in one transaction.
const cancelChunk = 2000

// Live returns the batches that may go on by themselves, oldest first: with
// idle those that are paused, in which only what runs can end, else the others.
func (s *Batches) Live(ctx context.Context, idle bool) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	err := s.db.SelectContext(ctx, &ids, `SELECT id FROM batches WHERE finished_at IS NULL AND `+goesOn+` = $1 ORDER BY id`, idle)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("find live batches: %w", err))
	}
	return ids, nil
}

// goesOn holds for batches that are to be advanced, of those that are paused or of the
// others: what follows says which.
const goesOn = `status NOT IN ('enumerating', 'awaiting_approval') AND (paused_at IS NOT NULL AND status IN ('testing', 'in_progress'))`

// Advance lets go what may begin, and ends the batch when nothing is left.
// Whoever sees a unit of it end may call it, and the reconciler does: it looks
// at the database alone, so a call that was lost costs nothing but time.
func (s *Batches) Advance(ctx context.Context, id uuid.UUID) (a Advanced, err error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return a, pg.Translate(fmt.Errorf("advance batch %s: %w", id, err))
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
		return Advanced{}, pg.Translate(fmt.Errorf("advance batch %s: %w", id, err))
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
		return b.admitMore(ctx)
	case work.BatchCancelling:
		return b.cancelMore(ctx)
	case work.BatchFinalizing:
		return b.synthesized(ctx)
	}
	return nil // it waits for its units or for a person
}

// admitted counts the units that were let go and are not over.
type admitted struct {
	Live   int // all of them
	Asleep int // that wait for a provider's batch, and take no room
	Again  int // that are queued after a run
}

func (b *advancing) admitted(ctx context.Context) (n admitted, err error) {
	err = b.tx.GetContext(ctx, &n, `SELECT count(*) AS live, count(*) FILTER (WHERE state = 'waiting' AND lane = 'batch') AS asleep,
			count(*) FILTER (WHERE state = 'queued' AND run_count > 0) AS again FROM work_units
		WHERE batch_id = $1 AND NOT held AND state IN ('queued', 'running', 'waiting')`, b.ID)
	return n, err
}

// admitMore admits units, as far as the batch allows.
func (b *advancing) admitMore(ctx context.Context) error {
	n, err := b.admitted(ctx)
	if err != nil {
		return err
	}
	room, why := 0, ""
	if b.PausedAt == nil {
		room, why, err = b.room(ctx, n)
	} else if n.Live > 0 {
		err = b.holdAgain(ctx) // a run that has failed since is not repeated before the resume
	}
	if err != nil {
		return err
	}
	if why != "" {
		return b.pause(ctx, work.BySystem, why)
	}
	if room > 0 {
		if n, err := b.admit(ctx, room); err != nil || n > 0 {
			return err
		}
	}
	if n.Live > 0 {
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

// admittedUnit is a unit that was admitted.
type admittedUnit struct {
	Message
	State      work.State `db:"state"`
	StartOrder int        `db:"turn"`
}

// admit admits n units and tells how many there were: those that begin alike
// one after another, but a test takes the first that were submitted. Those of the batch
// lane have no message: they wait for a provider's batch, but for a test, whose
// answers somebody wants to see, and for those that run live after all.
func (b *advancing) admit(ctx context.Context, n int) (int, error) {
	order := "turn, id"
	if b.Status == work.BatchTesting {
		order = "id"
	}
	var let []admittedUnit
	err := b.tx.SelectContext(ctx, &let, `WITH next AS (SELECT id FROM work_units WHERE batch_id = $1 AND held AND state = 'queued'
			ORDER BY `+order+` LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET held = false, dispatch = dispatch + 1, runs_live = runs_live OR `+laneEnded+`,
			state = CASE WHEN lane = 'batch' AND NOT runs_live AND NOT `+laneEnded+` AND NOT $3 THEN 'waiting' ELSE 'queued' END,
			check_at = coalesce(u.not_before, clock_timestamp() + interval '2 seconds' + $2 * interval '1 millisecond')
		FROM next WHERE u.id = next.id RETURNING u.id, dispatch, queue, backend, priority, state, turn`, b.ID, n, b.Status == work.BatchTesting)
	if err != nil || len(let) == 0 {
		return 0, err
	}
	slices.SortFunc(let, func(a, b admittedUnit) int {
		return cmp.Or(cmp.Compare(a.StartOrder, b.StartOrder), bytes.Compare(a.UnitID[:], b.UnitID[:]))
	})
	for _, u := range let {
		if u.State == work.Queued {
			b.out.Messages = append(b.out.Messages, u.Message)
		}
	}
	b.out.More = len(b.out.Messages) == 0 // those that wait take no room
	_, err = b.tx.ExecContext(ctx, `UPDATE batches SET released = released + $2 WHERE id = $1`, b.ID, len(let))
	return len(let), err
}

// pause holds what has not begun.
func (b *advancing) pause(ctx context.Context, by, why string) error {
	_, err := b.tx.ExecContext(ctx, `UPDATE batches SET paused_at = coalesce(paused_at, clock_timestamp()), paused_by = $2, paused_why = $3
		WHERE id = $1`, b.ID, work.Clean(by), work.Clean(why))
	b.out.Moved = true
	if err != nil {
		return err
	}
	return b.holdAgain(ctx)
}

// holdAgain holds the units that were let go and have not begun. What a
// provider's batch has goes on: it is paid for.
func (b *advancing) holdAgain(ctx context.Context) error {
	_, err := b.tx.ExecContext(ctx, `WITH back AS (
			UPDATE work_units SET held = true, check_at = 'infinity', state = 'queued', runs_live = runs_live OR provider_batch IS NOT NULL WHERE id IN (
				SELECT id FROM work_units WHERE batch_id = $1 AND NOT held AND (state = 'queued' OR state = 'waiting' AND provider_batch IS NULL)
				AND NOT EXISTS (SELECT FROM provider_answers a WHERE a.unit_id = work_units.id) ORDER BY id FOR UPDATE SKIP LOCKED) RETURNING id)
		UPDATE batches SET released = released - n FROM (SELECT count(*) AS n FROM back) AS taken WHERE id = $1 AND n > 0`, b.ID)
	return err
}

// cancelMore ends units of a batch, some at a time, and its synthesis; those
// that run are asked to stop.
func (b *advancing) cancelMore(ctx context.Context) error {
	var moved []struct {
		ID    uuid.UUID  `db:"id"`
		State work.State `db:"state"`
	}
	err := b.tx.SelectContext(ctx, &moved, `WITH members AS (SELECT id AS unit_id FROM work_units WHERE batch_id = $1
			AND (state IN ('queued', 'waiting') OR state = 'running' AND cancel_requested_at IS NULL) ORDER BY state, id LIMIT $2 FOR UPDATE SKIP LOCKED
		), synthesis AS (SELECT id AS unit_id FROM work_units WHERE id = $3
			AND (state IN ('queued', 'waiting') OR state = 'running' AND cancel_requested_at IS NULL) FOR UPDATE SKIP LOCKED
		), chosen AS (SELECT unit_id FROM members UNION ALL SELECT unit_id FROM synthesis)
		UPDATE work_units SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
			finished_at = CASE WHEN state IN ('queued', 'waiting') THEN clock_timestamp() END,
			state = CASE WHEN state IN ('queued', 'waiting') THEN 'cancelled' ELSE state END
		FROM chosen WHERE id = unit_id RETURNING id, state`, b.ID, cancelChunk, b.SynthesisUnit)
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
	err = b.tx.GetContext(ctx, &live, `SELECT EXISTS (SELECT FROM work_units WHERE batch_id = $1 AND state IN ('queued', 'running', 'waiting'))
		OR EXISTS (SELECT FROM work_units WHERE id = $2 AND state IN ('queued', 'running', 'waiting'))`, b.ID, b.SynthesisUnit)
	if err != nil || live {
		return err
	}
	return b.become(ctx, work.BatchCancelled)
}

// over is what follows when no unit is left.
func (b *advancing) over(ctx context.Context) error {
	counts, err := countBatch(ctx, b.tx, b.ID)
	switch {
	case err != nil:
		return err
	case !b.wantsSynthesis(counts):
		return b.end(ctx, counts, "")
	case b.MaxCostUSD == nil || counts.Known() < *b.MaxCostUSD:
		return b.become(ctx, work.BatchFinalizing)
	case b.PausedAt != nil:
		return nil
	}
	return b.pause(ctx, work.BySystem, fmt.Sprintf("the budget of %s is spent (%s), so the synthesis does not begin; resume the batch with a larger max_cost_usd, or cancel it",
		work.Dollars(*b.MaxCostUSD), work.Dollars(counts.Known())))
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
		text, err := pg.Encode(c)
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

// synthesisWish is the part of a batch's synthesis that the database reads.
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
