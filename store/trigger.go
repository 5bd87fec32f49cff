package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Triggers are names that webhooks are sent to, and what was received for them.
type Triggers struct {
	db      *pg.DB
	decline *pg.Group[work.TriggerDelivery, work.TriggerDelivery]
}

const triggerColumns = `tenant, name, scheme, secrets, fingerprints, events, filter, event_from, delivery_from, mapping, max_body_bytes, paused, unit, batch, created_at, updated_at`

type triggerRow struct {
	Tenant       string         `db:"tenant"`
	Name         string         `db:"name"`
	Scheme       []byte         `db:"scheme"`
	Secrets      pq.ByteaArray  `db:"secrets"`
	Fingerprints pq.StringArray `db:"fingerprints"`
	Events       []byte         `db:"events"`
	Filter       string         `db:"filter"`
	EventFrom    string         `db:"event_from"`
	DeliveryFrom string         `db:"delivery_from"`
	Mapping      []byte         `db:"mapping"`
	MaxBodyBytes int64          `db:"max_body_bytes"`
	Paused       bool           `db:"paused"`
	Unit         []byte         `db:"unit"`
	Batch        []byte         `db:"batch"`
	CreatedAt    time.Time      `db:"created_at"`
	UpdatedAt    time.Time      `db:"updated_at"`
}

func (r triggerRow) trigger() (work.Trigger, error) {
	t := work.Trigger{Tenant: r.Tenant, Name: r.Name, Sealed: r.Secrets, Filter: r.Filter, EventFrom: r.EventFrom,
		DeliveryFrom: r.DeliveryFrom, MaxBodyBytes: r.MaxBodyBytes, Paused: r.Paused, Batch: r.Batch, CreatedAt: r.CreatedAt,
		UpdatedAt: r.UpdatedAt}
	for _, f := range r.Fingerprints {
		t.Secrets = append(t.Secrets, work.Secret{Fingerprint: f})
	}
	for name, part := range map[string]struct {
		text []byte
		into any
	}{"scheme": {r.Scheme, &t.Scheme}, "events": {r.Events, &t.Events}, "mapping": {r.Mapping, &t.Mapping}, "unit": {r.Unit, &t.Unit}} {
		if part.text == nil {
			continue // it has a batch instead
		}
		if err := json.Unmarshal(part.text, part.into); err != nil {
			return t, fmt.Errorf("read the %s of trigger %s: %w", name, t.Name, err)
		}
	}
	return t, nil
}

// Put makes a trigger or replaces the one of its name. Without secrets it
// keeps those of the one that it replaces, and is work.ErrNotFound when there
// is none. Without MaxBodyBytes it has work.DefaultTriggerBody.
func (s *Triggers) Put(ctx context.Context, t work.Trigger) (work.Trigger, error) {
	var parts [4]string
	for i, part := range []any{t.Scheme, t.Events, t.Mapping, t.Unit} {
		var err error
		if parts[i], err = pg.Encode(part); err != nil {
			return t, fmt.Errorf("encode trigger %s: %w", t.Name, err)
		}
	}
	fingerprints := make([]string, len(t.Secrets))
	for i, secret := range t.Secrets {
		fingerprints[i] = secret.Fingerprint
	}
	args := []any{t.Tenant, t.Name, parts[0], parts[1], work.Clean(t.Filter), work.Clean(t.EventFrom), work.Clean(t.DeliveryFrom),
		parts[2], t.Paused, pg.JSONOrNull(bytes.TrimSpace([]byte(parts[3]))), pg.JSONOrNull(t.Batch),
		cmp.Or(t.MaxBodyBytes, work.DefaultTriggerBody)}
	query := `UPDATE triggers SET scheme = $3, events = $4, filter = $5, event_from = $6, delivery_from = $7, mapping = $8, paused = $9,
		unit = $10, batch = $11, max_body_bytes = $12, updated_at = clock_timestamp() WHERE tenant = $1 AND name = $2 RETURNING ` + triggerColumns
	if len(t.Sealed) > 0 {
		args = append(args, pq.ByteaArray(t.Sealed), pq.StringArray(fingerprints))
		query = `INSERT INTO triggers (tenant, name, scheme, events, filter, event_from, delivery_from, mapping, paused, unit, batch, max_body_bytes, secrets, fingerprints, created_at, updated_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, clock_timestamp(), clock_timestamp())
			ON CONFLICT (tenant, name) DO UPDATE SET scheme = excluded.scheme, events = excluded.events, filter = excluded.filter,
				event_from = excluded.event_from, delivery_from = excluded.delivery_from, mapping = excluded.mapping, paused = excluded.paused,
				unit = excluded.unit, batch = excluded.batch, max_body_bytes = excluded.max_body_bytes, secrets = excluded.secrets, fingerprints = excluded.fingerprints, updated_at = excluded.updated_at
			RETURNING ` + triggerColumns
	}
	var row triggerRow
	if err := s.db.GetContext(ctx, &row, query, args...); err != nil {
		return t, pg.Translate(fmt.Errorf("put trigger %s: %w", t.Name, err))
	}
	return row.trigger()
}

// Get returns one trigger.
func (s *Triggers) Get(ctx context.Context, tenant, name string) (work.Trigger, error) {
	var row triggerRow
	err := s.db.GetContext(ctx, &row, `SELECT `+triggerColumns+` FROM triggers WHERE tenant = $1 AND name = $2`, tenant, work.Clean(name))
	if err != nil {
		return work.Trigger{}, pg.Translate(fmt.Errorf("read trigger %s: %w", name, err))
	}
	return row.trigger()
}

// maxTriggers bounds a list: triggers are written by people.
const maxTriggers = 1000

// List returns every trigger by name.
func (s *Triggers) List(ctx context.Context, tenant string) ([]work.Trigger, error) {
	var rows []triggerRow
	err := s.db.SelectContext(ctx, &rows, `SELECT `+triggerColumns+` FROM triggers WHERE tenant = $1 ORDER BY name LIMIT $2`, tenant, maxTriggers)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("list triggers: %w", err))
	}
	list := make([]work.Trigger, 0, len(rows))
	for _, r := range rows {
		t, err := r.trigger()
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

// Delete removes a trigger; its units stay, and what came for it is
// remembered as long as it would be otherwise.
func (s *Triggers) Delete(ctx context.Context, tenant, name string) error {
	var gone string
	err := s.db.GetContext(ctx, &gone, `DELETE FROM triggers WHERE tenant = $1 AND name = $2 RETURNING name`, tenant, work.Clean(name))
	if err != nil {
		return pg.Translate(fmt.Errorf("delete trigger %s: %w", name, err))
	}
	return nil
}

const triggerDeliveryColumns = `id, tenant, trigger, delivery, event, outcome, unit_id, batch_id, duplicates, received_at`

// TriggerDeliveryFilter chooses what came for one trigger.
type TriggerDeliveryFilter struct {
	Tenant  string
	Trigger string
	After   uuid.UUID // the last id of the page before
	Limit   int       // 0: 50
}

// Received lists what came for a trigger, newest first, and tells the
// id to go on after when there is more.
func (s *Triggers) Received(ctx context.Context, f TriggerDeliveryFilter) ([]work.TriggerDelivery, *uuid.UUID, error) {
	f.Limit = cmp.Or(f.Limit, pg.DefaultLimit)
	var w pg.Where
	w.Add("tenant = ?", f.Tenant)
	w.Add("trigger = ?", f.Trigger)
	w.AddIf(f.After != uuid.Nil, "id < ?", f.After)
	rows := []work.TriggerDelivery{}
	if err := s.db.Page(ctx, &rows, `SELECT `+triggerDeliveryColumns+` FROM trigger_deliveries`, "id", w, f.Limit); err != nil {
		return nil, nil, fmt.Errorf("list deliveries of trigger %s: %w", f.Trigger, err)
	}
	return pg.CutPage(rows, f.Limit, func(d work.TriggerDelivery) uuid.UUID { return d.ID })
}

// Decline notes a delivery that makes nothing, or finds what the same delivery
// made before: a repeat of what was accepted is told so.
func (s *Triggers) Decline(ctx context.Context, d work.TriggerDelivery) (work.TriggerDelivery, error) {
	d.Delivery, d.Event = work.Clean(d.Delivery), work.Clean(d.Event)
	out, err := s.decline.Do(ctx, d)
	if err != nil {
		return d, fmt.Errorf("note delivery to trigger %s: %w", d.Trigger, err)
	}
	return out, nil
}

// deliveryIn is one row for json_to_recordset.
type deliveryIn struct {
	work.TriggerDelivery
	Tenant string `json:"tenant"`
}

// In: $1 a JSON array of deliveries, no two with one name. What is there stays
// as it was, but for the count.
const declineDeliveries = `
INSERT INTO trigger_deliveries (id, tenant, trigger, delivery, event, outcome, received_at)
SELECT id, tenant, trigger, delivery, event, outcome, clock_timestamp()
FROM json_to_recordset($1) AS r(id uuid, tenant text, trigger text, delivery text, event text, outcome text)
ORDER BY tenant COLLATE "C", trigger COLLATE "C", delivery COLLATE "C"
ON CONFLICT (tenant, trigger, delivery) DO UPDATE SET duplicates = trigger_deliveries.duplicates + (trigger_deliveries.id <> excluded.id)::integer
RETURNING ` + triggerDeliveryColumns

func (s *Triggers) declineAll(ctx context.Context, rows []work.TriggerDelivery) ([]work.TriggerDelivery, error) {
	var in []deliveryIn
	seen := map[deliveryKey]bool{}
	for _, d := range rows {
		if key := keyOf(d); !seen[key] {
			seen[key] = true
			in = append(in, deliveryIn{d, d.Tenant})
		}
	}
	param, err := pg.Encode(in)
	if err != nil {
		return nil, err
	}
	var found []work.TriggerDelivery
	if err := s.db.SelectContext(ctx, &found, declineDeliveries, param); err != nil {
		return nil, err
	}
	byKey := make(map[deliveryKey]work.TriggerDelivery, len(found))
	for _, d := range found {
		byKey[keyOf(d)] = d
	}
	outs := make([]work.TriggerDelivery, len(rows))
	for i, d := range rows {
		outs[i] = byKey[keyOf(d)]
	}
	return outs, nil
}

// deliveryKey is what a delivery must not be twice.
type deliveryKey struct{ tenant, trigger, delivery string }

func keyOf(d work.TriggerDelivery) deliveryKey {
	return deliveryKey{d.Tenant, d.Trigger, d.Delivery}
}

// In: $1 a JSON array of deliveries that have made a unit, each with the id of
// the unit that it would have made now. Out: these ids with the units that are.
// Rows are locked in one order, as elsewhere.
var redelivered = `
WITH r AS (
    SELECT * FROM json_to_recordset($1) AS r(id uuid, tenant text, trigger text, delivery text)
), d AS (
    SELECT tenant, trigger, delivery, unit_id FROM trigger_deliveries
    WHERE (tenant, trigger, delivery) IN (SELECT tenant, trigger, delivery FROM r) AND unit_id IS NOT NULL
    ORDER BY tenant COLLATE "C", trigger COLLATE "C", delivery COLLATE "C" FOR UPDATE
), c AS (
    SELECT tenant, trigger, delivery, count(*) FILTER (WHERE r.id <> d.unit_id) AS times
    FROM r JOIN d USING (tenant, trigger, delivery) GROUP BY tenant, trigger, delivery
), counted AS (
    UPDATE trigger_deliveries t SET duplicates = duplicates + c.times FROM c
    WHERE t.tenant = c.tenant AND t.trigger = c.trigger AND t.delivery = c.delivery AND c.times > 0
)
SELECT r.id AS asked, u.* FROM r JOIN d USING (tenant, trigger, delivery),
    LATERAL (SELECT ` + unitColumns + ` FROM work_units WHERE work_units.id = d.unit_id) u`

// redelivered finds the units that deliveries made before, and counts the
// repeats; or the very unit of the row, committed by a statement whose answer was
// lost. It fills in outs for the rows that which names.
func (s *Units) redelivered(ctx context.Context, rows []NewUnit, which []int, outs []accepted) error {
	if len(which) == 0 {
		return nil
	}
	in := make([]deliveryIn, len(which))
	for i, row := range which {
		d := *rows[row].Delivery
		d.ID = rows[row].ID
		in[i] = deliveryIn{d, d.Tenant}
	}
	param, err := pg.Encode(in)
	if err != nil {
		return err
	}
	var found []struct {
		unitRow
		Asked uuid.UUID `db:"asked"`
	}
	if err := s.db.SelectContext(ctx, &found, redelivered, param); err != nil {
		return err
	}
	units := make(map[uuid.UUID]work.Unit, len(found))
	for _, f := range found {
		units[f.Asked] = f.unit()
	}
	for _, row := range which {
		unit, ok := units[rows[row].ID]
		outs[row] = accepted{unit: unit, replayed: unit.ID != rows[row].ID}
		if !ok {
			outs[row] = accepted{err: ErrMadeBatch}
		}
	}
	return nil
}

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
