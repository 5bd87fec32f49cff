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

// ProviderBatches are the batches that we make at providers, and their answers.
type ProviderBatches struct{ db *pg.DB }

// ProviderBatch is a provider's batch that units of the batch lane wait in.
type ProviderBatch struct {
	ID         uuid.UUID  `db:"id"` // the key it is found by at the provider
	Backend    string     `db:"backend"`
	RemoteID   *string    `db:"remote_id"` // the provider's own; nil: not known yet
	Guessed    bool       `db:"guessed"`   // RemoteID may be another's batch
	Lines      int        `db:"lines"`
	Done       int        `db:"done"` // lines that are over, as far as the provider tells
	CreatedAt  time.Time  `db:"created_at"`
	SendingAt  *time.Time `db:"sending_at"` // it may be at the provider since
	SentAt     *time.Time `db:"sent_at"`
	FinishedAt *time.Time `db:"finished_at"`
	Tries      int        `db:"tries"` // to send it
	Error      string     `db:"error"` // the last
}

const providerBatchColumns = `id, backend, remote_id, guessed, lines, done, created_at, sending_at, sent_at, finished_at, tries, error`

// Pack puts units of a backend that wait for it into a new provider batch,
// at most so many, the oldest first and those that are like it in model and
// endpoint. It tells how many.
func (s *ProviderBatches) Pack(ctx context.Context, backend string, most int) (int64, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	result, err := s.db.ExecContext(ctx, `WITH ripe AS (
			SELECT u.id, u.model, u.request ->> 'endpoint' AS endpoint FROM work_units u
			WHERE state = 'waiting' AND lane = 'batch' AND provider_batch IS NULL AND backend = $2
			AND (not_before IS NULL OR not_before <= clock_timestamp()) AND `+notPaused+`
		), oldest AS (SELECT model, endpoint FROM ripe ORDER BY id LIMIT 1
		), chosen AS (
			SELECT id FROM work_units WHERE provider_batch IS NULL AND state = 'waiting' AND id IN (
				SELECT id FROM ripe JOIN oldest ON oldest.model = ripe.model AND oldest.endpoint IS NOT DISTINCT FROM ripe.endpoint ORDER BY id LIMIT $3)
			ORDER BY id FOR UPDATE SKIP LOCKED
		), made AS (
			INSERT INTO provider_batches (id, backend, created_at, look_at)
			SELECT $1, $2, clock_timestamp(), clock_timestamp() WHERE EXISTS (SELECT FROM chosen)
		)
		UPDATE work_units u SET provider_batch = $1 FROM chosen WHERE u.id = chosen.id`, uuid.Must(uuid.NewV7()), backend, most)
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("pack units: %w", err))
	}
	return result.RowsAffected()
}

// Claim takes a provider batch of one of the backends that is to be
// seen to, and that no other live worker process sees to already. It is nil when
// there is none. A process sees to one at a time: what it holds already it could
// not let go of, because the database was away.
func (s *ProviderBatches) Claim(ctx context.Context, process uuid.UUID, backends []string) (*ProviderBatch, error) {
	var rows []ProviderBatch
	err := s.db.SelectContext(ctx, &rows, `UPDATE provider_batches SET holder = $1 WHERE id = (
			SELECT id FROM provider_batches b WHERE finished_at IS NULL AND look_at <= clock_timestamp() AND backend = ANY($2)
			AND NOT EXISTS (SELECT FROM worker_processes p WHERE p.id = b.holder AND p.id <> $1 AND `+alive+`)
			ORDER BY look_at LIMIT 1 FOR UPDATE SKIP LOCKED)
		RETURNING `+providerBatchColumns, process, pq.Array(backends))
	if err != nil || len(rows) == 0 {
		return nil, pg.Translate(pg.Wrap("take a provider batch", err))
	}
	return &rows[0], nil
}

// holdOn changes a provider batch that a process holds. It is work.ErrConflict
// when it does not hold it any more.
func (s *ProviderBatches) holdOn(ctx context.Context, process, batch uuid.UUID, verb, set string, args ...any) error {
	result, err := s.db.ExecContext(ctx, `UPDATE provider_batches SET `+set+` WHERE id = $1 AND holder = $2 AND finished_at IS NULL`,
		append([]any{batch, process}, args...)...)
	if err != nil {
		return pg.Translate(fmt.Errorf("%s provider batch %s: %w", verb, batch, err))
	}
	if n, err := result.RowsAffected(); err == nil && n == 0 {
		return fmt.Errorf("%w: provider batch %s is seen to by another worker process", work.ErrConflict, batch)
	}
	return nil
}

// Sending notes that from now on nobody knows whether the provider
// has the batch.
func (s *ProviderBatches) Sending(ctx context.Context, process, batch uuid.UUID, lines int) error {
	return s.holdOn(ctx, process, batch, "send", `sending_at = clock_timestamp(), lines = $3, tries = tries + 1`, lines)
}

// Sent notes by which id the provider has the batch, and lets go of
// it for a while. If another batch was taken for that one, it is looked for again.
func (s *ProviderBatches) Sent(ctx context.Context, process, batch uuid.UUID, remote string, look time.Duration) error {
	return s.atProvider(ctx, process, batch, remote, false, look)
}

// Found does so for a batch that was looked for, to be seen to at
// once; guessed: what was found may be another's.
func (s *ProviderBatches) Found(ctx context.Context, process, batch uuid.UUID, remote string, guessed bool) error {
	return s.atProvider(ctx, process, batch, remote, guessed, 0)
}

func (s *ProviderBatches) atProvider(ctx context.Context, process, batch uuid.UUID, remote string, guessed bool, look time.Duration) error {
	_, err := s.db.ExecContext(ctx, `UPDATE provider_batches SET `+notFound+`
		WHERE backend = (SELECT backend FROM provider_batches WHERE id = $1) AND remote_id = $2 AND id <> $1`, batch, remote)
	if err != nil {
		return pg.Translate(fmt.Errorf("note provider batch %s: %w", batch, err))
	}
	return s.holdOn(ctx, process, batch, "note", `remote_id = $3, sent_at = clock_timestamp(), error = '', holder = NULL,
		look_at = clock_timestamp() + $4 * interval '1 second', guessed = $5`, remote, look.Seconds(), guessed)
}

// notFound makes a batch one that may be at the provider, by an id that is not
// known.
const notFound = `remote_id = NULL, guessed = false, sent_at = NULL, holder = NULL, look_at = clock_timestamp()`

// Swap gives the provider's batch that one of ours was taken for to
// its owner, as its lines have it, and takes what the owner was taken for. It is
// false when the owner is over or unknown.
func (s *ProviderBatches) Swap(ctx context.Context, process, batch, owner uuid.UUID) (traded bool, err error) {
	tx, err := s.db.BeginTxx(ctx, nil)
	if err != nil {
		return false, pg.Translate(fmt.Errorf("trade provider batch %s: %w", batch, err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	var pair []ProviderBatch
	err = tx.SelectContext(ctx, &pair, `SELECT `+providerBatchColumns+` FROM provider_batches b
		WHERE finished_at IS NULL AND (id = $1 AND holder = $2 OR id = $3 AND backend = (SELECT backend FROM provider_batches WHERE id = $1))
		ORDER BY id FOR UPDATE`, batch, process, owner)
	if err == nil && len(pair) < 2 {
		return false, nil
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE provider_batches SET `+notFound+` WHERE id IN ($1, $2)`, batch, owner)
	}
	for i := 0; i < len(pair) && err == nil; i++ {
		_, err = tx.ExecContext(ctx, `UPDATE provider_batches SET remote_id = $2, sent_at = $3, guessed = $4 WHERE id = $1`,
			pair[i].ID, pair[1-i].RemoteID, pair[1-i].SentAt, pair[i].ID != owner && pair[1-i].Guessed)
	}
	if err == nil {
		err = tx.Commit()
	}
	return err == nil, pg.Translate(pg.Wrap("trade a provider batch", err))
}

// Unsent notes that the provider does not have the batch: it is to
// be sent (again) after a while.
func (s *ProviderBatches) Unsent(ctx context.Context, process, batch uuid.UUID, why string, after time.Duration) error {
	return s.holdOn(ctx, process, batch, "put back", `remote_id = NULL, sending_at = NULL, sent_at = NULL, error = $3, holder = NULL,
		look_at = clock_timestamp() + $4 * interval '1 second'`, work.Clean(why), after.Seconds())
}

// Leave lets go of a batch that is to be seen to again after a
// while, with what is known of it.
func (s *ProviderBatches) Leave(ctx context.Context, process, batch uuid.UUID, done int, why string, after time.Duration) error {
	return s.holdOn(ctx, process, batch, "leave", `done = greatest(done, $3), error = $4, holder = NULL,
		look_at = clock_timestamp() + $5 * interval '1 second'`, done, work.Clean(why), after.Seconds())
}

// KnownRemotes returns those of a provider's ids that belong to some batch of
// ours.
func (s *ProviderBatches) KnownRemotes(ctx context.Context, backend string, remotes []string) (known []string, err error) {
	err = s.db.SelectContext(ctx, &known, `SELECT remote_id FROM provider_batches WHERE backend = $1 AND remote_id = ANY($2)`, backend, pq.Array(remotes))
	return known, pg.Translate(pg.Wrap("find provider batches", err))
}

// Units returns units that wait in a provider batch, oldest first, as a
// claim would: at most so many, those after one.
func (s *ProviderBatches) Units(ctx context.Context, batch, after uuid.UUID, most int) ([]work.Unit, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var rows []unitRow
	if err := s.db.SelectContext(ctx, &rows, `SELECT `+unitColumns+` FROM work_units WHERE provider_batch = $1 AND state = 'waiting' AND id > $2
		ORDER BY id LIMIT $3`, batch, after, most); err != nil {
		return nil, pg.Translate(fmt.Errorf("read the units of provider batch %s: %w", batch, err))
	}
	units := make([]work.Unit, len(rows))
	for i, r := range rows {
		units[i] = r.unit()
	}
	return units, nil
}

// AnyUnits tells whether a unit waits in a provider batch.
func (s *ProviderBatches) AnyUnits(ctx context.Context, batch uuid.UUID) (any bool, err error) {
	err = s.db.GetContext(ctx, &any, `SELECT EXISTS (SELECT FROM work_units WHERE provider_batch = $1 AND state = 'waiting')`, batch)
	return any, pg.Translate(pg.Wrap("look for units of a provider batch", err))
}

// goLive makes waiting units run as any other: at their full price. Those of a
// batch are held until it admits them, and the reconciler enqueues the others.
const goLive = `UPDATE work_units u SET state = 'queued', runs_live = true, held = batch_id IS NOT NULL, dispatch = dispatch + 1,
	check_at = CASE WHEN batch_id IS NULL THEN clock_timestamp() ELSE 'infinity' END
	FROM chosen WHERE u.id = chosen.id AND u.state = 'waiting'`

// takeAnswer puts waiting units into the queue whose answers have come, also
// those of a batch: they were admitted when they were asked.
const takeAnswer = `UPDATE work_units u SET state = 'queued', runs_live = true, dispatch = dispatch + 1, check_at = clock_timestamp()
	FROM chosen WHERE u.id = chosen.id AND u.state = 'waiting'`

// UnpackLive takes units out of a provider batch, to run live.
func (s *ProviderBatches) UnpackLive(ctx context.Context, batch uuid.UUID, units []uuid.UUID) error {
	if len(units) == 0 {
		return nil
	}
	_, err := s.db.ExecContext(ctx, `WITH chosen AS (SELECT id FROM work_units WHERE id = ANY($1) AND provider_batch = $2 AND state = 'waiting'
		ORDER BY id FOR UPDATE) `+goLive, pg.UUIDs(units), batch)
	return pg.Translate(pg.Wrap("take units out of a provider batch", err))
}

// UnpackFrom takes a unit and those after it out of a provider batch, to be
// packed into another.
func (s *ProviderBatches) UnpackFrom(ctx context.Context, batch, from uuid.UUID) error {
	ctx = pg.Allow(ctx, pg.LongLimit)
	_, err := s.db.ExecContext(ctx, `WITH chosen AS (SELECT id FROM work_units WHERE provider_batch = $1 AND state = 'waiting' AND id >= $2
		ORDER BY id FOR UPDATE) UPDATE work_units u SET provider_batch = NULL FROM chosen WHERE u.id = chosen.id`, batch, from)
	return pg.Translate(pg.Wrap("take units out of a provider batch", err))
}

// laneEnded holds for a unit whose end is too near to wait for a provider's batch.
const laneEnded = `(lane = 'batch' AND coalesce(lane_ends(created_at, deadline, expires_at) <= now(), false))`

// UnpackLate lets those units run live whose end is too near to wait for a
// provider's batch. It returns how many, 1,000 at most.
func (s *ProviderBatches) UnpackLate(ctx context.Context) (int64, error) {
	result, err := s.db.ExecContext(ctx, `WITH chosen AS (SELECT id FROM work_units WHERE state = 'waiting' AND lane = 'batch'
		AND lane_ends(created_at, deadline, expires_at) <= now() ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) `+goLive, maxRows)
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("find late units: %w", err))
	}
	return result.RowsAffected()
}

// Finish ends a provider batch. Units that wait in it still, which
// it did not answer, run live; with a failure they have failed. It returns how
// many these were.
func (s *ProviderBatches) Finish(ctx context.Context, process, batch uuid.UUID, failed *work.Failure) (int64, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	then, args := goLive, []any{batch, process, ""}
	if failed != nil {
		args[2] = work.Clean(failed.Error())
		then = `UPDATE work_units u SET state = 'failed', finished_at = clock_timestamp(), failures = failures + 1,
			error_class = $4, error_message = $5 FROM chosen WHERE u.id = chosen.id AND u.state = 'waiting'`
		args = append(args, string(failed.Class), work.Clean(failed.Message))
	}
	result, err := s.db.ExecContext(ctx, `WITH ended AS (
			UPDATE provider_batches SET finished_at = clock_timestamp(), holder = NULL, error = $3
			WHERE id = $1 AND holder = $2 AND finished_at IS NULL RETURNING id
		), chosen AS (
			SELECT id FROM work_units WHERE provider_batch IN (SELECT id FROM ended) AND state = 'waiting' ORDER BY id FOR UPDATE
		) `+then, args...)
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("finish provider batch %s: %w", batch, err))
	}
	return result.RowsAffected()
}

// BatchLane is where a unit of the batch lane waits.
type BatchLane struct {
	Ends  *time.Time     // when it runs live after all; nil: it has no end
	Batch *ProviderBatch // nil: it was not packed yet
}

// LaneOf tells where a unit of the batch lane waits.
func (s *ProviderBatches) LaneOf(ctx context.Context, unit uuid.UUID) (l BatchLane, err error) {
	if err := s.db.GetContext(ctx, &l.Ends, `SELECT lane_ends(created_at, deadline, expires_at) FROM work_units WHERE id = $1`, unit); err != nil {
		return l, pg.Translate(fmt.Errorf("find the end of unit %s: %w", unit, err))
	}
	var rows []ProviderBatch
	err = s.db.SelectContext(ctx, &rows, `SELECT `+providerBatchColumns+` FROM provider_batches
		WHERE id = (SELECT provider_batch FROM work_units WHERE id = $1)`, unit)
	if len(rows) > 0 {
		l.Batch = &rows[0]
	}
	return l, pg.Translate(pg.Wrap("find the provider batch of a unit", err))
}
