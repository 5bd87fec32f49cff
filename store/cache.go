package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Cached is a result that a unit may take over.
type Cached struct {
	RunID       uuid.UUID
	Result      string
	Model       string
	OutputFiles []work.OutputFile
	CompletedAt time.Time // of the run
}

// Cached finds the result that is kept under key and is at most ttl old; nil:
// there is none, or one of its files is gone.
func (s *Runs) Cached(ctx context.Context, tenant string, key []byte, ttl time.Duration) (*Cached, error) {
	var row struct {
		ID          uuid.UUID `db:"id"`
		Result      string    `db:"result"`
		Model       string    `db:"model"`
		OutputFiles []byte    `db:"output_files"`
		CompletedAt time.Time `db:"completed_at"`
	}
	err := s.db.GetContext(ctx, &row, `SELECT r.id, r.result, coalesce(r.model, '') AS model, r.output_files, r.completed_at
		FROM result_cache c JOIN worker_runs r ON r.id = c.run_id
		WHERE c.tenant = $1 AND c.key = $2 AND c.created_at > clock_timestamp() - $3 * interval '1 second'
			AND NOT EXISTS (SELECT FROM jsonb_to_recordset(r.output_files) AS o(id uuid)
				WHERE NOT EXISTS (SELECT FROM files WHERE files.id = o.id))`,
		tenant, key, ttl.Seconds())
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("look for a cached result: %w", err))
	}
	c := &Cached{RunID: row.ID, Result: row.Result, Model: row.Model, CompletedAt: row.CompletedAt}
	if err := json.Unmarshal(row.OutputFiles, &c.OutputFiles); err != nil {
		return nil, fmt.Errorf("read output files of run %s: %w", row.ID, err)
	}
	return c, nil
}

// PruneCache forgets results that are older than any unit may ask for, and
// returns how many. Their runs stay.
func (s *Retention) PruneCache(ctx context.Context, most int) (int, error) {
	return s.db.ExecCount(ctx, "forget old results", `DELETE FROM result_cache WHERE (tenant, key) IN (
		SELECT tenant, key FROM result_cache WHERE created_at < clock_timestamp() - $1 * interval '1 second'
		ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)`, float64(work.MaxCacheTTL), most)
}
