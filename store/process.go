package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
)

// Register enters a worker process, or brings its entry up to date, and
// starts its lease.
func (s *Store) Register(ctx context.Context, p work.Process, lease time.Duration) error {
	offers, err := json.Marshal(p.Backends)
	if err != nil {
		return fmt.Errorf("encode backends: %w", err)
	}
	_, err = s.db.ExecContext(ctx, `INSERT INTO worker_processes
		(id, hostname, pid, identity, version, slots, queues, backends, started_at, beat_at, lease_until)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp(), clock_timestamp(), clock_timestamp() + $9 * interval '1 second')
		ON CONFLICT (id) DO UPDATE SET backends = excluded.backends, beat_at = excluded.beat_at,
			lease_until = excluded.lease_until, stopped_at = NULL`,
		p.ID, p.Hostname, p.PID, p.Identity, p.Version, p.Slots, pq.Array(p.Queues), string(offers), lease.Seconds())
	if err != nil {
		return translate(fmt.Errorf("register worker process: %w", err))
	}
	return nil
}

// Owned is a run that a worker process holds in the ledger's eyes.
type Owned struct {
	RunID   uuid.UUID
	UnitID  uuid.UUID
	Attempt int
	Cancel  bool // its unit was asked to stop
}

// News is what a worker process hears when it gives a sign of life.
type News struct {
	Owned  []Owned // the runs it still owns: one that it holds and that is missing has been given to another, so it must stop
	Pauses []Pause
}

// Beat renews a worker process's lease, brings its offers up to date and
// returns what has become of its work. work.ErrNotFound means that the process
// must register again.
func (s *Store) Beat(ctx context.Context, process uuid.UUID, lease time.Duration, running int, offers []work.Offer) (News, error) {
	var news News
	backends, err := json.Marshal(offers)
	if err != nil {
		return news, fmt.Errorf("encode backends: %w", err)
	}
	var rows []struct {
		RunID   *uuid.UUID `db:"run_id"`
		UnitID  *uuid.UUID `db:"unit_id"`
		Attempt *int       `db:"attempt"`
		Cancel  bool       `db:"cancel"`
		Pauses  []byte     `db:"pauses"`
	}
	err = s.db.SelectContext(ctx, &rows, `WITH beat AS (
			UPDATE worker_processes SET beat_at = clock_timestamp(), running = $3, backends = $4,
				lease_until = clock_timestamp() + $2 * interval '1 second'
			WHERE id = $1 AND stopped_at IS NULL RETURNING id)
		SELECT r.id AS run_id, r.unit_id, r.attempt, coalesce(u.cancel_requested_at IS NOT NULL, false) AS cancel,
			coalesce((SELECT json_agg(p) FROM pauses p), '[]') AS pauses
		FROM beat LEFT JOIN worker_runs r ON r.worker_process = beat.id AND r.status = 'running'
		LEFT JOIN work_units u ON u.id = r.unit_id`, process, lease.Seconds(), running, string(backends))
	if err != nil {
		return news, translate(fmt.Errorf("beat: %w", err))
	}
	if len(rows) == 0 {
		return news, fmt.Errorf("beat: worker process %s: %w", process, work.ErrNotFound)
	}
	if err := json.Unmarshal(rows[0].Pauses, &news.Pauses); err != nil {
		return news, fmt.Errorf("beat: read pauses: %w", err)
	}
	for _, r := range rows {
		if r.RunID != nil {
			news.Owned = append(news.Owned, Owned{RunID: *r.RunID, UnitID: *r.UnitID, Attempt: *r.Attempt, Cancel: r.Cancel})
		}
	}
	return news, nil
}

// Stop ends a worker process's lease: it has nothing left to run.
func (s *Store) Stop(ctx context.Context, process uuid.UUID) error {
	_, err := s.db.ExecContext(ctx, `UPDATE worker_processes
		SET stopped_at = clock_timestamp(), lease_until = clock_timestamp(), running = 0 WHERE id = $1`, process)
	if err != nil {
		return translate(fmt.Errorf("stop worker process: %w", err))
	}
	return nil
}

// Bury ends the lease of worker processes that are known to be dead, so that
// nobody waits for it to run out. It returns how many it was the first to bury.
func (s *Store) Bury(ctx context.Context, processes []uuid.UUID) (int64, error) {
	result, err := s.db.ExecContext(ctx, `UPDATE worker_processes SET stopped_at = clock_timestamp(),
		lease_until = clock_timestamp() WHERE id = ANY($1::uuid[]) AND stopped_at IS NULL`, pqUUIDs(processes))
	if err != nil {
		return 0, translate(fmt.Errorf("bury worker processes: %w", err))
	}
	return result.RowsAffected()
}

// Block notes why a worker process takes no units at all; empty: it takes them.
func (s *Store) Block(ctx context.Context, process uuid.UUID, why string) error {
	_, err := s.exec(ctx, "note why a worker process takes nothing", `UPDATE worker_processes SET blocked = $2 WHERE id = $1`, process, work.Clean(why))
	return err
}

// Processes returns the worker processes that have not stopped, newest first.
// One whose lease has run out is still among them until it is buried.
func (s *Store) Processes(ctx context.Context) ([]work.Process, error) {
	var rows []struct {
		work.Process
		Queues pq.StringArray `db:"queues"`
		Offers []byte         `db:"backends"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT id, hostname, pid, identity, version, slots, running, queues, backends,
		started_at, beat_at, lease_until, lease_until > clock_timestamp() AS live, stopped_at, blocked FROM worker_processes WHERE stopped_at IS NULL
		ORDER BY started_at DESC LIMIT 1000`)
	if err != nil {
		return nil, translate(fmt.Errorf("list worker processes: %w", err))
	}
	list := make([]work.Process, 0, len(rows))
	for _, r := range rows {
		p := r.Process
		p.Queues = r.Queues
		if err := json.Unmarshal(r.Offers, &p.Backends); err != nil {
			return nil, fmt.Errorf("read backends of worker process %s: %w", p.ID, err)
		}
		list = append(list, p)
	}
	return list, nil
}
