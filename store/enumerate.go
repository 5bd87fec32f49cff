package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

const (
	// enumerationLease is how long a process that enumerates a batch may be silent before
	// another goes on in its place. It is short, for people look on: whoever is
	// alive renews it, and one that is too slow loses no more than a chunk.
	enumerationLease = 2 * time.Second
	// RenewEnumeration is how often a process says that it is still enumerating a batch.
	RenewEnumeration = enumerationLease / 4
)

// Enumeration is a batch whose units this process makes, or whose synthesis it
// prepares.
type Enumeration struct {
	work.Batch
	Cursor json.RawMessage // in the source; nil: its beginning
	Round  int             // how often the batch was begun
}

// ClaimEnumeration takes a batch that is to be enumerated or finalized and that no
// other process is at work on. It returns nil when there is none.
func (s *Batches) ClaimEnumeration(ctx context.Context, process uuid.UUID) (*Enumeration, error) {
	var rows []struct {
		batchRow
		Place []byte `db:"place"`
		Round int    `db:"rounds"`
	}
	err := s.db.SelectContext(ctx, &rows, `UPDATE batches SET filler = $1, fill_until = clock_timestamp() + $2 * interval '1 second'
		WHERE id = (SELECT id FROM batches WHERE finished_at IS NULL
			AND (status = 'enumerating' OR status = 'finalizing' AND synthesis_unit IS NULL)
			AND (fill_until IS NULL OR fill_until < clock_timestamp()) ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
		RETURNING `+batchColumns+`, place, rounds`, process, enumerationLease.Seconds())
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("take a batch to enumerate: %w", err))
	}
	if len(rows) == 0 {
		return nil, nil
	}
	b, err := s.counted(ctx, rows[0].batchRow)
	return &Enumeration{Batch: b, Cursor: rows[0].Place, Round: rows[0].Round}, err
}

// RenewEnumeration renews the lease on a batch that the process enumerates. It is
// work.ErrConflict when that is no longer its own.
func (s *Batches) RenewEnumeration(ctx context.Context, batch, process uuid.UUID) error {
	result, err := s.db.ExecContext(ctx, `UPDATE batches SET fill_until = clock_timestamp() + $3 * interval '1 second'
		WHERE id = $1 AND filler = $2`, batch, process, enumerationLease.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("keep batch %s: %w", batch, err))
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return fmt.Errorf("%w: another process enumerates batch %s, or it is over", work.ErrConflict, batch)
	}
	return nil
}

// LeaveEnumeration gives up a batch for any process to go on with after a pause.
func (s *Batches) LeaveEnumeration(ctx context.Context, batch, process uuid.UUID, pause time.Duration) error {
	_, err := s.db.ExecContext(ctx, `UPDATE batches SET filler = NULL, fill_until = clock_timestamp() + $3 * interval '1 second'
		WHERE id = $1 AND filler = $2`, batch, process, pause.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("leave batch %s: %w", batch, err))
	}
	return nil
}

// Chunk is a part of a batch: the units made of it, and where the next begins.
type Chunk struct {
	Batch    uuid.UUID
	Process  uuid.UUID
	Units    []NewUnit // with their custom ids; all of this batch
	Cursor   json.RawMessage
	Problems []work.BatchProblem // items that no unit could be made of
	// Begun is called when the chunk has its connection. Whoever adds the next
	// chunk waits for that: else this one could wait for the next one's.
	Begun func()
	// BeforeCommit is called when the units are in and nothing of the chunk is committed,
	// with the custom ids that the batch had already, whose units are left out. It
	// waits until the chunk before is committed, and returns what is wrong with the
	// items of these ids. With an error nothing of the chunk is kept.
	BeforeCommit func(ctx context.Context, repeated []string) ([]work.BatchProblem, error)
}

// AddChunk adds a chunk to a batch and renews the lease. Both are committed
// together, so whoever goes on after a death makes no unit twice. Several chunks
// may be under way, in different transactions, if no custom id is in two of them:
// they are committed one after another. It is work.ErrConflict when the batch is
// no longer this process's to enumerate.
func (s *Batches) AddChunk(ctx context.Context, f Chunk) error {
	ctx = pg.Allow(ctx, pg.LongLimit)
	units, err := f.rows()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pg.LongLimit/2)
	defer cancel()
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return pg.Translate(fmt.Errorf("enumerate batch: %w", err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	f.Begun()
	var made []string
	if err := tx.SelectContext(pg.Prepare(ctx), &made, f.statement(), units); err != nil {
		return fmt.Errorf("enumerate batch %s: %w", f.Batch, lostFile(pg.Translate(err)))
	}
	more, err := f.BeforeCommit(ctx, f.without(made))
	if err != nil {
		return err
	}
	all := slices.Concat(f.Problems, more)
	problems, err := encodeProblems(all)
	if err != nil {
		return err
	}
	// The row is locked from here to the commit: whoever cancels the batch or goes
	// on with it in our place does so before, and we lose, or after.
	result, err := tx.ExecContext(ctx, `UPDATE batches SET place = $3, fill_until = clock_timestamp() + $4 * interval '1 second',
			rejected = rejected + $7,
			problems = CASE WHEN rejected < $6 AND json_array_length($5::json) > 0 THEN problems || $5::jsonb ELSE problems END
		WHERE id = $1 AND filler = $2 AND status = 'enumerating'`,
		f.Batch, f.Process, pg.JSONOr(f.Cursor, "null"), enumerationLease.Seconds(), problems, work.MaxBatchProblems, len(all))
	if err != nil {
		return pg.Translate(fmt.Errorf("enumerate batch %s: %w", f.Batch, err))
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return fmt.Errorf("%w: another process enumerates the batch, or it is not enumerating any more", work.ErrConflict)
	}
	if err := tx.Commit(); err != nil {
		return pg.Translate(fmt.Errorf("enumerate batch %s: %w", f.Batch, err))
	}
	return nil
}

// statement inserts the rows. Only those of units that name uploaded files have
// the field; one in a payload does no harm.
func (f Chunk) statement() string {
	for _, n := range f.Units {
		if bytes.Contains(n.Row, []byte(`"uploads":`)) {
			return insertWithFiles
		}
	}
	return insertItems
}

var (
	insertWithFiles = insertUnits(`custom_id`)
	insertItems     = insertPlain(`custom_id`)
)

// without is the custom ids of the units that were not made.
func (f Chunk) without(made []string) (repeated []string) {
	if len(made) == len(f.Units) {
		return nil
	}
	fresh := make(map[string]bool, len(made))
	for _, id := range made {
		fresh[id] = true
	}
	for _, n := range f.Units {
		id := work.Clean(n.CustomID)
		if !fresh[id] {
			repeated = append(repeated, id)
		}
		delete(fresh, id) // it may come twice in this chunk
	}
	return repeated
}

// rows is the array of the units' rows.
func (f Chunk) rows() (string, error) {
	size := 2
	for i := range f.Units {
		if n := &f.Units[i]; n.Row == nil {
			var err error
			if n.Row, err = n.Encoded(); err != nil {
				return "", err
			}
		}
		size += len(f.Units[i].Row) + 1
	}
	var text strings.Builder
	text.Grow(size)
	text.WriteByte('[')
	for i, n := range f.Units {
		if i > 0 {
			text.WriteByte(',')
		}
		text.Write(n.Row)
	}
	text.WriteByte(']')
	return text.String(), nil
}

// FinishEnumeration notes that all units of a batch are there. It may go on now.
func (s *Batches) FinishEnumeration(ctx context.Context, batch, process uuid.UUID) error {
	ctx = pg.Allow(ctx, pg.LongLimit)
	_, err := s.db.ExecContext(ctx, `UPDATE batches SET enumerated_at = clock_timestamp(), items = NULL, filler = NULL, fill_until = NULL,
			status = CASE WHEN cancelled_at IS NOT NULL THEN 'cancelling' WHEN test_first > 0 THEN 'testing' ELSE 'in_progress' END
		WHERE id = $1 AND filler = $2 AND status = 'enumerating'`, batch, process)
	if err != nil {
		return pg.Translate(fmt.Errorf("end the enumeration of batch %s: %w", batch, err))
	}
	return nil
}

// FailEnumeration gives up a batch whose units cannot be made: those that were made
// are removed, and none has begun.
func (s *Batches) FailEnumeration(ctx context.Context, batch, process uuid.UUID, why string, problems []work.BatchProblem) error {
	ctx = pg.Allow(ctx, pg.LongLimit)
	text, err := encodeProblems(problems)
	if err != nil {
		return err
	}
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return pg.Translate(fmt.Errorf("fail batch %s: %w", batch, err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	result, err := tx.ExecContext(ctx, `UPDATE batches SET status = 'failed', finished_at = clock_timestamp(), items = NULL, filler = NULL, fill_until = NULL,
			why = $3, problems = CASE WHEN json_array_length($4::json) > 0 THEN $4::jsonb ELSE problems END,
			rejected = greatest(rejected, $5), counts = '{}'
		WHERE id = $1 AND filler = $2 AND status = 'enumerating'`, batch, process, work.Clean(why), text, len(problems))
	if err == nil {
		var n int64
		if n, err = result.RowsAffected(); err == nil && n == 0 {
			return nil // somebody else's by now
		}
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, `DELETE FROM work_units WHERE batch_id = $1`, batch)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return pg.Translate(fmt.Errorf("fail batch %s: %w", batch, err))
	}
	return nil
}

// Synthesize makes the unit that sums a batch up and notes it with the batch, in
// one transaction. It is work.ErrConflict when the batch is not to be summed up
// by this process any more: it was cancelled, or another was first.
func (s *Batches) Synthesize(ctx context.Context, batch, process uuid.UUID, n NewUnit) (u work.Unit, err error) {
	units, err := pg.Encode([]unitIn{n.row()})
	if err != nil {
		return u, err
	}
	ctx, cancel := context.WithTimeout(pg.Allow(ctx, pg.LongLimit), pg.LongLimit/2)
	defer cancel()
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return u, pg.Translate(fmt.Errorf("sum up batch %s: %w", batch, err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	var rows []unitRow
	err = tx.SelectContext(ctx, &rows, insertUnits(unitColumns), units)
	if err == nil && len(rows) == 0 { // a process of an earlier version made it and died
		err = tx.SelectContext(ctx, &rows, `SELECT `+unitColumns+` FROM work_units WHERE tenant = $1 AND idempotency_key = $2`, n.Tenant, work.Clean(n.IdempotencyKey))
	}
	if err != nil || len(rows) == 0 {
		return u, fmt.Errorf("sum up batch %s: %w", batch, cmp.Or(lostFile(pg.Translate(err)), work.ErrConflict))
	}
	u = rows[0].unit()
	result, err := tx.ExecContext(ctx, `UPDATE batches SET synthesis_unit = $3, syntheses = array_append(array_remove(syntheses, $3), $3), filler = NULL, fill_until = NULL
		WHERE id = $1 AND filler = $2 AND status = 'finalizing' AND synthesis_unit IS NULL`, batch, process, u.ID)
	if err == nil {
		var n int64
		if n, err = result.RowsAffected(); err == nil && n == 0 {
			return work.Unit{}, fmt.Errorf("%w: batch %s is cancelled, or another process sums it up", work.ErrConflict, batch)
		}
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return work.Unit{}, pg.Translate(fmt.Errorf("sum up batch %s: %w", batch, err))
	}
	return u, nil
}

func encodeProblems(problems []work.BatchProblem) (string, error) {
	if len(problems) == 0 {
		return "[]", nil
	}
	return pg.Encode(problems[:min(len(problems), work.MaxBatchProblems)])
}
