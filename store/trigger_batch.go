package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// AddBatch commits the batch that a delivery makes together with the note
// of the delivery, and returns the note; n has the id of d. When the same
// delivery made something before, that is returned, under another id, and
// nothing is made.
func (s *Triggers) AddBatch(ctx context.Context, n NewBatch, d work.TriggerDelivery) (work.TriggerDelivery, error) {
	args, err := n.args()
	if err != nil {
		return d, err
	}
	var made []uuid.UUID
	err = s.db.SelectContext(ctx, &made, `WITH first AS (
			INSERT INTO trigger_deliveries AS d (id, tenant, trigger, delivery, event, outcome, batch_id, received_at)
			VALUES ($1::uuid, $2, $21, $22, $23, 'accepted', $1::uuid, clock_timestamp())
			ON CONFLICT (tenant, trigger, delivery) DO UPDATE SET outcome = 'accepted', batch_id = excluded.batch_id, id = excluded.id, event = excluded.event,
				received_at = excluded.received_at, duplicates = d.duplicates + 1 WHERE d.outcome <> 'accepted'
			RETURNING batch_id)
		`+insertBatch+` FROM first RETURNING id`, append(args, d.Trigger, work.Clean(d.Delivery), work.Clean(d.Event))...)
	if err != nil {
		return d, pg.Translate(fmt.Errorf("make a batch of a delivery to trigger %s: %w", d.Trigger, err))
	}
	if len(made) == 1 {
		d.Outcome, d.BatchID = work.DeliveryAccepted, &made[0]
		return d, nil
	}
	return s.Redelivered(ctx, d)
}

// Redelivered finds a delivery that was taken before, and counts the repeat. One
// with the id of d is no repeat but d itself, whose answer was lost.
func (s *Triggers) Redelivered(ctx context.Context, d work.TriggerDelivery) (work.TriggerDelivery, error) {
	var found work.TriggerDelivery
	err := s.db.GetContext(ctx, &found, `UPDATE trigger_deliveries SET duplicates = duplicates + (id <> $4)::integer
		WHERE tenant = $1 AND trigger = $2 AND delivery = $3 RETURNING `+triggerDeliveryColumns, d.Tenant, d.Trigger, work.Clean(d.Delivery), d.ID)
	if err != nil {
		return d, pg.Translate(fmt.Errorf("find delivery to trigger %s: %w", d.Trigger, err))
	}
	return found, nil
}

// Items is the list that came with a batch; none once its units are made.
func (s *Batches) Items(ctx context.Context, batch uuid.UUID) (json.RawMessage, error) {
	var items json.RawMessage
	err := s.db.GetContext(ctx, &items, `SELECT coalesce(items, '[]') FROM batches WHERE id = $1`, batch)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("read the items of batch %s: %w", batch, err))
	}
	return items, nil
}
