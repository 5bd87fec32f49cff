package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
	"piecework/store/pg"
)

// The bytes of a file are written before its row, and removed after it. What
// happens between the two is noted in stray_blobs, so that a process which
// dies there leaves nothing for ever.

// Files are uploads and what runs have written.
type Files struct{ db *pg.DB }

// abandoned is how long the writing of a blob may take until its row is there.
const abandoned = 24 * time.Hour

// ExpectBlobs notes that bytes are about to be written under ids.
func (s *Files) ExpectBlobs(ctx context.Context, ids []uuid.UUID) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO stray_blobs (id, remove_at)
		SELECT id, clock_timestamp() + $2 * interval '1 second' FROM unnest($1::uuid[]) AS n(id)
		ON CONFLICT (id) DO NOTHING`, pg.UUIDs(ids), abandoned.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("expect blobs: %w", err))
	}
	return nil
}

// StrayBlobs returns bytes whose time to be removed has come.
func (s *Files) StrayBlobs(ctx context.Context, limit int) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	err := s.db.SelectContext(ctx, &ids, `SELECT id FROM stray_blobs WHERE remove_at <= clock_timestamp()
		ORDER BY remove_at LIMIT $1`, limit)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("find stray blobs: %w", err))
	}
	return ids, nil
}

// BlobsGone notes that the bytes under ids were removed.
func (s *Files) BlobsGone(ctx context.Context, ids []uuid.UUID) error {
	if _, err := s.db.ExecContext(ctx, `DELETE FROM stray_blobs WHERE id = ANY($1::uuid[])`, pg.UUIDs(ids)); err != nil {
		return pg.Translate(fmt.Errorf("forget stray blobs: %w", err))
	}
	return nil
}

const fileColumns = `id, tenant, run_id, filename, bytes, media_type, encode(sha256, 'hex') AS sha256, created_at, purpose, expires_at`

// Add makes bytes that were expected and written a file. Repeating it is
// safe.
func (s *Files) Add(ctx context.Context, f work.File) (work.File, error) {
	_, err := s.db.ExecContext(ctx, `WITH kept AS (DELETE FROM stray_blobs WHERE id = $1)
		INSERT INTO files (id, tenant, filename, bytes, media_type, sha256, created_at, purpose, expires_at)
		VALUES ($1, $2, $3, $4, $5, decode($6, 'hex'), clock_timestamp(), $7, $8) ON CONFLICT (id) DO NOTHING`,
		f.ID, f.Tenant, work.Clean(f.Name), f.Size, work.Clean(f.MediaType), f.SHA256, f.Purpose, f.ExpiresAt)
	if err != nil {
		return work.File{}, pg.Translate(fmt.Errorf("add file %s: %w", f.ID, err))
	}
	return s.Get(ctx, f.Tenant, f.ID)
}

// Get returns one file.
func (s *Files) Get(ctx context.Context, tenant string, id uuid.UUID) (work.File, error) {
	var f work.File
	err := s.db.GetContext(ctx, &f, `SELECT `+fileColumns+` FROM files WHERE id = $1 AND tenant = $2`, id, tenant)
	if err != nil {
		return work.File{}, pg.Translate(fmt.Errorf("read file %s: %w", id, err))
	}
	return f, nil
}

// ByID returns those of ids that there are.
func (s *Files) ByID(ctx context.Context, tenant string, ids []uuid.UUID) (map[uuid.UUID]work.File, error) {
	var rows []work.File
	err := s.db.SelectContext(ctx, &rows, `SELECT `+fileColumns+` FROM files WHERE id = ANY($1::uuid[]) AND tenant = $2`,
		pg.UUIDs(ids), tenant)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("read files: %w", err))
	}
	files := make(map[uuid.UUID]work.File, len(rows))
	for _, f := range rows {
		files[f.ID] = f
	}
	return files, nil
}

// FileFilter chooses files of one tenant; zero fields choose all.
type FileFilter struct {
	Tenant string
	Run    uuid.UUID
	After  uuid.UUID
	Limit  int // 0: 50
}

// List lists files, newest first, and tells the id to go on after when there
// are more.
func (s *Files) List(ctx context.Context, f FileFilter) ([]work.File, *uuid.UUID, error) {
	f.Limit = cmp.Or(f.Limit, pg.DefaultLimit)
	var w pg.Where
	w.Add("tenant = ?", f.Tenant)
	w.AddIf(f.Run != uuid.Nil, "run_id = ?", f.Run)
	w.AddIf(f.After != uuid.Nil, "id < ?", f.After)
	var files []work.File
	if err := s.db.Page(ctx, &files, `SELECT `+fileColumns+` FROM files`, "id", w, f.Limit); err != nil {
		return nil, nil, fmt.Errorf("list files: %w", err)
	}
	return pg.CutPage(files, f.Limit, func(f work.File) uuid.UUID { return f.ID })
}

// Delete takes a file out of the database; its bytes are to be removed next.
// One that a unit may still need is a conflict. The row is locked before the
// units are looked at: a unit that is being accepted with this file holds the
// row, and is seen when it lets go.
func (s *Files) Delete(ctx context.Context, tenant string, id uuid.UUID) error {
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return pg.Translate(fmt.Errorf("delete file: %w", err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	var found, users []uuid.UUID
	err = tx.SelectContext(ctx, &found, `SELECT id FROM files WHERE id = $1 AND tenant = $2 FOR UPDATE`, id, tenant)
	if err == nil && len(found) == 0 {
		return work.ErrNotFound
	}
	if err == nil {
		err = tx.SelectContext(ctx, &users, `SELECT u.id FROM unit_files f JOIN work_units u ON u.id = f.unit_id
			WHERE f.file_id = $1 AND u.state IN ('queued', 'running', 'waiting') LIMIT 1`, id)
	}
	if err == nil && len(users) == 0 {
		var batches []uuid.UUID
		err = tx.SelectContext(ctx, &batches, `SELECT id FROM batches WHERE input_file = $1 AND status = 'enumerating' LIMIT 1`, id)
		if err == nil && len(batches) > 0 {
			return fmt.Errorf("%w: the units of the batch %s are being made of the file; cancel it or wait until they are", work.ErrConflict, batches[0])
		}
	}
	if err == nil && len(users) > 0 {
		return fmt.Errorf("%w: the unit %s uses the file and is not final; cancel it or wait for it", work.ErrConflict, users[0])
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, `DELETE FROM files WHERE id = $1`, id) // a trigger notes its bytes
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return pg.Translate(fmt.Errorf("delete file %s: %w", id, err))
	}
	return nil
}

// lostFile turns the refusal of a unit whose file was deleted in the moment it
// was accepted into what is wrong with the unit.
func lostFile(err error) error {
	var pgErr *pq.Error
	if errors.As(err, &pgErr) && pgErr.Constraint == "unit_files_file_id_fkey" {
		return work.Invalidf("#/files", "a file that the unit names was deleted just now; upload it again")
	}
	return err
}

// The files of an OpenAI-compatible batch that are read from the database.
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
