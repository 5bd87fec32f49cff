package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"piecework/internal/work"
	"piecework/store/pg"
)

// What is removed, and how: units some at a time, with all that hangs on them. Rows of
// worker_runs, transcripts, transcript_chunks, files, unit_files, result_cache and
// provider_answers go with their unit by foreign keys; a file that goes leaves a
// note in stray_blobs by a trigger, and its bytes are removed next.

// Retention removes what is old.
type Retention struct{ db *pg.DB }

// pruneLock is the advisory lock of whoever removes what is old.
const pruneLock = 0x7072756e65 // "prune"

// Lead runs f if no other process removes old rows just now, and tells whether it
// ran.
func (s *Retention) Lead(ctx context.Context, f func(context.Context) error) (bool, error) {
	return s.db.LeadOnce(ctx, pruneLock, f)
}

// PruneUnits removes units that ended before a time, the oldest first, with their
// runs, transcripts and output files, and returns how many. Units of a batch go
// with their batch. A unit whose output files are used by one that is not over
// stays until that is.
func (s *Retention) PruneUnits(ctx context.Context, tenant string, before time.Time, most int) (int, error) {
	return s.removeChosen(ctx, "prune units", `SELECT u.id FROM work_units u WHERE u.tenant = $1 AND u.finished_at < $2 AND `+onItsOwn+`
		ORDER BY u.finished_at LIMIT $3 FOR UPDATE OF u SKIP LOCKED`, tenant, before, most)
}

// onItsOwn is true for a unit that goes with no batch.
const onItsOwn = `u.batch_id IS NULL AND NOT EXISTS (SELECT FROM batches b WHERE b.synthesis_unit = u.id)
	AND NOT EXISTS (SELECT FROM worker_runs r JOIN files f ON f.run_id = r.id JOIN unit_files n ON n.file_id = f.id
		JOIN work_units o ON o.id = n.unit_id WHERE r.unit_id = u.id AND o.id <> u.id AND o.finished_at IS NULL)`

// removeChosen removes the units that a query chooses and locks.
func (s *Retention) removeChosen(ctx context.Context, what, query string, args ...any) (removed int, err error) {
	err = s.db.InTx(ctx, what, func(tx *sqlx.Tx) error {
		var ids []uuid.UUID
		if err := tx.SelectContext(ctx, &ids, query, args...); err != nil || len(ids) == 0 {
			return err
		}
		removed, err = removeUnits(ctx, tx, ids)
		return err
	})
	return removed, err
}

// removeUnits removes units that are locked and over, but for those whose output
// files are used by a unit that is not. The files are locked before their users
// are looked at: a unit that is being accepted with one of them holds its row, and
// is seen when it lets go.
func removeUnits(ctx context.Context, tx *sqlx.Tx, ids []uuid.UUID) (int, error) {
	var files []uuid.UUID
	err := tx.SelectContext(ctx, &files, `SELECT f.id FROM worker_runs r JOIN files f ON f.run_id = r.id WHERE r.unit_id = ANY($1::uuid[])
		ORDER BY f.id FOR UPDATE OF f`, pg.UUIDs(ids))
	if err == nil && len(files) > 0 {
		err = tx.SelectContext(ctx, &ids, `SELECT id FROM unnest($1::uuid[]) AS chosen(id) WHERE NOT EXISTS (
			SELECT FROM worker_runs r JOIN files f ON f.run_id = r.id JOIN unit_files n ON n.file_id = f.id JOIN work_units o ON o.id = n.unit_id
			WHERE r.unit_id = chosen.id AND o.id <> chosen.id AND o.finished_at IS NULL)`, pg.UUIDs(ids))
	}
	for _, statement := range []string{
		`DELETE FROM webhook_deliveries WHERE unit_id = ANY($1::uuid[]) AND state <> 'pending' AND claimed_by IS NULL`,
		`UPDATE schedules SET last_unit = NULL WHERE last_unit = ANY($1::uuid[])`,
		`DELETE FROM work_units WHERE id = ANY($1::uuid[])`,
	} {
		if err == nil {
			_, err = tx.ExecContext(ctx, statement, pg.UUIDs(ids))
		}
	}
	return len(ids), err
}

// Delete removes a unit that is over, with its runs, transcripts and output
// files. It is a conflict while the unit is not over, when it belongs to a batch,
// and when a unit that is not over uses one of its output files.
func (s *Units) Delete(ctx context.Context, tenant string, id uuid.UUID) error {
	return s.db.InTx(ctx, fmt.Sprintf("delete unit %s", id), func(tx *sqlx.Tx) error {
		var units []struct {
			State work.State `db:"state"`
			Batch *uuid.UUID `db:"batch"`
		}
		err := tx.SelectContext(ctx, &units, `SELECT u.state, coalesce(u.batch_id, (SELECT b.id FROM batches b WHERE b.synthesis_unit = u.id LIMIT 1)) AS batch
			FROM work_units u WHERE u.id = $1 AND u.tenant = $2 FOR UPDATE OF u`, id, tenant)
		switch {
		case err != nil:
			return err
		case len(units) == 0:
			return work.ErrNotFound
		case !units[0].State.Final():
			return fmt.Errorf("%w: the unit is %s; cancel it first, or wait for it", work.ErrConflict, units[0].State)
		case units[0].Batch != nil:
			return fmt.Errorf("%w: the unit belongs to the batch %s; delete the batch", work.ErrConflict, *units[0].Batch)
		}
		n, err := removeUnits(ctx, tx, []uuid.UUID{id})
		if err == nil && n == 0 {
			return fmt.Errorf("%w: a unit that is not over uses an output file of this one; cancel it or wait for it", work.ErrConflict)
		}
		return err
	})
}

// PruneBatches takes batches away that ended before a time, and returns how many.
// Retention.PurgeBatches removes them.
func (s *Retention) PruneBatches(ctx context.Context, tenant string, before time.Time, most int) (int, error) {
	return s.db.ExecCount(ctx, "prune batches", `WITH old AS (SELECT id FROM batches WHERE tenant = $1 AND finished_at < $2 AND deleted_at IS NULL
			ORDER BY finished_at LIMIT $3 FOR UPDATE SKIP LOCKED)
		UPDATE batches b SET deleted_at = clock_timestamp() FROM old WHERE b.id = old.id`, tenant, before, most)
}

// PurgeBatches removes units of deleted batches, at most most, and batches of
// which none is left, with what was made for them. It returns how many units and
// batches it removed: 0 when nothing can be removed now.
func (s *Retention) PurgeBatches(ctx context.Context, most int) (int, error) {
	n, err := s.removeChosen(ctx, "remove units of deleted batches", `SELECT u.id FROM batches b JOIN work_units u ON u.batch_id = b.id
		WHERE b.deleted_at IS NOT NULL AND u.finished_at IS NOT NULL LIMIT $1 FOR UPDATE OF u SKIP LOCKED`, most)
	if err != nil || n > 0 {
		return n, err
	}
	err = s.db.InTx(ctx, "remove deleted batches", func(tx *sqlx.Tx) error {
		var gone []struct {
			ID        uuid.UUID  `db:"id"`
			Synthesis *uuid.UUID `db:"synthesis_unit"`
			Input     *uuid.UUID `db:"own_input"`
		}
		// An input file of OpenAI's protocol is an upload of the caller's; others were made for the batch.
		err := tx.SelectContext(ctx, &gone, `DELETE FROM batches WHERE id IN (SELECT id FROM batches b WHERE deleted_at IS NOT NULL
				AND NOT EXISTS (SELECT FROM work_units WHERE batch_id = b.id)
				AND NOT EXISTS (SELECT FROM work_units u WHERE u.id = b.synthesis_unit AND u.finished_at IS NULL) LIMIT $1 FOR UPDATE SKIP LOCKED)
			RETURNING id, synthesis_unit, CASE WHEN protocol <> 'openai' THEN input_file END AS own_input`, most)
		if err != nil {
			return err
		}
		var batches, units, files []uuid.UUID
		for _, b := range gone {
			batches = append(batches, b.ID)
			if b.Synthesis != nil {
				units = append(units, *b.Synthesis)
			}
			if b.Input != nil {
				files = append(files, *b.Input)
			}
		}
		n = len(batches)
		if _, err := tx.ExecContext(ctx, `DELETE FROM webhook_deliveries WHERE batch_id = ANY($1::uuid[]) AND state <> 'pending' AND claimed_by IS NULL`, pg.UUIDs(batches)); err != nil {
			return err
		}
		// What a synthesis was given is a file that was made for it.
		if _, err := tx.ExecContext(ctx, `DELETE FROM files f WHERE run_id IS NULL AND (id = ANY($1::uuid[])
			OR id IN (SELECT file_id FROM unit_files WHERE unit_id = ANY($2::uuid[])))
			AND NOT EXISTS (SELECT FROM unit_files n WHERE n.file_id = f.id AND n.unit_id <> ALL($2::uuid[]))`, pg.UUIDs(files), pg.UUIDs(units)); err != nil {
			return err
		}
		_, err = removeUnits(ctx, tx, units)
		return err
	})
	return n, err
}

// PruneUploads removes uploaded files from before a time that nobody names any
// more: no unit, no batch that is there, no schedule and no trigger.
func (s *Retention) PruneUploads(ctx context.Context, tenant string, before time.Time, most int) (int, error) {
	return s.db.ExecCount(ctx, "prune uploads", `DELETE FROM files WHERE id IN (SELECT f.id FROM files f WHERE tenant = $1 AND created_at < $2 AND run_id IS NULL
		AND (expires_at IS NULL OR expires_at <= clock_timestamp())
		AND NOT EXISTS (SELECT FROM unit_files n WHERE n.file_id = f.id)
		AND NOT EXISTS (SELECT FROM batches b WHERE b.tenant = f.tenant AND (b.input_file = f.id OR b.finished_at IS NULL AND strpos(b.unit::text || b.source::text, f.id::text) > 0))
		AND NOT EXISTS (SELECT FROM schedules c WHERE c.tenant = f.tenant AND strpos(c.unit::text, f.id::text) > 0)
		AND NOT EXISTS (SELECT FROM triggers g WHERE g.tenant = f.tenant AND strpos(concat(g.unit::text, g.batch::text, g.mapping::text), f.id::text) > 0)
		ORDER BY created_at LIMIT $3 FOR UPDATE OF f SKIP LOCKED)`, tenant, before, most)
}

// PruneTranscripts empties transcripts of units that are over, of runs that ended
// before a time, and returns how many. Their rows stay and say when.
func (s *Retention) PruneTranscripts(ctx context.Context, before time.Time, most int) (int, error) {
	return s.db.ExecCount(ctx, "prune transcripts", `WITH old AS (SELECT t.run_id FROM transcripts t
			WHERE t.removed_at IS NULL AND t.run_id < $1
			-- No join: it may begin with the runs, and pass by all whose transcripts were emptied before.
			AND (SELECT r.completed_at < $2 AND u.finished_at IS NOT NULL FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE r.id = t.run_id)
			ORDER BY t.run_id LIMIT $3 FOR UPDATE OF t SKIP LOCKED)
		UPDATE transcripts t SET blob = '', removed_at = clock_timestamp() FROM old WHERE t.run_id = old.run_id`, idOf(before), before, most)
}

// idOf is an id of a time: ids are in order of time.
func idOf(t time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(t.UnixMilli())<<16)
	return id
}

// PruneKeys forgets the idempotency keys of units and batches that are over and
// were accepted before a time, and returns how many. A key that comes again then
// makes another unit.
func (s *Retention) PruneKeys(ctx context.Context, before time.Time, most int) (int, error) {
	units, err := s.db.ExecCount(ctx, "forget idempotency keys", `WITH old AS (SELECT id FROM work_units WHERE idempotency_key IS NOT NULL AND created_at < $1 AND finished_at IS NOT NULL
			ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET idempotency_key = NULL, body_hash = NULL FROM old WHERE u.id = old.id`, before, most)
	if err != nil {
		return units, err
	}
	batches, err := s.db.ExecCount(ctx, "forget idempotency keys of batches", `WITH old AS (SELECT id FROM batches WHERE idempotency_key IS NOT NULL AND created_at < $1 AND finished_at IS NOT NULL
			LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE batches b SET idempotency_key = NULL, body_hash = NULL FROM old WHERE b.id = old.id`, before, most)
	return max(units, batches), err
}

// PruneProcesses removes worker processes that stopped, or whose lease was ended,
// before a time, and that hold no run any more, and returns how many.
func (s *Retention) PruneProcesses(ctx context.Context, before time.Time, most int) (int, error) {
	return s.db.ExecCount(ctx, "prune worker processes", `DELETE FROM worker_processes WHERE id IN (SELECT id FROM worker_processes p WHERE stopped_at < $1
		AND NOT EXISTS (SELECT FROM worker_runs r WHERE r.worker_process = p.id AND r.status = 'running') LIMIT $2 FOR UPDATE OF p SKIP LOCKED)`, before, most)
}

// PruneProviderBatches removes providers' batches that were over before a time
// and that no live unit waits for, and returns how many.
func (s *Retention) PruneProviderBatches(ctx context.Context, before time.Time, most int) (int, error) {
	return s.db.ExecCount(ctx, "prune provider batches", `DELETE FROM provider_batches WHERE id IN (SELECT id FROM provider_batches b WHERE finished_at < $1
		AND NOT EXISTS (SELECT FROM work_units u WHERE u.provider_batch = b.id AND u.finished_at IS NULL) LIMIT $2 FOR UPDATE OF b SKIP LOCKED)`, before, most)
}

// PrunePauses forgets queues and backends that were resumed before a time.
func (s *Retention) PrunePauses(ctx context.Context, before time.Time, most int) (int, error) {
	return s.db.ExecCount(ctx, "prune pauses", `DELETE FROM pauses WHERE (kind, name) IN (SELECT kind, name FROM pauses WHERE since IS NULL AND resumed_at < $1
		LIMIT $2 FOR UPDATE SKIP LOCKED)`, before, most)
}

// Old is what Prune would remove.
type Old struct {
	Units   int   `db:"units" json:"units"`
	Batches int   `db:"batches" json:"batches"`
	Files   int   `db:"files" json:"files"`
	Bytes   int64 `db:"bytes" json:"bytes"`
}

// Preview counts what ended before a time: units (those of batches among
// them), batches, and the output files of these units with their bytes.
func (s *Retention) Preview(ctx context.Context, tenant string, before time.Time) (Old, error) {
	var old Old
	err := s.db.GetContext(pg.Allow(ctx, pg.LongLimit), &old, `WITH gone AS (SELECT id FROM batches WHERE tenant = $1 AND finished_at < $2 AND deleted_at IS NULL),
		chosen AS (SELECT u.id FROM work_units u WHERE u.tenant = $1 AND u.finished_at < $2 AND `+onItsOwn+`
			UNION SELECT u.id FROM gone JOIN work_units u ON u.batch_id = gone.id)
		SELECT (SELECT count(*) FROM chosen) AS units, (SELECT count(*) FROM gone) AS batches, count(f.id) AS files, coalesce(sum(f.bytes), 0)::bigint AS bytes
		FROM chosen JOIN worker_runs r ON r.unit_id = chosen.id JOIN files f ON f.run_id = r.id`, tenant, before)
	if err != nil {
		return old, pg.Translate(fmt.Errorf("count what is old: %w", err))
	}
	return old, nil
}

// Leftover tells of units by whose ids directories were found: which of them are
// over, and which are not there at all.
func (s *Retention) Leftover(ctx context.Context, ids []uuid.UUID) (over, gone map[uuid.UUID]bool, err error) {
	var rows []struct {
		ID   uuid.UUID `db:"id"`
		Over bool      `db:"over"`
	}
	if err := s.db.SelectContext(ctx, &rows, `SELECT id, finished_at IS NOT NULL AS over FROM work_units WHERE id = ANY($1::uuid[])`, pg.UUIDs(ids)); err != nil {
		return nil, nil, pg.Translate(fmt.Errorf("look for units of directories: %w", err))
	}
	over, gone = map[uuid.UUID]bool{}, map[uuid.UUID]bool{}
	for _, id := range ids {
		gone[id] = true
	}
	for _, r := range rows {
		delete(gone, r.ID)
		if r.Over {
			over[r.ID] = true
		}
	}
	return over, gone, nil
}

// PruneCache forgets results that are older than any unit may ask for, and
// returns how many. Their runs stay.
func (s *Retention) PruneCache(ctx context.Context, most int) (int, error) {
	return s.db.ExecCount(ctx, "forget old results", `DELETE FROM result_cache WHERE (tenant, key) IN (
		SELECT tenant, key FROM result_cache WHERE created_at < clock_timestamp() - $1 * interval '1 second'
		ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)`, float64(work.MaxCacheTTL), most)
}

// PruneTriggerDeliveries forgets what came for triggers before a time, and returns
// how many rows that were.
func (s *Retention) PruneTriggerDeliveries(ctx context.Context, before time.Time, most int) (int, error) {
	return s.db.ExecCount(ctx, "forget old deliveries to triggers", `DELETE FROM trigger_deliveries WHERE ctid = ANY(ARRAY(SELECT ctid FROM trigger_deliveries
		WHERE received_at < $1 ORDER BY received_at LIMIT $2 FOR UPDATE SKIP LOCKED))`, before, most)
}

// PruneDeliveries deletes deliveries that are settled and were written before a
// time, and returns how many.
func (s *Retention) PruneDeliveries(ctx context.Context, before time.Time, most int) (int, error) {
	return s.db.ExecCount(ctx, "prune deliveries", `DELETE FROM webhook_deliveries WHERE id IN (
		SELECT id FROM webhook_deliveries WHERE id < $1 AND state <> 'pending' AND claimed_by IS NULL
		ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)`, idOf(before), most)
}

// PruneAnswers removes answers whose units are over: the process that used one died
// before it could forget it, or nobody has told for a week what it has cost. It
// returns how many.
func (s *Retention) PruneAnswers(ctx context.Context, most int) (int, error) {
	return s.db.ExecCount(ctx, "remove answers that nobody needs", `WITH gone AS (
			SELECT a.unit_id, `+unusedAnswer+` AS unused FROM provider_answers a JOIN work_units u ON u.id = a.unit_id
			WHERE `+overUnit+` AND (a.answered_at < clock_timestamp() - $2 * interval '1 second' OR NOT `+unusedAnswer+`)
			ORDER BY a.unit_id LIMIT $1 FOR UPDATE OF u, a SKIP LOCKED
		), unknown AS (
			UPDATE work_units u SET unpriced_runs = unpriced_runs + 1 FROM gone WHERE u.id = gone.unit_id AND gone.unused
		) DELETE FROM provider_answers a USING gone WHERE a.unit_id = gone.unit_id`, most, answerKept.Seconds())
}

// ExpireFiles takes files whose time is over out of the database, as far as
// nobody needs them, and returns how many; their bytes are removed next.
func (s *Retention) ExpireFiles(ctx context.Context, most int) (int, error) {
	return s.db.ExecCount(ctx, "expire files", `DELETE FROM files WHERE id IN (SELECT id FROM files f WHERE expires_at <= clock_timestamp()
			AND NOT EXISTS (SELECT FROM unit_files n JOIN work_units u ON u.id = n.unit_id WHERE n.file_id = f.id AND u.state IN ('queued', 'running', 'waiting'))
			AND NOT EXISTS (SELECT FROM batches b WHERE b.input_file = f.id AND b.status = 'enumerating') ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)`, most)
}
