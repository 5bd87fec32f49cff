package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// NewUnit is a unit that asks to be accepted.
type NewUnit struct {
	work.Unit
	Delay          work.Seconds // runs no sooner than this after it was accepted
	IdempotencyKey string       // empty: none
	BodyHash       []byte       // of the request that carries the key
	StartOrder     int          // when its batch lets it go: before those with a higher one
	// Row is what Encoded has made of the unit, for Batches.AddChunk; nil: it is made there.
	Row json.RawMessage
	// Delivery is the webhook that the unit is made of; nil for none. Only the
	// first of its name makes a unit; one that has made a batch makes none.
	Delivery *work.TriggerDelivery
}

func (n NewUnit) weight() int {
	return len(n.Prompt) + len(n.SystemPrompt) + len(n.Payload) + len(n.OutputSchema) + len(n.Request) + len(n.Accept)
}

type accepted struct {
	unit     work.Unit
	replayed bool
	err      error
}

// ErrKeyReused: the idempotency key came before with another body.
var ErrKeyReused = errors.New("idempotency key was used before with another body")

// ErrMadeBatch: the delivery that a unit was to be made of has made a batch
// before. Redelivered finds it.
var ErrMadeBatch = errors.New("this delivery has made a batch before")

// Accept commits a new unit, or finds the one that the same idempotency key, or
// the same delivery, made before and says so. When it returns nil the unit
// cannot be lost.
func (s *Units) Accept(ctx context.Context, n NewUnit) (work.Unit, bool, error) {
	out, err := s.accept.Do(ctx, n)
	if err = cmp.Or(err, out.err); err != nil {
		return work.Unit{}, false, fmt.Errorf("accept unit: %w", lostFile(err))
	}
	return out.unit, out.replayed, nil
}

// unitIn is one row for json_to_recordset; names are columns.
type unitIn struct {
	CustomID *string   `json:"custom_id,omitempty"`
	ID       uuid.UUID `json:"id"`
	Tenant   string    `json:"tenant"`
	Title    string    `json:"title"`
	work.Spec
	Delay          work.Seconds `json:"delay"`
	BatchID        *uuid.UUID   `json:"batch_id,omitempty"`
	Held           bool         `json:"held"`
	StartOrder     int          `json:"turn,omitempty"`
	Uploads        []uuid.UUID  `json:"uploads,omitempty"`
	IdempotencyKey *string      `json:"idempotency_key"`
	BodyHash       string       `json:"body_hash"`
	Trigger        string       `json:"trigger,omitempty"`
	Delivery       string       `json:"delivery,omitempty"`
	Event          string       `json:"event,omitempty"`
}

// In: $1 a JSON array of unitIn, no two of one delivery. Out: the rows that were
// new. A row whose key another caller has used is left out; so is one that
// repeats in the array, one whose custom id its batch has, and one whose delivery
// has made a unit before.
func insertUnits(columns string) string {
	return `
WITH r AS (` + unitsIn + `), first AS (
    INSERT INTO trigger_deliveries AS d (id, tenant, trigger, delivery, event, outcome, unit_id, received_at)
    SELECT id, tenant, trigger, delivery, coalesce(event, ''), 'accepted', id, clock_timestamp() FROM r WHERE trigger IS NOT NULL
    ON CONFLICT (tenant, trigger, delivery) DO UPDATE SET outcome = 'accepted', unit_id = excluded.unit_id, id = excluded.id, event = excluded.event,
        received_at = excluded.received_at, duplicates = d.duplicates + 1 WHERE d.outcome <> 'accepted'
    RETURNING unit_id
), fresh AS (` + insertInto + `
FROM r WHERE trigger IS NULL OR id IN (SELECT unit_id FROM first)
ON CONFLICT DO NOTHING
RETURNING *
), used AS (
    INSERT INTO unit_files (unit_id, file_id)
    SELECT fresh.id, u.file_id::uuid FROM fresh JOIN r ON r.id = fresh.id, json_array_elements_text(r.uploads) AS u(file_id)
)
SELECT ` + columns + ` FROM fresh`
}

// insertPlain is insertUnits for units without deliveries and files, which nearly all
// are. What is given is then not kept a second time for those.
func insertPlain(columns string) string {
	return insertInto + ` FROM (` + unitsIn + `) AS r ON CONFLICT DO NOTHING RETURNING ` + columns
}

// unitsIn is the array of new units as rows, and when each is due.
var unitsIn = `
    SELECT *, CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 second' ELSE not_before END AS due
    FROM json_to_recordset($1) AS r(` + eachColumn(func(c unitColumn) string {
	if c.kind == "" {
		return ""
	}
	return c.name + " " + c.kind
}) + `,
        delay double precision, uploads json, trigger text, delivery text, event text)`

var insertInto = `
INSERT INTO work_units (` + eachColumn(func(c unitColumn) string {
	if c.inserted() == "" {
		return ""
	}
	return c.name
}) + `)
SELECT ` + eachColumn(unitColumn.inserted)

// inserted is what a new unit has in the column; empty: the column's default.
func (c unitColumn) inserted() string {
	if c.put == "" && c.kind != "" {
		return c.name
	}
	return c.put
}

// freshRow is what Postgres has decided about a unit that is new.
type freshRow struct {
	ID            uuid.UUID       `db:"id"`
	State         work.State      `db:"state"`
	Labels        json.RawMessage `db:"labels"`
	NotBefore     *time.Time      `db:"not_before"`
	CreatedAt     time.Time       `db:"created_at"`
	Dispatch      int             `db:"dispatch"`
	SessionPolicy string          `db:"session_policy"`
	OnDenied      string          `db:"on_denied"`
}

const freshColumns = `id, state, labels, not_before, created_at, dispatch, session_policy, on_denied`

// These are made once: a connection knows its prepared statements by their texts.
var (
	acceptUnits = insertUnits(freshColumns)
	acceptPlain = insertPlain(freshColumns)
)

// unit is the unit as it would be read: n with what Postgres has decided.
func (r freshRow) unit(n NewUnit) work.Unit {
	u := n.Unit
	u.State, u.Labels, u.NotBefore, u.CreatedAt, u.Dispatch = r.State, r.Labels, r.NotBefore, r.CreatedAt, r.Dispatch
	u.SessionPolicy, u.OnDenied = r.SessionPolicy, r.OnDenied
	u.Cost = work.NewCost(0, 0)
	return u
}

func (n NewUnit) row() unitIn {
	in := unitIn{ID: n.ID, Tenant: n.Tenant, Title: n.Title, Spec: n.Spec, Delay: n.Delay, BatchID: n.BatchID, Held: n.Held,
		StartOrder: n.StartOrder,
		Uploads:    n.Uploads(), BodyHash: fmt.Sprintf("%x", n.BodyHash)}
	if n.BatchID != nil {
		id := work.Clean(n.CustomID)
		in.CustomID = &id
	}
	if key := work.Clean(n.IdempotencyKey); key != "" {
		in.IdempotencyKey = &key
	}
	if d := n.Delivery; d != nil {
		in.Trigger, in.Delivery, in.Event = d.Trigger, d.Delivery, work.Clean(d.Event)
	}
	return in
}

// Encoded is the row of a unit of a batch: an object whose first fields are
// custom_id and id. It may be kept, also for a later version of this program.
func (n NewUnit) Encoded() (json.RawMessage, error) {
	text, err := pg.Encode(n.row())
	return json.RawMessage(text), err
}

func (s *Units) acceptAll(ctx context.Context, rows []NewUnit) ([]accepted, error) {
	in, statement := make([]unitIn, 0, len(rows)), acceptPlain
	seen := map[deliveryKey]bool{}
	for _, n := range rows {
		if n.Delivery != nil {
			if seen[keyOf(*n.Delivery)] {
				continue // it finds the unit of the first
			}
			seen[keyOf(*n.Delivery)] = true
		}
		row := n.row()
		if n.Delivery != nil || len(row.Uploads) > 0 {
			statement = acceptUnits
		}
		in = append(in, row)
	}
	// Two processes that insert the same keys must meet them in one order, or
	// each waits for the other.
	slices.SortFunc(in, func(a, b unitIn) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(deref(a.IdempotencyKey), deref(b.IdempotencyKey)),
			strings.Compare(a.Trigger, b.Trigger), strings.Compare(a.Delivery, b.Delivery))
	})
	param, err := pg.Encode(in)
	if err != nil {
		return nil, err
	}
	var fresh []freshRow
	if err := s.db.Hot.SelectContext(pg.Prepare(ctx), &fresh, statement, param); err != nil {
		return nil, err
	}
	made := make(map[uuid.UUID]freshRow, len(fresh))
	for _, row := range fresh {
		made[row.ID] = row
	}
	outs := make([]accepted, len(rows))
	var again []int
	for i, n := range rows {
		if row, ok := made[n.ID]; ok {
			outs[i] = accepted{unit: row.unit(n)}
		} else if n.Delivery != nil {
			again = append(again, i)
		} else {
			outs[i] = s.replay(ctx, n)
		}
	}
	return outs, s.redelivered(ctx, rows, again, outs)
}

// Before returns the unit that an idempotency key made before. It is
// work.ErrNotFound when the key is new, and ErrKeyReused when it came with
// another body.
func (s *Units) Before(ctx context.Context, tenant, key string, bodyHash []byte) (work.Unit, error) {
	out := s.replay(ctx, NewUnit{Unit: work.Unit{Tenant: tenant}, IdempotencyKey: key, BodyHash: bodyHash})
	return out.unit, out.err
}

// replay finds the unit that stood in n's way: the one its key made before,
// or n itself, committed by a statement whose answer was lost and which the
// driver has repeated. Its error is n's alone: the others are committed.
func (s *Units) replay(ctx context.Context, n NewUnit) accepted {
	var row struct {
		unitRow
		SameBody bool `db:"same_body"`
	}
	err := s.db.GetContext(ctx, &row, `SELECT `+unitColumns+`, coalesce(body_hash = $4, false) AS same_body FROM work_units
		WHERE id = $1 OR tenant = $2 AND idempotency_key = $3`, n.ID, n.Tenant, work.Clean(n.IdempotencyKey), n.BodyHash)
	switch {
	case err != nil:
		return accepted{err: pg.Translate(err)}
	case row.ID == n.ID:
		return accepted{unit: row.unit()}
	case !row.SameBody:
		return accepted{err: ErrKeyReused}
	}
	return accepted{unit: row.unit(), replayed: true}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
