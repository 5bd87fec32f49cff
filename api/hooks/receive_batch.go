package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"maps"

	"piecework/internal/expr"
	"piecework/internal/work"
	"piecework/store"
)

// takeBatch has the batch committed that a message makes. Its items go with it;
// its units are made afterwards.
func (a *Triggers) takeBatch(ctx context.Context, h *hook, m *message, d work.TriggerDelivery) (work.TriggerDelivery, error) {
	n, err := a.newDeliveredBatch(ctx, h, m)
	if err != nil {
		return d, err
	}
	n.ID = d.ID
	if n.Title == "" {
		n.Title = h.Name + " " + m.Delivery
	}
	noted, err := a.Store.Triggers.AddBatch(ctx, n, d)
	if err == nil && noted.ID == d.ID {
		a.Submitter.EnumerateSoon(ctx, n.ID)
	}
	return noted, err
}

// newDeliveredBatch is the batch that a message makes. What the mapping finds is
// the same in all its units.
func (a *Triggers) newDeliveredBatch(ctx context.Context, h *hook, m *message) (n store.NewBatch, err error) {
	items, err := h.rules.Items.JSON(ctx, m.Vars, int(a.Bodies.Max))
	switch {
	case err != nil:
		return n, work.Invalidf("#", "the trigger's items: %v", err)
	case items[0] != '[':
		return n, work.Invalidf("#", "the trigger's items are no list: %.50s", items)
	}
	common := map[string]json.RawMessage{}
	if len(h.rules.Keys) > 0 {
		if common, err = h.mapped(ctx, m, int(a.Bodies.Max)); err != nil {
			return n, err
		}
	}
	return a.Submitter.DeliveredBatch(h.Name, *h.batch, items, common)
}

// mapped is what the trigger's mapping finds in a message, in at most limit
// bytes. What is not there is left out.
func (h *hook) mapped(ctx context.Context, m *message, limit int) (map[string]json.RawMessage, error) {
	found := maps.Clone(h.payload)
	for _, key := range h.rules.Keys {
		value, err := h.rules.Mapping[key].JSON(ctx, m.Vars, limit)
		if errors.Is(err, expr.ErrMissing) {
			continue
		}
		if err != nil {
			return nil, work.Invalidf("#", "the trigger's mapping of %s: %v", key, err)
		}
		found[key], limit = value, limit-len(value)
	}
	return found, nil
}
