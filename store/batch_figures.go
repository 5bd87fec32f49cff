package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Title returns the title of a batch, also of a deleted one, whose units
// are still there; it does not look at them.
func (s *Batches) Title(ctx context.Context, tenant string, id uuid.UUID) (string, error) {
	var title string
	if err := s.db.GetContext(ctx, &title, `SELECT title FROM batches WHERE id = $1 AND tenant = $2`, id, tenant); err != nil {
		return "", pg.Translate(fmt.Errorf("read the title of batch %s: %w", id, err))
	}
	return title, nil
}

// Count tells how many of the newest batches of a filter, most at most,
// are in each status.
func (s *Batches) Count(ctx context.Context, f BatchFilter, most int) (map[work.BatchStatus]int, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	w := f.where()
	var rows []struct {
		Status work.BatchStatus `db:"status"`
		Count  int              `db:"count"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT status, count(*) FROM (SELECT status FROM batches WHERE `+w.Text()+
		` ORDER BY id DESC LIMIT `+w.Arg(most)+`) AS newest GROUP BY status`, w.Args...)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("count batches: %w", err))
	}
	counts := make(map[work.BatchStatus]int, len(rows))
	for _, r := range rows {
		counts[r.Status] = r.Count
	}
	return counts, nil
}

// Heads tells of the batches of all tenants that are not over, or have been
// for less than a minute, what changes whenever their row does.
func (s *Batches) Heads(ctx context.Context) (map[uuid.UUID]string, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var rows []struct {
		ID   uuid.UUID `db:"id"`
		Head string    `db:"head"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT id, xmin::text AS head FROM batches WHERE finished_at IS NULL
		UNION ALL SELECT id, xmin::text FROM (SELECT id, xmin, finished_at FROM batches ORDER BY id DESC LIMIT 1000) AS newest
			WHERE finished_at > clock_timestamp() - interval '1 minute'`)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("look for changes of batches: %w", err))
	}
	heads := make(map[uuid.UUID]string, len(rows))
	for _, r := range rows {
		heads[r.ID] = r.Head
	}
	return heads, nil
}

// BatchFailure is how many units of a batch ended with an error of one class.
type BatchFailure struct {
	Class   work.Class `db:"class"`
	Count   int        `db:"count"`
	Cost    work.Cost  `db:"-"`
	Message string     `db:"message"` // of one of them, cut
}

// Failures groups the failed and timed-out units of a batch by the class of
// their error, the largest group first; it looks at most of them at most.
func (s *Batches) Failures(ctx context.Context, batch uuid.UUID, most int) ([]BatchFailure, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var rows []struct {
		BatchFailure
		costRow
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT coalesce(error_class, '') AS class, count(*), `+sumOfCosts+`,
			coalesce(left(min(error_message), 500), '') AS message
		FROM (SELECT error_class, error_message, cost_usd, unpriced_runs FROM work_units WHERE batch_id = $1 AND state IN ('failed', 'timed_out') LIMIT $2) AS u
		GROUP BY error_class ORDER BY count DESC, class`, batch, most)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("group failures of batch %s: %w", batch, err))
	}
	groups := make([]BatchFailure, len(rows))
	for i, r := range rows {
		groups[i] = r.BatchFailure
		groups[i].Cost = r.cost()
	}
	return groups, nil
}

// BatchPace is how fast the units of a batch have ended lately.
type BatchPace struct {
	Finished int
	Seconds  float64 // in which they did
}

// Pace looks back for so long, but not beyond the moment at which the batch
// was last let go on.
func (s *Batches) Pace(ctx context.Context, tenant string, batch uuid.UUID, back time.Duration) (BatchPace, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var p BatchPace
	var since time.Time
	err := s.db.QueryRowxContext(ctx, `SELECT at, date_part('epoch', clock_timestamp() - at) FROM (
			SELECT greatest(clock_timestamp() - $3 * interval '1 second', enumerated_at, approved_at, resumed_at) AS at
			FROM batches WHERE id = $1 AND tenant = $2) AS since`, batch, tenant, back.Seconds()).Scan(&since, &p.Seconds)
	if err == nil { // in a statement of its own: only one that knows the time can tell how little that is
		err = s.db.GetContext(ctx, &p.Finished, `SELECT count(*) FROM work_units WHERE tenant = $2 AND finished_at > $3 AND batch_id = $1`, batch, tenant, since)
	}
	if err != nil {
		return p, pg.Translate(fmt.Errorf("measure batch %s: %w", batch, err))
	}
	return p, nil
}
