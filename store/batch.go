package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Batches are units that were submitted together.
type Batches struct {
	db    *pg.DB
	units *Units
}

// NewBatch is a batch that asks to be accepted.
type NewBatch struct {
	work.Batch
	IdempotencyKey string // empty: none
	BodyHash       []byte // of the request that carries the key
	// Items is a list that came with the batch and that its units are made of;
	// nil when its source is elsewhere.
	Items json.RawMessage
}

const batchColumns = `id, tenant, title, status, protocol, source, unit, input_file, metadata, test_first, concurrency, max_cost_usd,
    stop_when, coalesce(synthesis, 'null') AS synthesis, synthesis_unit, expires_at, callback_url, rejected, problems, paused_at, paused_by, paused_why, why, counts,
    created_at, enumerated_at, approved_at, cancelled_at, finished_at`

type batchRow struct {
	work.Batch
	StopWhen  []byte     `db:"stop_when"`
	Problems  []byte     `db:"problems"`
	Counts    []byte     `db:"counts"`
	PausedAt  *time.Time `db:"paused_at"`
	PausedBy  string     `db:"paused_by"`
	PausedWhy string     `db:"paused_why"`
}

func (r batchRow) batch() (work.Batch, error) {
	b := r.Batch
	if string(b.Synthesis) == "null" {
		b.Synthesis = nil
	}
	if r.PausedAt != nil {
		b.Paused = &work.BatchPause{Since: *r.PausedAt, By: r.PausedBy, Why: r.PausedWhy}
	}
	for _, field := range []struct {
		text []byte
		into any
	}{{r.StopWhen, &b.StopWhen}, {r.Problems, &b.Problems}, {r.Counts, &b.Counts}} {
		if len(field.text) == 0 {
			continue
		}
		if err := json.Unmarshal(field.text, field.into); err != nil {
			return b, fmt.Errorf("read batch %s: %w", b.ID, err)
		}
	}
	if u := b.Counts.Usage; u != nil && u.InputTokens+u.CacheReadTokens+u.CacheCreationTokens > 0 {
		b.Counts.PromptCacheHitRate = new(u.CachedShare())
	}
	return b, nil
}

// insertBatch makes a row of NewBatch.args. It may be followed by FROM.
const insertBatch = `INSERT INTO batches (id, tenant, title, status, protocol, source, unit, input_file, metadata,
        test_first, concurrency, max_cost_usd, stop_when, synthesis, expires_at, created_at, idempotency_key, body_hash, rejected, problems, callback_url, items)
    SELECT $1::uuid, $2, $3, 'enumerating', $4, $5::jsonb, $6::jsonb, $7::uuid, $8::jsonb, $9::integer, $10::integer, $11::double precision, $12::jsonb, $13::jsonb,
        $14::timestamptz, clock_timestamp(), nullif($15, ''), $16::bytea, $17::integer, $18::jsonb, $19, $20::json`

func (n NewBatch) args() ([]any, error) {
	var stop *string
	if n.StopWhen != nil {
		text, err := pg.Encode(n.StopWhen)
		if err != nil {
			return nil, err
		}
		stop = &text
	}
	problems, err := encodeProblems(n.Problems)
	return []any{n.ID, n.Tenant, work.Clean(n.Title), string(n.Protocol), pg.JSONOr(n.Source, "{}"), pg.JSONOr(n.Unit, "{}"), n.InputFile,
		pg.JSONOr(n.Metadata, "{}"),
		n.TestFirst, n.Concurrency, n.MaxCostUSD, stop, pg.JSONOrNull(n.Synthesis), n.ExpiresAt, work.Clean(n.IdempotencyKey), n.BodyHash,
		n.Rejected, problems, n.CallbackURL, pg.JSONOrNull(n.Items)}, err
}

// Add commits a new batch, or finds the one that the same idempotency key
// made before and says so. Its units are made afterwards: see Batches.ClaimEnumeration.
func (s *Batches) Add(ctx context.Context, n NewBatch) (work.Batch, bool, error) {
	args, err := n.args()
	if err != nil {
		return work.Batch{}, false, err
	}
	var rows []batchRow
	err = s.db.SelectContext(ctx, &rows, insertBatch+` ON CONFLICT DO NOTHING RETURNING `+batchColumns, args...)
	if err != nil {
		return work.Batch{}, false, pg.Translate(fmt.Errorf("add batch: %w", err))
	}
	if len(rows) == 1 {
		b, err := rows[0].batch()
		return b, false, err
	}
	return s.replay(ctx, n, work.Clean(n.IdempotencyKey))
}

// replay finds the batch that stood in n's way, as replay does for units.
func (s *Batches) replay(ctx context.Context, n NewBatch, key string) (work.Batch, bool, error) {
	var row struct {
		batchRow
		SameBody bool `db:"same_body"`
	}
	err := s.db.GetContext(ctx, &row, `SELECT `+batchColumns+`, coalesce(body_hash = $4, false) AS same_body FROM batches
		WHERE id = $1 OR tenant = $2 AND idempotency_key = $3`, n.ID, n.Tenant, key, n.BodyHash)
	if err != nil {
		return work.Batch{}, false, pg.Translate(fmt.Errorf("find batch of key: %w", err))
	}
	if row.ID != n.ID && !row.SameBody {
		return work.Batch{}, false, ErrKeyReused
	}
	b, err := s.Get(ctx, n.Tenant, row.ID)
	return b, row.ID != n.ID, err
}

// Before returns the batch that an idempotency key made before. It is
// work.ErrNotFound when the key is new, and ErrKeyReused when it came with
// another body.
func (s *Batches) Before(ctx context.Context, tenant, key string, bodyHash []byte) (work.Batch, error) {
	b, _, err := s.replay(ctx, NewBatch{Batch: work.Batch{Tenant: tenant}, BodyHash: bodyHash}, work.Clean(key))
	return b, err
}

// Get returns one batch with what its units have come to.
func (s *Batches) Get(ctx context.Context, tenant string, id uuid.UUID) (work.Batch, error) {
	row, err := s.row(ctx, tenant, id)
	if err != nil {
		return work.Batch{}, err
	}
	return s.counted(ctx, row)
}

func (s *Batches) row(ctx context.Context, tenant string, id uuid.UUID) (row batchRow, err error) {
	err = s.db.GetContext(ctx, &row, `SELECT `+batchColumns+` FROM batches WHERE id = $1 AND tenant = $2 AND deleted_at IS NULL`, id, tenant)
	if err != nil {
		return row, pg.Translate(fmt.Errorf("read batch %s: %w", id, err))
	}
	return row, nil
}

// counted is the batch of a row with its counts, which are taken from its units
// until it is over.
func (s *Batches) counted(ctx context.Context, row batchRow) (work.Batch, error) {
	b, err := row.batch()
	if err != nil || row.Counts != nil {
		return b, err
	}
	b.Counts, err = countBatch(ctx, s.db, b.ID)
	return b, err
}

// countBatch counts units in one statement: the sum is exact at every moment. The
// cost is that of the units and of what has summed them up.
func countBatch(ctx context.Context, q sqlx.QueryerContext, id uuid.UUID) (c work.BatchCounts, err error) {
	var rows []struct {
		State  work.State `db:"state"`
		Count  int        `db:"count"`
		Denied int        `db:"denied"`
		costRow
	}
	err = sqlx.SelectContext(ctx, q, &rows, `SELECT state, count(*), count(*) FILTER (WHERE denials > 0) AS denied, `+sumOfCosts+` FROM work_units
		WHERE batch_id = $1 GROUP BY state`, id)
	if err != nil {
		return c, pg.Translate(fmt.Errorf("count units of batch %s: %w", id, err))
	}
	for _, r := range rows {
		c.Add(r.State, r.Count)
		c.Denied += r.Denied
		c.Cost = c.Plus(r.cost())
	}
	syntheses, err := costOfSyntheses(ctx, q, id)
	c.Cost = c.Plus(syntheses)
	return c, err
}

// costOfSyntheses is what the syntheses of a batch have cost.
func costOfSyntheses(ctx context.Context, q sqlx.QueryerContext, id uuid.UUID) (work.Cost, error) {
	var row costRow
	if err := sqlx.GetContext(ctx, q, &row, `SELECT `+sumOfCosts+` FROM work_units
		WHERE id = ANY((SELECT syntheses FROM batches WHERE id = $1)::uuid[])`, id); err != nil {
		return work.Cost{}, pg.Translate(fmt.Errorf("add up the syntheses of batch %s: %w", id, err))
	}
	return row.cost(), nil
}

// usageOfBatch is what the final runs of a batch's units have used.
func usageOfBatch(ctx context.Context, q sqlx.QueryerContext, id uuid.UUID) (*work.Usage, error) {
	var u work.Usage
	err := sqlx.GetContext(ctx, q, &u, `SELECT coalesce(sum(r.input_tokens), 0)::bigint AS input_tokens, coalesce(sum(r.output_tokens), 0)::bigint AS output_tokens,
			coalesce(sum(r.cache_read_tokens), 0)::bigint AS cache_read_tokens, coalesce(sum(r.cache_creation_tokens), 0)::bigint AS cache_creation_tokens
		FROM work_units u JOIN worker_runs r ON r.id = u.final_run WHERE u.batch_id = $1`, id)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("add up the usage of batch %s: %w", id, err))
	}
	return &u, nil
}

// BatchFilter chooses batches of one tenant; zero fields choose all.
type BatchFilter struct {
	Tenant   string
	Statuses []work.BatchStatus
	Protocol work.Protocol
	Search   string    // part of the title, in any case
	After    uuid.UUID // the last id of the page before
	Before   uuid.UUID // the first id of the page after: the page is read backwards from it
	Limit    int       // 0: 50
}

// where is the filter as conditions, without the page.
func (f BatchFilter) where() (w pg.Where) {
	w.Add("tenant = ? AND deleted_at IS NULL", f.Tenant)
	w.AddIf(len(f.Statuses) > 0, "status = ANY(?)", pg.TextArray(f.Statuses))
	w.AddIf(f.Protocol != "", "protocol = ?", string(f.Protocol))
	w.AddIf(f.Search != "", "title ILIKE ?", "%"+pg.EscapeLike(f.Search)+"%")
	return w
}

// List lists batches, newest first, and tells the id to go on after when
// there are more.
func (s *Batches) List(ctx context.Context, f BatchFilter) ([]work.Batch, *uuid.UUID, error) {
	f.Limit = cmp.Or(f.Limit, pg.DefaultLimit)
	w := f.where()
	w.AddIf(f.After != uuid.Nil, "id < ?", f.After)
	w.AddIf(f.Before != uuid.Nil, "id > ?", f.Before)
	order := "DESC"
	if f.Before != uuid.Nil {
		order = "ASC" // those next to it, not the newest of all
	}
	var rows []batchRow
	err := s.db.SelectContext(ctx, &rows, `SELECT * FROM (SELECT `+batchColumns+` FROM batches WHERE `+w.Text()+
		fmt.Sprintf(` ORDER BY id %s LIMIT %d) AS page ORDER BY id DESC`, order, f.Limit+1), w.Args...)
	if err != nil {
		return nil, nil, pg.Translate(fmt.Errorf("list batches: %w", err))
	}
	batches := make([]work.Batch, 0, len(rows))
	for _, row := range rows {
		b, err := s.counted(ctx, row)
		if err != nil {
			return nil, nil, err
		}
		batches = append(batches, b)
	}
	if f.Before != uuid.Nil && len(batches) > f.Limit { // what is too much is the farthest
		next := batches[len(batches)-1].ID
		return batches[1:], &next, nil
	}
	return pg.CutPage(batches, f.Limit, func(b work.Batch) uuid.UUID { return b.ID })
}

// BatchChanges are what a resume or an approval may change about a batch; nil
// keeps what it was.
type BatchChanges struct {
	MaxCostUSD  *float64
	Concurrency *int
}

// move changes a batch that is in one of the statuses and returns it. A
// conflict says what it is in instead.
func (s *Batches) move(ctx context.Context, tenant string, id uuid.UUID, from []work.BatchStatus, verb, set string,
	args ...any) (work.Batch, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	args = append([]any{id, tenant, pg.TextArray(from)}, args...)
	result, err := s.db.ExecContext(ctx, `UPDATE batches SET `+set+` WHERE id = $1 AND tenant = $2 AND status = ANY($3)`, args...)
	if err != nil {
		return work.Batch{}, pg.Translate(fmt.Errorf("%s batch %s: %w", verb, id, err))
	}
	b, err := s.Get(ctx, tenant, id)
	if err != nil {
		return b, err
	}
	if n, err := result.RowsAffected(); err == nil && n == 0 {
		return b, fmt.Errorf("%w: the batch is %s; %s goes with one that is %s", work.ErrConflict, b.Status, verb, orList(from))
	}
	return b, nil
}

func orList(from []work.BatchStatus) string {
	var text string
	for i, s := range from {
		switch {
		case i == 0:
		case i == len(from)-1:
			text += " or "
		default:
			text += ", "
		}
		text += string(s)
	}
	return text
}

// The statuses that each verb begins from.
var (
	goingOn    = []work.BatchStatus{work.BatchTesting, work.BatchInProgress}
	notOverYet = []work.BatchStatus{work.BatchEnumerating, work.BatchTesting, work.BatchAwaitingApproval, work.BatchInProgress,
		work.BatchFinalizing, work.BatchCancelling}
)

const changedBatch = `max_cost_usd = coalesce($4, max_cost_usd), concurrency = coalesce($5, concurrency)`

// Approve lets the rest of a batch run after its test.
func (s *Batches) Approve(ctx context.Context, tenant string, id uuid.UUID, c BatchChanges) (work.Batch, error) {
	return s.move(ctx, tenant, id, []work.BatchStatus{work.BatchAwaitingApproval}, "approve",
		`status = 'in_progress', approved_at = clock_timestamp(), `+changedBatch, c.MaxCostUSD, c.Concurrency)
}

// Pause lets no further unit of a batch begin; those that run go on.
func (s *Batches) Pause(ctx context.Context, tenant string, id uuid.UUID, by, why string) (work.Batch, error) {
	if _, err := s.move(ctx, tenant, id, goingOn, "pause", `paused_at = coalesce(paused_at, clock_timestamp()),
		paused_by = coalesce(nullif($4, ''), paused_by), paused_why = coalesce(nullif($5, ''), paused_why)`, work.Clean(by), work.Clean(why)); err != nil {
		return work.Batch{}, err
	}
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return work.Batch{}, pg.Translate(fmt.Errorf("pause batch %s: %w", id, err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	var rows []advancing
	err = tx.SelectContext(ctx, &rows, `SELECT `+batchColumns+`, released FROM batches
		WHERE id = $1 AND paused_at IS NOT NULL AND finished_at IS NULL FOR NO KEY UPDATE`, id)
	if err == nil && len(rows) == 1 {
		b := &rows[0]
		b.tx, b.out = tx, &Advanced{}
		err = b.pause(ctx, b.PausedBy, b.PausedWhy)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return work.Batch{}, pg.Translate(fmt.Errorf("pause batch %s: %w", id, err))
	}
	return s.Get(ctx, tenant, id)
}

// Resume lets a paused batch go on. Runs of unknown cost do not stop it
// again, but further ones do where it has a limit on costs.
func (s *Batches) Resume(ctx context.Context, tenant string, id uuid.UUID, c BatchChanges) (work.Batch, error) {
	return s.move(ctx, tenant, id, goingOn, "resume",
		`paused_at = NULL, paused_by = '', paused_why = '', resumed_at = clock_timestamp(), `+changedBatch, c.MaxCostUSD, c.Concurrency)
}

// Cancel ends a batch: what has not begun does not, and what runs is asked
// to stop. One that is over is returned as it is. Anthropic counts what it was
// sent: a batch of its kind first gets all its units.
func (s *Batches) Cancel(ctx context.Context, tenant string, id uuid.UUID, why string) (work.Batch, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	b, err := s.move(ctx, tenant, id, notOverYet, "cancel", `cancelled_at = coalesce(cancelled_at, clock_timestamp()),
		status = CASE WHEN protocol = 'anthropic' AND status = 'enumerating' THEN status ELSE 'cancelling' END,
		filler = CASE WHEN protocol = 'anthropic' AND status = 'enumerating' THEN filler END,
		fill_until = CASE WHEN protocol = 'anthropic' AND status = 'enumerating' THEN fill_until END, why = coalesce(nullif($4, ''), why)`, work.Clean(why))
	if errors.Is(err, work.ErrConflict) {
		return b, nil
	}
	return b, err
}

// Retry puts the failed, timed-out and cancelled units of a batch that is
// over back in the queue, MaxBulk of them at once, and tells whether others are
// left.
func (s *Batches) Retry(ctx context.Context, tenant string, id uuid.UUID, states []work.State) ([]Moved, bool, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	return s.units.RetryAll(ctx, UnitFilter{Tenant: tenant, Batch: id, States: states}, Changes{})
}

// Delete takes a batch that is over away, with its units: Retention.PurgeBatches
// removes them. Another is a conflict.
func (s *Batches) Delete(ctx context.Context, tenant string, id uuid.UUID) error {
	ctx = pg.Allow(ctx, pg.LongLimit)
	result, err := s.db.ExecContext(ctx, `UPDATE batches SET deleted_at = clock_timestamp()
		WHERE id = $1 AND tenant = $2 AND finished_at IS NOT NULL AND deleted_at IS NULL`, id, tenant)
	if err != nil {
		return pg.Translate(fmt.Errorf("delete batch %s: %w", id, err))
	}
	if n, err := result.RowsAffected(); err != nil || n > 0 {
		return err
	}
	b, err := s.Get(ctx, tenant, id)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: the batch is %s; cancel it first", work.ErrConflict, b.Status)
}
