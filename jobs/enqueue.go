package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"piecework/store"
)

// ringBudget is how long a caller waits for Redis before it leaves the bell
// to the reconciler.
const ringBudget = 300 * time.Millisecond

// Ring rings bells, and returns the first failure. A failure is nobody's
// problem but the log's: the reconciler rings again.
func (b *Bell) Ring(ctx context.Context, bells ...store.Dispatch) error {
	if !b.Up() || len(bells) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ringBudget+time.Duration(len(bells))*10*time.Millisecond)
	defer cancel()
	lanes := map[string]bool{}
	for _, d := range bells {
		if err := b.enqueue(ctx, d); err != nil {
			return fmt.Errorf("ring for unit %s: %w", d.UnitID, err)
		}
		lanes[Lane(d.Queue, d.Backend, d.Priority)] = true
	}
	for lane := range lanes {
		if err := b.redis.Publish(ctx, chanWake, lane).Err(); err != nil {
			return fmt.Errorf("wake lane %s: %w", lane, err)
		}
	}
	return nil
}

func (b *Bell) enqueue(ctx context.Context, d store.Dispatch) error {
	payload, err := json.Marshal(Task{Unit: d.UnitID, Dispatch: d.Number})
	if err != nil {
		return fmt.Errorf("encode task: %w", err)
	}
	_, err = b.client.Load().EnqueueContext(ctx, asynq.NewTask(TypeRun, payload),
		asynq.TaskID(TaskID(d.UnitID, d.Number)), asynq.Queue(Lane(d.Queue, d.Backend, d.Priority)),
		asynq.MaxRetry(0), asynq.Timeout(taskTimeout))
	// The number is ours alone, so a conflict means that an enqueue whose
	// answer was lost had succeeded.
	if errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask) {
		return nil
	}
	return err
}

// Pending tells whether a bell still waits to be heard. A task that Asynq
// calls active while its unit is queued was heard by somebody who died or
// could not claim, so it does not count.
func (b *Bell) Pending(d store.Dispatch) (bool, error) {
	info, err := b.inspector.GetTaskInfo(Lane(d.Queue, d.Backend, d.Priority), TaskID(d.UnitID, d.Number))
	if errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for the bell of unit %s: %w", d.UnitID, err)
	}
	return info.State == asynq.TaskStatePending, nil
}
