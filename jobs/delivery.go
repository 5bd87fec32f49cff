package jobs

import (
	"context"
	"errors"
)

// messagesPerReceiver is how many messages a round enqueues for one receiver: each lets
// somebody deliver until nothing is due, so a few are enough, and many would
// keep those of other receivers waiting.
const messagesPerReceiver = 4

// enqueueDeliveries enqueues what is due to be delivered and has no message.
func (r *Reconciler) enqueueDeliveries(ctx context.Context) error {
	messages, err := r.Store.Deliveries.Redispatch(ctx, messagesPerReceiver)
	if err != nil {
		return err
	}
	if err := r.Queue.EnqueueDeliveries(ctx, messages); err != nil {
		return errors.Join(err, r.Store.Deliveries.RecheckAll(ctx))
	}
	return nil
}
