package jobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

// TriggerBatch is what a trigger's batches are asked for.
type TriggerBatch struct {
	Items    string `json:"items" minLength:"1" doc:"Expression (CEL) over body, headers, event and delivery for the list that the batch is made of. Each of its values is the payload of a unit, one that is no object under the key item" example:"body.documents"`
	CustomID string `json:"custom_id,omitempty" doc:"The field that names an item; its number when left out" example:"id"`
	BatchOptions
}

const (
	// maxTriggerItems and maxTriggerBytes bound the batch that one webhook makes:
	// how many units, and what their payloads come to together.
	maxTriggerItems = 10_000
	maxTriggerBytes = 256 << 20
)

// newTriggerBatch looks at what a trigger's batches are asked for, and gives
// their units its label.
func (s *Submitter) newTriggerBatch(ctx context.Context, name string, b *TriggerBatch) (json.RawMessage, error) {
	if b.DryRun || b.ExpiresAt != nil {
		return nil, work.Invalidf("#", "a trigger's batch has no dry_run and no expires_at: leave them out")
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(strictjson.OrEmpty(json.RawMessage(b.Unit)), &fields); err != nil {
		return nil, work.Invalidf("#/unit", "must be an object")
	}
	n, wrong, err := s.unitFrom(ctx, strictjson.OrEmpty(json.RawMessage(b.Unit)))
	if len(wrong) > 0 {
		return nil, work.Within("#/unit", &work.InvalidFields{Fields: wrong})
	}
	if err != nil {
		return nil, err
	}
	if timed(n) {
		return nil, work.Invalidf("#/unit", "%s", noTimes)
	}
	if fields["labels"], err = withTriggerLabel(fields["labels"], name); err != nil {
		return nil, err
	}
	unit, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	b.Unit = strictjson.Object(unit)
	batch, err := s.NewBatch(&b.BatchOptions)
	if err == nil {
		err = s.checkSynthesis(ctx, &batch)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(b)
}

// ReadTriggerBatch reads what a trigger's batches are asked for.
func ReadTriggerBatch(t work.Trigger) (*TriggerBatch, error) {
	b := &TriggerBatch{}
	if err := json.Unmarshal(t.Batch, b); err != nil {
		return nil, fmt.Errorf("read the batch of trigger %s: %w", t.Name, err)
	}
	return b, nil
}

// DeliveredBatch is the batch that a webhook makes: units of the items, with common in
// the payload of each.
func (s *Submitter) DeliveredBatch(trigger string, b TriggerBatch, items json.RawMessage,
	common map[string]json.RawMessage) (n store.NewBatch, err error) {
	payload, err := json.Marshal(common)
	if err != nil {
		return n, err
	}
	unit, err := strictjson.Merge(json.RawMessage(b.Unit), map[string]json.RawMessage{"payload": payload})
	if err != nil {
		return n, err
	}
	b.Unit = strictjson.Object(unit)
	if n, err = s.NewBatch(&b.BatchOptions); err != nil {
		return n, err
	}
	n.Items = items
	from := batchSource{Source: source.Source{Type: typeTrigger, Path: trigger, CustomID: b.CustomID},
		OnInvalid: cmp.Or(b.OnInvalid, onInvalidReject)}
	if n.Source, err = json.Marshal(from); err != nil {
		return n, err
	}
	return n, from.checkDelivered(items, len(payload))
}

// checkDelivered looks at the items before they are taken: how many there are,
// and whether units can be made of them.
func (s batchSource) checkDelivered(items json.RawMessage, common int) error {
	seen := map[string]bool{}
	good := 0
	for item, err := range delivered(s.Source, items, source.Place{}) {
		switch {
		case err != nil:
			return err
		case item.Wrong == "" && seen[item.CustomID]:
			item.Wrong = repeats(item.CustomID).Detail
		case item.Wrong == "" && len(item.CustomID) > maxCustomID:
			item.Wrong = fmt.Sprintf("its custom_id is longer than %d bytes", maxCustomID)
		}
		if item.Wrong == "" {
			good++
		} else if s.OnInvalid != onInvalidSkip {
			return work.Invalidf("#", "item %d of the trigger's list: %s", item.Line, item.Wrong)
		}
		seen[item.CustomID] = true
		if item.Line > maxTriggerItems {
			return work.Invalidf("#", "the trigger's list has more than %d items; let the sender send fewer at once, or choose among them in items", maxTriggerItems)
		}
	}
	switch {
	case good == 0:
		return work.Invalidf("#", "the trigger's list has no item that a unit can be made of; let filter choose what has some")
	case good*common > maxTriggerBytes:
		return work.Invalidf("#", "what the trigger's mapping finds comes to more than %d bytes in %d units together; map less", maxTriggerBytes, good)
	}
	return nil
}

// delivered reads the items that came in a webhook. Whoever sends them must not
// choose what is read on the server.
func delivered(s source.Source, items json.RawMessage, from source.Place) iter.Seq2[source.Item, error] {
	s.Type, s.Path = source.TypeJSON, ""
	return func(yield func(source.Item, error) bool) {
		for item, err := range s.Read(bytes.NewReader(items), from) {
			if err == nil && item.Wrong == "" {
				item.Wrong = choosesFiles(item.Payload)
			}
			if !yield(item, err) {
				return
			}
		}
	}
}

func choosesFiles(payload json.RawMessage) string {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(payload, &fields); err != nil {
		return err.Error()
	}
	for _, key := range hostKeys {
		if fields[key] != nil {
			return fmt.Sprintf("has %s, which chooses what is read on the server; a webhook must not", key)
		}
	}
	return ""
}
