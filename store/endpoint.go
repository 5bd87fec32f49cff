package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Endpoints are the receivers of webhooks, and what signs their messages.
type Endpoints struct{ db *pg.DB }

const endpointColumns = `id, tenant, url, description, events, disabled_at, disabled_why,
	CASE WHEN previous_until > clock_timestamp() THEN previous_until END AS previous_until, created_at`

type endpointRow struct {
	work.Endpoint
	Events pq.StringArray `db:"events"`
}

func (r endpointRow) endpoint() work.Endpoint {
	e := r.Endpoint
	e.Events = r.Events
	return e
}

// Add makes an endpoint whose messages secret signs.
func (s *Endpoints) Add(ctx context.Context, e work.Endpoint, secret string) (work.Endpoint, error) {
	var row endpointRow
	err := s.db.GetContext(ctx, &row, `INSERT INTO webhook_endpoints (id, tenant, url, description, events, secret, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp()) RETURNING `+endpointColumns,
		e.ID, e.Tenant, e.URL, work.Clean(e.Description), pq.Array(e.Events), secret)
	if err != nil {
		return e, pg.Translate(fmt.Errorf("add webhook endpoint: %w", err))
	}
	return row.endpoint(), nil
}

// Get returns one endpoint.
func (s *Endpoints) Get(ctx context.Context, tenant string, id uuid.UUID) (work.Endpoint, error) {
	var row endpointRow
	err := s.db.GetContext(ctx, &row, `SELECT `+endpointColumns+` FROM webhook_endpoints WHERE tenant = $1 AND id = $2`, tenant, id)
	if err != nil {
		return work.Endpoint{}, pg.Translate(fmt.Errorf("read webhook endpoint %s: %w", id, err))
	}
	return row.endpoint(), nil
}

// maxEndpoints bounds a list: endpoints are written by people.
const maxEndpoints = 1000

// List returns every endpoint, oldest first.
func (s *Endpoints) List(ctx context.Context, tenant string) ([]work.Endpoint, error) {
	var rows []endpointRow
	err := s.db.SelectContext(ctx, &rows, `SELECT `+endpointColumns+` FROM webhook_endpoints WHERE tenant = $1 ORDER BY id LIMIT $2`, tenant, maxEndpoints)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("list webhook endpoints: %w", err))
	}
	list := make([]work.Endpoint, len(rows))
	for i, r := range rows {
		list[i] = r.endpoint()
	}
	return list, nil
}

// cancelPending ends the deliveries that an endpoint $1, which a CTE has named
// off, will not get. One that is on its way just now may still arrive.
const cancelPending = `held AS (
		SELECT d.id FROM webhook_deliveries d WHERE d.receiver IN (SELECT id FROM off) AND d.state = 'pending' ORDER BY d.id FOR UPDATE
	), cancelled AS (
		UPDATE webhook_deliveries d SET state = 'cancelled', last_error = coalesce(last_error, 'the endpoint was disabled or deleted') FROM held WHERE d.id = held.id)`

// Put changes an endpoint, and enables or disables it. Being disabled
// cancels what was to be delivered to it.
func (s *Endpoints) Put(ctx context.Context, e work.Endpoint, disabled bool) (work.Endpoint, error) {
	var row endpointRow
	err := s.db.GetContext(ctx, &row, `WITH put AS (
			UPDATE webhook_endpoints SET url = $3, description = $4, events = $5,
				disabled_at = CASE WHEN $6 THEN coalesce(disabled_at, clock_timestamp()) END,
				disabled_why = CASE WHEN $6 THEN coalesce(nullif(disabled_why, ''), 'by hand') ELSE '' END
			WHERE tenant = $1 AND id = $2 RETURNING `+endpointColumns+`
		), off AS (SELECT id FROM put WHERE disabled_at IS NOT NULL), `+cancelPending+`
		SELECT * FROM put`, e.Tenant, e.ID, e.URL, work.Clean(e.Description), pq.Array(e.Events), disabled)
	if err != nil {
		return e, pg.Translate(fmt.Errorf("put webhook endpoint %s: %w", e.ID, err))
	}
	return row.endpoint(), nil
}

// DisableGone disables an endpoint that wants no more messages, if it still
// has the address that said so, and tells whether it did.
func (s *Endpoints) DisableGone(ctx context.Context, id uuid.UUID, url string) (bool, error) {
	var n int
	err := s.db.GetContext(ctx, &n, `WITH off AS (
			UPDATE webhook_endpoints SET disabled_at = clock_timestamp(), disabled_why = 'the receiver answered 410'
			WHERE id = $1 AND url = $2 AND disabled_at IS NULL RETURNING id), `+cancelPending+`
		SELECT count(*) FROM off`, id, url)
	if err != nil {
		return false, pg.Translate(fmt.Errorf("disable webhook endpoint %s: %w", id, err))
	}
	return n > 0, nil
}

// Delete removes an endpoint and cancels what was to be delivered to
// it. Its deliveries can still be read.
func (s *Endpoints) Delete(ctx context.Context, tenant string, id uuid.UUID) error {
	var gone uuid.UUID
	err := s.db.GetContext(ctx, &gone, `WITH off AS (DELETE FROM webhook_endpoints WHERE tenant = $1 AND id = $2 RETURNING id), `+cancelPending+`
		SELECT id FROM off`, tenant, id)
	if err != nil {
		return pg.Translate(fmt.Errorf("delete webhook endpoint %s: %w", id, err))
	}
	return nil
}

const secretColumns = `secret, CASE WHEN previous_until > clock_timestamp() THEN previous_secret END AS previous_secret,
	CASE WHEN previous_until > clock_timestamp() THEN previous_until END AS previous_until`

// rotate makes $2 the secret; the one before it signs too for $3 seconds.
const rotate = `secret = $2, previous_secret = %[1]s.secret, previous_until = clock_timestamp() + $3 * interval '1 second'`

// Secrets returns what signs the messages of an endpoint.
func (s *Endpoints) Secrets(ctx context.Context, tenant string, id uuid.UUID) (work.Secrets, error) {
	var secrets work.Secrets
	err := s.db.GetContext(ctx, &secrets, `SELECT `+secretColumns+` FROM webhook_endpoints WHERE tenant = $1 AND id = $2`, tenant, id)
	if err != nil {
		return secrets, pg.Translate(fmt.Errorf("read the secret of webhook endpoint %s: %w", id, err))
	}
	return secrets, nil
}

// Rotate gives an endpoint another secret. The one before it signs too
// for the time of overlap.
func (s *Endpoints) Rotate(ctx context.Context, tenant string, id uuid.UUID, secret string, overlap time.Duration) (work.Secrets, error) {
	var secrets work.Secrets
	err := s.db.GetContext(ctx, &secrets, `UPDATE webhook_endpoints SET `+fmt.Sprintf(rotate, "webhook_endpoints")+`
		WHERE tenant = $1 AND id = $4 RETURNING `+secretColumns, tenant, secret, overlap.Seconds(), id)
	if err != nil {
		return secrets, pg.Translate(fmt.Errorf("rotate the secret of webhook endpoint %s: %w", id, err))
	}
	return secrets, nil
}

// CallbackSecrets returns what signs the messages to callback_urls, which is
// made from fresh when there is none yet.
func (s *Endpoints) CallbackSecrets(ctx context.Context, tenant, fresh string) (work.Secrets, error) {
	var secrets work.Secrets
	err := s.db.GetOrMake(ctx, &secrets, `WITH made AS (
			INSERT INTO callback_secrets (tenant, secret) VALUES ($1, $2) ON CONFLICT (tenant) DO NOTHING RETURNING *)
		SELECT `+secretColumns+` FROM (SELECT * FROM made UNION ALL SELECT * FROM callback_secrets WHERE tenant = $1) AS c LIMIT 1`, tenant, fresh)
	if err != nil {
		return secrets, pg.Translate(fmt.Errorf("read the secret of callbacks: %w", err))
	}
	return secrets, nil
}

// RotateCallbacks makes secret sign the messages to callback_urls. The one
// before it signs too for the time of overlap.
func (s *Endpoints) RotateCallbacks(ctx context.Context, tenant, secret string, overlap time.Duration) (work.Secrets, error) {
	var secrets work.Secrets
	err := s.db.GetContext(ctx, &secrets, `INSERT INTO callback_secrets (tenant, secret) VALUES ($1, $2)
		ON CONFLICT (tenant) DO UPDATE SET `+fmt.Sprintf(rotate, "callback_secrets")+` RETURNING `+secretColumns, tenant, secret, overlap.Seconds())
	if err != nil {
		return secrets, pg.Translate(fmt.Errorf("rotate the secret of callbacks: %w", err))
	}
	return secrets, nil
}

// SetPublicURL says under which address receivers of messages find this
// server.
func (s *Endpoints) SetPublicURL(ctx context.Context, url string) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO settings (name, value) VALUES ('public_url', $1)
		ON CONFLICT (name) DO UPDATE SET value = excluded.value`, url)
	if err != nil {
		return pg.Translate(fmt.Errorf("note the public address: %w", err))
	}
	return nil
}
