package queue

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

// DeliveryQueue is where its messages go. No unit's queue has this name: there
// is no such backend.
func (c *Client) DeliveryQueue() string { return "webhooks:deliver" + c.suffix }

// DeliverTask is the payload of TypeDeliver: ids, never data.
type DeliverTask struct {
	Delivery uuid.UUID `json:"delivery"`
	Receiver uuid.UUID `json:"receiver"`
	Dispatch int       `json:"dispatch"`
}

// EnqueueDeliveries sends messages for deliveries.
func (c *Client) EnqueueDeliveries(ctx context.Context, messages []store.DeliveryMessage) error {
	if len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout+time.Duration(len(messages))*10*time.Millisecond)
	defer cancel()
	for _, d := range messages {
		payload, err := json.Marshal(DeliverTask{Delivery: d.ID, Receiver: d.Receiver, Dispatch: d.Number})
		if err != nil {
			return fmt.Errorf("encode task: %w", err)
		}
		_, err = c.client.EnqueueContext(ctx, asynq.NewTask(TypeDeliver, payload), asynq.TaskID(TaskID(d.ID, d.Number)),
			asynq.Queue(c.DeliveryQueue()), asynq.MaxRetry(0), asynq.Timeout(taskTimeout))
		if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) && !errors.Is(err, asynq.ErrDuplicateTask) {
			return fmt.Errorf("enqueue delivery %s: %w", d.ID, err)
		}
	}
	wakeUp := c.redis.Pipeline()
	wakeUp.SAdd(ctx, queuesKey, c.DeliveryQueue())
	wakeUp.Publish(ctx, c.channel(NoticeWake), c.DeliveryQueue())
	if _, err := wakeUp.Exec(ctx); err != nil {
		return fmt.Errorf("wake up readers of the queue of deliveries: %w", err)
	}
	return nil
}
