package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/jobs/queue"
)

const (
	// takenFor is how long a worker process may take to claim what it took from
	// Redis.
	takenFor = 1500 * time.Millisecond
)

// enqueueTaken offers units again whose message a worker process took from Redis
// and has not claimed in time: it has lost Postgres, is frozen, or died just then. If it claims the unit after all, the others find
// nothing to claim.
func (r *Reconciler) enqueueTaken(ctx context.Context) error {
	messages, err := r.Queue.Active(ctx)
	if err != nil {
		return err
	}
	if len(messages) == 0 {
		r.taken = nil
		return nil
	}
	untaken, err := r.Store.Queues.Untaken(ctx, messages)
	if err != nil {
		return err
	}
	queued := make(map[uuid.UUID]bool, len(untaken))
	for _, unit := range untaken {
		queued[unit] = true
	}
	now, taken := process.Uptime(), map[string]time.Duration{}
	var again []uuid.UUID
	for _, m := range messages {
		if !queued[m.UnitID] {
			continue
		}
		id := queue.TaskID(m.UnitID, m.Number)
		since, ok := r.taken[id]
		if !ok {
			since = now
		}
		taken[id] = since
		if now-since >= takenFor {
			again = append(again, m.UnitID)
		}
	}
	r.taken = taken
	if len(again) == 0 {
		return nil
	}
	fresh, err := r.Store.Queues.Redispatch(ctx, again)
	if err != nil {
		return err
	}
	r.Log.Warn("units are offered again: a worker process took them and did not begin", "units", len(fresh))
	if err := r.Queue.EnqueueOrFail(ctx, fresh); err != nil {
		return errors.Join(err, r.Store.Queues.Recheck(ctx, again))
	}
	return nil
}
