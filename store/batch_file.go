package store

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// The files of an OpenAI-compatible batch that are read from the ledger.
const (
	PartOutput = "output"
	PartError  = "error"
)

// PurposeOutput is what such a file is for.
const PurposeOutput = "batch_output"

// PurposeFile is a file as /v1/files has it: one that was uploaded there, or
// the output or error file of a batch. The latter has the batch's id and a part.
type PurposeFile struct {
	work.File
	Part  string `db:"part"`  // empty: an upload
	Round int    `db:"round"` // of the batch
	Over  bool   `db:"over"`  // the batch is: its files do not change any more
	Sized bool   `db:"sized"` // Size is known
}

// PurposeFilter chooses such files of one tenant.
type PurposeFilter struct {
	Tenant    string
	Purpose   string // empty: any
	After     uuid.UUID
	AfterPart string
	Oldest    bool // oldest first
	Limit     int
}

// batchFiles are the files of batches. Those of one that goes on have what is
// there so far, and stand in no list.
const batchFiles = `SELECT b.id, b.tenant, '' AS filename, coalesce((b.file_sizes->>p.part)::bigint, 0) AS bytes,
		'batch_output' AS purpose, coalesce(b.finished_at, b.created_at) AS created_at,
		b.finished_at + (b.source->>'output_expires_after')::double precision * interval '1 second' AS expires_at,
		p.part, b.rounds AS round, b.finished_at IS NOT NULL AS over,
		b.finished_at IS NOT NULL AND coalesce((b.file_sizes->>'round')::integer = b.rounds, false) AS sized
	FROM batches b, (VALUES ('output'), ('error')) AS p(part)
	WHERE b.tenant = $1 AND b.protocol = 'openai' AND b.deleted_at IS NULL AND NOT p.part = ANY(b.deleted_files)
		AND (b.finished_at IS NULL OR (b.source->>'output_expires_after') IS NULL
			OR b.finished_at + (b.source->>'output_expires_after')::double precision * interval '1 second' > clock_timestamp())
		AND (b.finished_at IS NULL OR CASE p.part WHEN 'output' THEN coalesce((b.counts->>'succeeded')::integer, 0)
			ELSE coalesce((b.counts->>'failed')::integer, 0) + coalesce((b.counts->>'cancelled')::integer, 0) + coalesce((b.counts->>'expired')::integer, 0) END > 0)`

// ListByPurpose lists such files and tells whether there are more.
func (s *Files) ListByPurpose(ctx context.Context, f PurposeFilter) ([]PurposeFile, bool, error) {
	f.Limit = cmp.Or(f.Limit, pg.DefaultLimit)
	order, than, edge, part := "DESC", "<", uuid.Max, "~"
	if f.Oldest {
		order, than, edge, part = "ASC", ">", uuid.Nil, ""
	}
	if f.After != uuid.Nil {
		edge, part = f.After, f.AfterPart
	}
	ordered := fmt.Sprintf(` ORDER BY id %s, part %s LIMIT %d`, order, order, f.Limit+1)
	var files []PurposeFile
	err := s.db.SelectContext(ctx, &files, `SELECT * FROM (
			(SELECT * FROM (SELECT id, tenant, filename, bytes, purpose, created_at, expires_at, '' AS part, 0 AS round, true AS over, true AS sized
				FROM files WHERE tenant = $1 AND purpose IN ('batch', 'user_data') AND (expires_at IS NULL OR expires_at > clock_timestamp())
			) AS u WHERE ($2 = '' OR purpose = $2) AND (id, part) `+than+` ($3::uuid, $4)`+ordered+`)
			UNION ALL
			(SELECT * FROM (`+batchFiles+` AND b.finished_at IS NOT NULL
			) AS b WHERE ($2 = '' OR purpose = $2) AND (id, part) `+than+` ($3::uuid, $4)`+ordered+`)
		) AS all_files`+ordered, f.Tenant, f.Purpose, edge, part)
	if err != nil {
		return nil, false, pg.Translate(fmt.Errorf("list files: %w", err))
	}
	return files[:min(len(files), f.Limit)], len(files) > f.Limit, nil
}

// OfBatch returns the output or the error file of a batch.
func (s *Files) OfBatch(ctx context.Context, tenant string, batch uuid.UUID, part string) (PurposeFile, error) {
	var f PurposeFile
	if err := s.db.GetContext(ctx, &f, batchFiles+` AND b.id = $2 AND p.part = $3`, tenant, batch, part); err != nil {
		return f, pg.Translate(fmt.Errorf("read the %s file of batch %s: %w", part, batch, err))
	}
	return f, nil
}

// SetBatchSizes notes how long the files of a batch are that is over.
func (s *Files) SetBatchSizes(ctx context.Context, batch uuid.UUID, round int, output, errors int64) error {
	_, err := s.db.ExecContext(ctx, `UPDATE batches SET file_sizes = jsonb_build_object('round', $2::integer, 'output', $3::bigint, 'error', $4::bigint)
		WHERE id = $1 AND rounds = $2 AND finished_at IS NOT NULL`, batch, round, output, errors)
	if err != nil {
		return pg.Translate(fmt.Errorf("note the sizes of the files of batch %s: %w", batch, err))
	}
	return nil
}

// DeleteOfBatch takes the output or the error file of a batch away. The units
// it was read from stay. That of a batch that goes on is a conflict.
func (s *Files) DeleteOfBatch(ctx context.Context, tenant string, batch uuid.UUID, part string) error {
	result, err := s.db.ExecContext(ctx, `UPDATE batches SET deleted_files = array_append(deleted_files, $3)
		WHERE id = $1 AND tenant = $2 AND finished_at IS NOT NULL AND NOT $3 = ANY(deleted_files)`, batch, tenant, part)
	if err != nil {
		return pg.Translate(fmt.Errorf("delete the %s file of batch %s: %w", part, batch, err))
	}
	if n, err := result.RowsAffected(); err == nil && n == 0 {
		return fmt.Errorf("%w: the batch goes on; cancel it or wait for it", work.ErrConflict)
	}
	return nil
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
