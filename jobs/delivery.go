package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"piecework/store"
)

// TypeDeliver is the task: something may be due for a receiver of webhooks.
const TypeDeliver = "webhook:deliver"

// DeliveryLane is where its bells are rung. No unit's lane has this name: there
// is no such backend.
func (b *Bell) DeliveryLane() string { return "webhooks:deliver" + b.suffix }

// bellsPerReceiver is how many bells a round rings for one receiver: each lets
// somebody deliver until nothing is due, so a few are enough, and many would
// keep those of other receivers waiting.
const bellsPerReceiver = 4

// DeliverTask is the payload of TypeDeliver: ids, never data.
type DeliverTask struct {
	Delivery uuid.UUID `json:"delivery"`
	Receiver uuid.UUID `json:"receiver"`
	Dispatch int       `json:"dispatch"`
}

// RingDeliveries rings bells for deliveries.
func (b *Bell) RingDeliveries(ctx context.Context, bells []store.DeliveryMessage) error {
	if len(bells) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ringBudget+time.Duration(len(bells))*10*time.Millisecond)
	defer cancel()
	for _, d := range bells {
		payload, err := json.Marshal(DeliverTask{Delivery: d.ID, Receiver: d.Receiver, Dispatch: d.Number})
		if err != nil {
			return fmt.Errorf("encode task: %w", err)
		}
		_, err = b.client.EnqueueContext(ctx, asynq.NewTask(TypeDeliver, payload), asynq.TaskID(TaskID(d.ID, d.Number)),
			asynq.Queue(b.DeliveryLane()), asynq.MaxRetry(0), asynq.Timeout(taskTimeout))
		if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) && !errors.Is(err, asynq.ErrDuplicateTask) {
			return fmt.Errorf("ring for delivery %s: %w", d.ID, err)
		}
	}
	wake := b.redis.Pipeline()
	wake.SAdd(ctx, queuesKey, b.DeliveryLane())
	wake.Publish(ctx, b.channel(NoticeWake), b.DeliveryLane())
	if _, err := wake.Exec(ctx); err != nil {
		return fmt.Errorf("wake the lane of deliveries: %w", err)
	}
	return nil
}

// ringDeliveries rings for what is due to be delivered and has no bell.
func (r *Reconciler) ringDeliveries(ctx context.Context) error {
	bells, err := r.Store.Deliveries.Redispatch(ctx, bellsPerReceiver)
	if err != nil {
		return err
	}
	if err := r.Bell.RingDeliveries(ctx, bells); err != nil {
		return errors.Join(err, r.Store.Deliveries.RecheckAll(ctx))
	}
	return nil
}
