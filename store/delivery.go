package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Deliveries are messages to endpoints: written, claimed, tried.
type Deliveries struct {
	db        *pg.DB
	endpoints *Endpoints
}

// testEvent writes a delivery for one endpoint, whatever that asks for; other
// events are written by the database, with what they tell of.
const testEvent = `INSERT INTO webhook_deliveries (id, tenant, endpoint_id, receiver, url, event_type, body, state, next_at, check_at, created_at)
	SELECT fresh_id(), e.tenant, e.id, e.id, e.url, $3, convert_to(json_build_object('type', $3::text,
		'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
		'data', json_build_object('endpoint_id', e.id))::text, 'UTF8'), 'pending', clock_timestamp(), clock_timestamp(), clock_timestamp()
	FROM webhook_endpoints e WHERE e.tenant = $1 AND e.id = $2 AND e.disabled_at IS NULL RETURNING `

const deliveryColumns = `id, tenant, endpoint_id, url, unit_id, batch_id, event_type, state, attempts,
	CASE WHEN state = 'pending' THEN next_at END AS next_at, tried_at, last_status, last_error, response, created_at, delivered_at`

// AddTest writes a delivery that tells an endpoint of nothing. A disabled
// endpoint is a conflict.
func (s *Deliveries) AddTest(ctx context.Context, tenant string, id uuid.UUID) (work.Delivery, error) {
	var d work.Delivery
	err := pg.Translate(s.db.GetContext(ctx, &d, testEvent+deliveryColumns, tenant, id, work.EventTest))
	if errors.Is(err, work.ErrNotFound) {
		if _, err := s.endpoints.Get(ctx, tenant, id); err != nil {
			return d, err
		}
		return d, fmt.Errorf("%w: the endpoint is disabled; enable it first", work.ErrConflict)
	}
	if err != nil {
		return d, fmt.Errorf("test webhook endpoint %s: %w", id, err)
	}
	return named(d), nil
}

func named(d work.Delivery) work.Delivery {
	d.WebhookID = work.WebhookID(d.ID)
	return d
}

// Get returns one delivery with its body.
func (s *Deliveries) Get(ctx context.Context, tenant string, id uuid.UUID) (work.Delivery, error) {
	var d work.Delivery
	err := s.db.GetContext(ctx, &d, `SELECT `+deliveryColumns+`, convert_from(body, 'UTF8') AS body FROM webhook_deliveries
		WHERE tenant = $1 AND id = $2`, tenant, id)
	if err != nil {
		return d, pg.Translate(fmt.Errorf("read delivery %s: %w", id, err))
	}
	return named(d), nil
}

// DeliveryFilter chooses deliveries of one tenant; zero fields choose all.
type DeliveryFilter struct {
	Tenant   string
	Endpoint uuid.UUID
	Unit     uuid.UUID
	Batch    uuid.UUID // and its units
	States   []work.DeliveryState
	Since    time.Time // when they were written, at the earliest
	Until    time.Time // and before this
	After    uuid.UUID // the last id of the page before
	Limit    int       // 0: 50
}

func (f DeliveryFilter) where() (w pg.Where) {
	w.Add("tenant = ?", f.Tenant)
	w.AddIf(f.Endpoint != uuid.Nil, "endpoint_id = ?", f.Endpoint)
	w.AddIf(f.Unit != uuid.Nil, "unit_id = ?", f.Unit)
	w.AddIf(f.Batch != uuid.Nil, "batch_id = ?", f.Batch)
	w.AddIf(len(f.States) == 1, "state = ?", pg.First(f.States))
	w.AddIf(len(f.States) > 1, "state = ANY(?)", pg.TextArray(f.States))
	w.AddIf(!f.Since.IsZero(), "created_at >= ?", f.Since)
	w.AddIf(!f.Until.IsZero(), "created_at < ?", f.Until)
	return w
}

// List lists deliveries, newest first, and tells the id to go on after
// when there are more.
func (s *Deliveries) List(ctx context.Context, f DeliveryFilter) ([]work.Delivery, *uuid.UUID, error) {
	f.Limit = cmp.Or(f.Limit, pg.DefaultLimit)
	w := f.where()
	w.AddIf(f.After != uuid.Nil, "id < ?", f.After)
	rows := []work.Delivery{}
	if err := s.db.Page(ctx, &rows, `SELECT `+deliveryColumns+` FROM webhook_deliveries`, "id", w, f.Limit); err != nil {
		return nil, nil, fmt.Errorf("list deliveries: %w", err)
	}
	for i := range rows {
		rows[i] = named(rows[i])
	}
	return pg.CutPage(rows, f.Limit, func(d work.Delivery) uuid.UUID { return d.ID })
}

// redeliver begins the schedule anew for chosen deliveries whose endpoint is
// there and enabled. One that is on its way just now is left to that try.
func (s *Deliveries) redeliver(ctx context.Context, rows any, w pg.Where, lock, columns string) error {
	return pg.Translate(s.db.SelectContext(ctx, rows, `WITH chosen (delivery) AS (
			SELECT id FROM webhook_deliveries WHERE `+w.Text()+` AND claimed_by IS NULL
			AND (endpoint_id IS NULL OR EXISTS (SELECT FROM webhook_endpoints e WHERE e.id = endpoint_id AND e.disabled_at IS NULL)) `+lock+`)
		UPDATE webhook_deliveries SET state = 'pending', failed = 0, next_at = clock_timestamp(), check_at = clock_timestamp(), delivered_at = NULL
		FROM chosen WHERE id = delivery RETURNING `+columns, w.Args...))
}

// Redeliver sends a delivery again, with its id and its bytes, whatever has
// become of it. It is a conflict when its endpoint is disabled or deleted.
func (s *Deliveries) Redeliver(ctx context.Context, tenant string, id uuid.UUID) (work.Delivery, error) {
	var w pg.Where
	w.Add("tenant = ?", tenant)
	w.Add("id = ?", id)
	var rows []work.Delivery
	if err := s.redeliver(ctx, &rows, w, lockOne, deliveryColumns); err != nil {
		return work.Delivery{}, fmt.Errorf("redeliver %s: %w", id, err)
	}
	if len(rows) == 1 {
		return named(rows[0]), nil
	}
	d, err := s.Get(ctx, tenant, id)
	if err != nil || d.State == work.DeliveryPending {
		return d, err // it is on its way
	}
	return d, fmt.Errorf("%w: its endpoint is disabled or deleted", work.ErrConflict)
}

// RedeliverAll sends the deliveries that f chooses again, the oldest MaxBulk of
// them, and returns how many. Page and length of f do not count.
func (s *Deliveries) RedeliverAll(ctx context.Context, f DeliveryFilter) (int, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var rows []struct{ ID uuid.UUID }
	if err := s.redeliver(ctx, &rows, f.where(), lockMany, "id"); err != nil {
		return 0, fmt.Errorf("redeliver: %w", err)
	}
	return len(rows), nil
}

// undone holds for a delivery d that a worker process has claimed which is late or
// dead, and unheard for one that is due and that nobody has.
const (
	undone = `claimed_by IS NOT NULL AND (lease_until < clock_timestamp() OR NOT EXISTS (
		SELECT FROM worker_processes p WHERE p.id = d.claimed_by AND ` + alive + `))`
	unheard = `state = 'pending' AND next_at <= now() AND check_at <= now() AND claimed_by IS NULL`
)

// pendingReceivers names every receiver that something is to be delivered to,
// each found by one look into the index.
const pendingReceivers = `RECURSIVE receivers AS (
		(SELECT receiver FROM webhook_deliveries WHERE state = 'pending' ORDER BY receiver LIMIT 1)
		UNION ALL
		SELECT (SELECT d.receiver FROM webhook_deliveries d WHERE d.state = 'pending' AND d.receiver > r.receiver ORDER BY d.receiver LIMIT 1)
		FROM receivers r WHERE r.receiver IS NOT NULL
	)`

// DeliveryMessage is one message: something may be due for a receiver.
type DeliveryMessage struct {
	ID       uuid.UUID `db:"id"`
	Number   int       `db:"dispatch"`
	Receiver uuid.UUID `db:"receiver"`
}

// Redispatch gives due deliveries whose message nobody has seen for a while
// a new one, and returns the messages to enqueue: for each receiver no more than most.
// Whoever hears one goes on with the receiver's others by itself.
func (s *Deliveries) Redispatch(ctx context.Context, most int) ([]DeliveryMessage, error) {
	var messages []DeliveryMessage
	err := s.db.SelectContext(ctx, &messages, `WITH `+pendingReceivers+`, due AS (
			SELECT d.id FROM receivers r, LATERAL (SELECT id FROM webhook_deliveries
				WHERE receiver = r.receiver AND `+unheard+`
				ORDER BY next_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS d)
		UPDATE webhook_deliveries d SET dispatch = dispatch + 1, check_at = clock_timestamp() + $2 * interval '1 second'
		FROM due WHERE d.id = due.id RETURNING d.id, d.dispatch, d.receiver`, most, recheck.Seconds())
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("find unheard deliveries: %w", err))
	}
	return messages, nil
}

// RecheckAll makes the messages of all due deliveries doubtful, some rows at a
// time: an endless backlog is no endless statement. One that another holds is
// being sent just now.
func (s *Deliveries) RecheckAll(ctx context.Context) error {
	now, err := s.db.Clock(ctx)
	for done := maxRows; err == nil && done == maxRows; {
		done, err = s.db.ExecCount(ctx, "recheck all deliveries", `WITH due AS (
				SELECT id FROM webhook_deliveries WHERE state = 'pending' AND next_at <= $1 AND check_at > $1 LIMIT $2 FOR UPDATE SKIP LOCKED)
			UPDATE webhook_deliveries d SET check_at = $1 FROM due WHERE d.id = due.id`, now, maxRows)
	}
	return pg.Translate(pg.Wrap("recheck all deliveries", err))
}

// DueReceivers returns receivers that something is due for: what a worker
// process asks when Redis is away.
func (s *Deliveries) DueReceivers(ctx context.Context, limit int) ([]uuid.UUID, error) {
	var due []uuid.UUID
	err := s.db.SelectContext(ctx, &due, `WITH `+pendingReceivers+`
		SELECT r.receiver FROM receivers r WHERE EXISTS (SELECT FROM webhook_deliveries d
			WHERE d.state = 'pending' AND d.receiver = r.receiver AND d.next_at <= now() AND d.claimed_by IS NULL)
		ORDER BY random() LIMIT $1`, limit)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("find receivers: %w", err))
	}
	return due, nil
}

// ClaimedDelivery is one that this caller is to try now.
type ClaimedDelivery struct {
	work.Delivery
	Failed  int // tries of this round
	Secrets work.Secrets
	Body    []byte
}

type claimedDeliveryRow struct {
	work.Delivery
	Failed        int        `db:"failed"`
	Body          []byte     `db:"body"`
	Secret        *string    `db:"secret"`
	Previous      *string    `db:"previous_secret"`
	PreviousUntil *time.Time `db:"previous_until"`
}

// Claim takes the delivery to a receiver that has been due the longest,
// nil when there is none. Its number of attempts is the fence. One whose
// endpoint is gone is cancelled instead.
func (s *Deliveries) Claim(ctx context.Context, receiver, process uuid.UUID, lease time.Duration, fresh string) (*ClaimedDelivery, error) {
	for {
		var rows []claimedDeliveryRow
		err := s.db.SelectContext(ctx, &rows, `WITH next AS (
				SELECT d.id AS next_id, e.url AS to_url, d.endpoint_id IS NOT NULL AND (e.id IS NULL OR e.disabled_at IS NOT NULL) AS orphan,
					coalesce(e.secret, c.secret) AS secret, coalesce(e.previous_secret, c.previous_secret) AS previous_secret,
					coalesce(e.previous_until, c.previous_until) AS previous_until
				FROM webhook_deliveries d LEFT JOIN webhook_endpoints e ON e.id = d.endpoint_id
				LEFT JOIN callback_secrets c ON d.endpoint_id IS NULL AND c.tenant = d.tenant
				WHERE d.state = 'pending' AND d.receiver = $1 AND d.next_at <= now() AND d.claimed_by IS NULL
				ORDER BY d.next_at LIMIT 1 FOR UPDATE OF d SKIP LOCKED)
			UPDATE webhook_deliveries SET attempts = attempts + CASE WHEN orphan THEN 0 ELSE 1 END, url = coalesce(to_url, url),
				state = CASE WHEN orphan THEN 'cancelled' ELSE state END,
				last_error = CASE WHEN orphan THEN 'the endpoint was disabled or deleted' ELSE last_error END,
				claimed_by = CASE WHEN NOT orphan THEN $2::uuid END,
				lease_until = CASE WHEN NOT orphan THEN clock_timestamp() + $3 * interval '1 second' END
			FROM next WHERE id = next_id
			RETURNING `+deliveryColumns+`, failed, body, secret,
				CASE WHEN previous_until > clock_timestamp() THEN previous_secret END AS previous_secret, previous_until`,
			receiver, process, lease.Seconds())
		if err != nil || len(rows) == 0 {
			return nil, pg.Translate(err)
		}
		r := rows[0]
		if r.State != work.DeliveryPending {
			continue
		}
		claimed := ClaimedDelivery{Delivery: named(r.Delivery), Failed: r.Failed, Body: r.Body}
		if r.Secret == nil {
			claimed.Secrets, err = s.endpoints.CallbackSecrets(ctx, r.Tenant, fresh)
			return &claimed, err
		}
		claimed.Secrets = work.Secrets{Secret: *r.Secret, Previous: r.Previous}
		return &claimed, nil
	}
}

// Try is what one try to deliver came to.
type Try struct {
	ID        uuid.UUID
	Attempt   int
	Delivered bool
	Dead      bool          // it was the last
	Released  bool          // the worker process shut down meanwhile: it counts as no failure
	Wait      time.Duration // until the next one
	Status    int           // of HTTP, 0 without an answer
	Error     string
	Response  string
}

// Finish writes down what became of a try, if it is the newest of its delivery,
// and returns the state that it led to.
func (s *Deliveries) Finish(ctx context.Context, t Try) (work.DeliveryState, error) {
	var state work.DeliveryState
	err := pg.Translate(s.db.GetContext(ctx, &state, `UPDATE webhook_deliveries SET
			state = CASE WHEN $3 THEN 'delivered' WHEN state = 'pending' AND $4 THEN 'dead' ELSE state END,
			delivered_at = CASE WHEN $3 THEN clock_timestamp() END, failed = failed + CASE WHEN $3 OR $5 THEN 0 ELSE 1 END,
			next_at = clock_timestamp() + $6 * interval '1 second', check_at = clock_timestamp() + $6 * interval '1 second',
			claimed_by = NULL, lease_until = NULL, tried_at = clock_timestamp(),
			last_status = nullif($7, 0), last_error = nullif($8, ''), response = nullif($9, '')
		WHERE id = $1 AND attempts = $2 AND state IN ('pending', 'cancelled') RETURNING state`,
		t.ID, t.Attempt, t.Delivered, t.Dead, t.Released, t.Wait.Seconds(), t.Status, work.Clean(t.Error), work.Clean(t.Response)))
	if err != nil && !errors.Is(err, work.ErrNotFound) {
		return "", fmt.Errorf("note a try of delivery %s: %w", t.ID, err)
	}
	return state, err
}

// Defer puts off what is due for a receiver that has asked for time.
func (s *Deliveries) Defer(ctx context.Context, receiver uuid.UUID, wait time.Duration) error {
	_, err := s.db.ExecContext(ctx, `WITH held AS (
			SELECT id FROM webhook_deliveries WHERE receiver = $1 AND state = 'pending' AND claimed_by IS NULL
			AND next_at < clock_timestamp() + $2 * interval '1 second' ORDER BY id FOR UPDATE SKIP LOCKED)
		UPDATE webhook_deliveries d SET next_at = clock_timestamp() + $2 * interval '1 second',
			check_at = clock_timestamp() + $2 * interval '1 second' FROM held WHERE d.id = held.id`, receiver, wait.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("put off deliveries: %w", err))
	}
	return nil
}

// ExpireLeases takes deliveries from worker processes that are too late
// with them or dead, and returns how many, 1,000 at most. They are due at once: the try is not
// known to have failed.
func (s *Deliveries) ExpireLeases(ctx context.Context) (int64, error) {
	result, err := s.db.ExecContext(ctx, `WITH late AS (
			SELECT id FROM webhook_deliveries d WHERE `+undone+`
			ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
		UPDATE webhook_deliveries d SET claimed_by = NULL, lease_until = NULL, check_at = clock_timestamp()
		FROM late WHERE d.id = late.id`, maxRows)
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("expire deliveries: %w", err))
	}
	return result.RowsAffected()
}
