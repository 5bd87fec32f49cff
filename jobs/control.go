package jobs

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// Control changes what was accepted: it cancels and retries units, and moves
// batches. A change is committed; then those who wait for it are notified. What goes
// wrong with that is not the caller's problem: the next heartbeat, or the reconciler,
// sees the change.
type Control struct {
	*Submitter
	UnitChanged  func(uuid.UUID) // gets the units that were changed one by one
	BatchChanged func(uuid.UUID) // gets the batches that were changed
}

// CancelUnit cancels a unit, or asks its run to stop.
func (c *Control) CancelUnit(ctx context.Context, tenant string, id uuid.UUID) error {
	unit, err := c.Store.Units.Cancel(ctx, tenant, id)
	if err != nil {
		return err
	}
	c.UnitChanged(id)
	notify := c.queue.Cancelled
	if unit.State.Final() {
		notify = c.queue.Changed
	}
	if err := notify(context.WithoutCancel(ctx), id); err != nil {
		c.log.Debug("notify of a cancel; the next heartbeat will", "unit", id, "err", err)
	}
	return nil
}

// CancelUnits cancels the units of a filter; more: there are others.
func (c *Control) CancelUnits(ctx context.Context, f store.UnitFilter) (moved []store.Moved, more bool, err error) {
	if moved, more, err = c.Store.Units.CancelAll(ctx, f); err != nil {
		return nil, false, err
	}
	var stopped, ended []uuid.UUID
	for _, m := range moved {
		if m.State == work.Running {
			stopped = append(stopped, m.UnitID)
		} else {
			ended = append(ended, m.UnitID)
		}
	}
	notices := context.WithoutCancel(ctx)
	if err := c.queue.Cancelled(notices, stopped...); err != nil {
		c.log.Debug("notify of cancels; the next heartbeat will", "units", len(stopped), "err", err)
	}
	if err := c.queue.Changed(notices, ended...); err != nil {
		c.log.Debug("notify of cancelled units", "units", len(ended), "err", err)
	}
	return moved, more, nil
}

// RetryUnit runs a final unit again, with changes.
func (c *Control) RetryUnit(ctx context.Context, tenant string, id uuid.UUID, changes store.Changes) error {
	if changes != (store.Changes{}) {
		u, err := c.Store.Units.Get(ctx, tenant, id)
		if err == nil && len(u.Request) > 0 {
			err = work.Invalidf("#", "the unit has a request, which is sent again as it is; submit a new unit for another")
		}
		if err != nil {
			return err
		}
	}
	unit, err := c.Store.Units.Retry(ctx, tenant, id, changes)
	if err != nil {
		return err
	}
	c.requeued(ctx, []store.Moved{{Message: store.MessageOf(unit), State: unit.State, BatchID: unit.BatchID, Held: unit.Held}})
	c.UnitChanged(id)
	return nil
}

// RetryUnits runs the final units of a filter again; more: there are others.
func (c *Control) RetryUnits(ctx context.Context, f store.UnitFilter, changes store.Changes) (moved []store.Moved, more bool, err error) {
	if moved, more, err = c.Store.Units.RetryAll(ctx, f, changes); err != nil {
		return nil, false, err
	}
	c.requeued(ctx, moved)
	return moved, more, nil
}

func (c *Control) requeued(ctx context.Context, moved []store.Moved) {
	for _, batch := range c.Requeued(ctx, moved) {
		c.BatchChanged(batch)
	}
}

// ApproveBatch lets the rest of a batch run after its test.
func (c *Control) ApproveBatch(ctx context.Context, tenant string, id uuid.UUID, changes store.BatchChanges) error {
	b, err := c.Store.Batches.Approve(ctx, tenant, id, changes)
	return c.moved(ctx, b, err)
}

// ResumeBatch lets a paused batch go on.
func (c *Control) ResumeBatch(ctx context.Context, tenant string, id uuid.UUID, changes store.BatchChanges) error {
	b, err := c.Store.Batches.Resume(ctx, tenant, id, changes)
	return c.moved(ctx, b, err)
}

// PauseBatch lets no further unit of a batch begin.
func (c *Control) PauseBatch(ctx context.Context, tenant string, id uuid.UUID, by, why string) error {
	b, err := c.Store.Batches.Pause(ctx, tenant, id, by, why)
	return c.moved(ctx, b, err)
}

// CancelBatch cancels a batch, or rejects it after its test.
func (c *Control) CancelBatch(ctx context.Context, tenant string, id uuid.UUID, why string) error {
	b, err := c.Store.Batches.Cancel(ctx, tenant, id, why)
	return c.moved(ctx, b, err)
}

// RetryBatch runs the units of a batch again that are in one of the states.
func (c *Control) RetryBatch(ctx context.Context, tenant string, id uuid.UUID, states []work.State) error {
	if _, err := c.Store.Batches.Get(ctx, tenant, id); err != nil {
		return err
	}
	total := 0
	for more := true; more; {
		var moved []store.Moved
		var err error
		if moved, more, err = c.Store.Batches.Retry(ctx, tenant, id, states); err != nil {
			return err
		}
		total += len(moved)
	}
	b, err := c.Store.Batches.Get(ctx, tenant, id)
	switch {
	case err == nil && total == 0 && (b.Status == work.BatchFinalizing || b.Status == work.BatchCancelling):
		err = fmt.Errorf("%w: the batch is %s; retry its units when it is over", work.ErrConflict, b.Status)
	case err == nil && total == 0:
		err = fmt.Errorf("%w: the batch has no unit to run again", work.ErrConflict)
	}
	return c.moved(ctx, b, err)
}

// moved lets a batch that was changed go on at once.
func (c *Control) moved(ctx context.Context, b work.Batch, err error) error {
	if err != nil {
		return err
	}
	c.log.Info("batch changed", "batch", b.ID, "status", b.Status, "paused", b.Paused != nil)
	if err := AdvanceBatch(context.WithoutCancel(ctx), c.Store, c.queue, c.log, b.ID); err != nil {
		c.log.Debug("advance a batch; the reconciler will", "batch", b.ID, "err", err)
	}
	c.BatchChanged(b.ID)
	return nil
}
