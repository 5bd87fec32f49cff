package upkeep

import (
	"context"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// Watch reads the state of the runs here after each heartbeat, and whenever
// something may have changed.
func (h *Heartbeat) Watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.check:
		}
		if err := h.Check(ctx); err != nil && ctx.Err() == nil {
			h.Log.Warn("the state of the runs here cannot be read", "err", err)
		}
	}
}

// CheckSoon has the state of the runs here read at once.
func (h *Heartbeat) CheckSoon() { h.check.Send() }

// FirstCheck is the Check that the first heartbeat has asked for.
func (h *Heartbeat) FirstCheck(ctx context.Context) error {
	<-h.check
	return h.Check(ctx)
}

// Check acts on what Postgres says of the runs here: runs that were asked to
// stop, and runs that belong to another by now.
func (h *Heartbeat) Check(ctx context.Context) error {
	// Taken before the question, so that a run claimed in between is not
	// missing in the answer.
	mine := h.Runs.ids()
	state, err := h.Store.Processes.Assignments(ctx, h.Process)
	if err != nil {
		return err
	}
	h.Pauses.apply(state.Pauses)
	owned := map[uuid.UUID]bool{}
	for _, o := range state.Owned {
		owned[o.RunID] = true
		if !h.Runs.has(o.RunID) {
			h.release(ctx, o)
		}
		if o.Cancel {
			h.Runs.Stop(o.RunID, work.ErrCancelled)
		}
	}
	for _, run := range mine {
		if !owned[run] {
			h.Runs.Stop(run, work.ErrFenced)
		}
	}
	return nil
}

// release gives back a run that Postgres counts as ours and that does not run
// here. When its end is still to be handed in, that is what happens. Otherwise
// this process knows nothing of it: the answer to its claim never came. If it has
// just ended, this changes nothing.
func (h *Heartbeat) release(ctx context.Context, o store.Owned) {
	left, ended := h.Spool.left(o.RunID)
	var err error
	switch {
	case left.finish != nil:
		err = h.Spool.handIn(ctx, *left.finish, time.Now())
	case !left.lost && h.Spool.has(o.RunID):
		err = h.Spool.handInFile(ctx, o.RunID)
	case ended && !left.lost:
		h.Spool.markLost(o.RunID) // somebody has taken it from the disk: if he handed it in, the next check tells
	default:
		if err = h.Store.Runs.GiveUp(ctx, h.Process, o, left.lost); err == nil {
			h.Spool.forget(o.RunID)
		}
	}
	if err != nil {
		h.Log.Warn("release a run that does not run here", "unit", o.UnitID, "run", o.RunID, "err", err)
	}
}
