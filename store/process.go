package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Processes are worker processes and their leases.
type Processes struct{ db *pg.DB }

// Register enters a worker process, or brings its entry up to date, and
// starts its lease.
func (s *Processes) Register(ctx context.Context, p work.Process, lease time.Duration) error {
	offers, err := json.Marshal(p.Backends)
	if err != nil {
		return fmt.Errorf("encode backends: %w", err)
	}
	ctx, _, cancel := vitalContext(ctx, lease)
	defer cancel()
	_, err = s.db.Vital.ExecContext(ctx, `INSERT INTO worker_processes
		(id, hostname, pid, identity, version, slots, queues, backends, started_at, beat_at, lease_until)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp(), clock_timestamp(), clock_timestamp() + $9 * interval '1 second')
		ON CONFLICT (id) DO UPDATE SET backends = excluded.backends, beat_at = excluded.beat_at,
			lease_until = excluded.lease_until, stopped_at = NULL`,
		p.ID, p.Hostname, p.PID, p.Identity, p.Version, p.Slots, pq.Array(p.Queues), string(offers), lease.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("register worker process: %w", err))
	}
	return nil
}

// Owned is a run that a worker process holds in the database's eyes.
type Owned struct {
	RunID   uuid.UUID
	UnitID  uuid.UUID
	Attempt int
	Cancel  bool // its unit was asked to stop
}

// Assignments are what a worker process hears of its work.
type Assignments struct {
	Owned  []Owned // the runs it still owns: one that it holds and that is missing has been given to another, so it must stop
	Pauses []Pause
}

// Heartbeat renews a worker process's lease and brings its offers up to date.
// work.ErrNotFound means that the process must register again. It touches one
// row of one table, and has connections of its own: whatever others lock or wait
// for, it comes through. It takes no longer than a sixth of the lease, so that
// there is time to repeat it.
func (s *Processes) Heartbeat(ctx context.Context, process uuid.UUID, lease time.Duration, running int, offers []work.Offer) error {
	backends, err := json.Marshal(offers)
	if err != nil {
		return fmt.Errorf("encode backends: %w", err)
	}
	ctx, limit, cancel := vitalContext(ctx, lease)
	defer cancel()
	written := s.db.Writes.Begin(limit)
	result, err := s.db.Vital.ExecContext(ctx, `UPDATE worker_processes SET beat_at = clock_timestamp(), running = $3, backends = $4,
			lease_until = clock_timestamp() + $2 * interval '1 second'
		WHERE id = $1 AND stopped_at IS NULL`, process, lease.Seconds(), running, string(backends))
	err = pg.Translate(pg.Wrap("beat", err))
	written(err)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("beat: worker process %s: %w", process, work.ErrNotFound))
	}
	return nil
}

// vitalContext bounds a heartbeat.
func vitalContext(ctx context.Context, lease time.Duration) (context.Context, time.Duration, context.CancelFunc) {
	limit := pg.StatementLimit
	if lease > 0 {
		limit = min(limit, max(lease/6, 250*time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(pg.Allow(ctx, limit), limit)
	return ctx, limit, cancel
}

// Assignments returns what has become of a worker process's work. It reads tables that
// others may have locked, so no heartbeat waits for it.
func (s *Processes) Assignments(ctx context.Context, process uuid.UUID) (Assignments, error) {
	var told Assignments
	var rows []struct {
		RunID   *uuid.UUID `db:"run_id"`
		UnitID  *uuid.UUID `db:"unit_id"`
		Attempt *int       `db:"attempt"`
		Cancel  bool       `db:"cancel"`
		Pauses  []byte     `db:"pauses"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT r.id AS run_id, r.unit_id, r.attempt, coalesce(u.cancel_requested_at IS NOT NULL, false) AS cancel,
			coalesce((SELECT json_agg(p) FROM pauses p), '[]') AS pauses
		FROM (SELECT $1::uuid AS id) AS w LEFT JOIN worker_runs r ON r.worker_process = w.id AND r.status = 'running'
		LEFT JOIN work_units u ON u.id = r.unit_id`, process)
	if err != nil {
		return told, pg.Translate(fmt.Errorf("read the assignments of a worker process: %w", err))
	}
	if err := json.Unmarshal(rows[0].Pauses, &told.Pauses); err != nil {
		return told, fmt.Errorf("read pauses: %w", err)
	}
	for _, r := range rows {
		if r.RunID != nil {
			told.Owned = append(told.Owned, Owned{RunID: *r.RunID, UnitID: *r.UnitID, Attempt: *r.Attempt, Cancel: r.Cancel})
		}
	}
	return told, nil
}

// Stop ends a worker process's lease: it has nothing left to run.
func (s *Processes) Stop(ctx context.Context, process uuid.UUID) error {
	_, err := s.db.Vital.ExecContext(ctx, `UPDATE worker_processes
		SET stopped_at = clock_timestamp(), lease_until = clock_timestamp(), running = 0 WHERE id = $1`, process)
	if err != nil {
		return pg.Translate(fmt.Errorf("stop worker process: %w", err))
	}
	return nil
}

// EndDead ends the lease of worker processes that are known to be dead, so that
// nobody waits for it to run out. It returns how many it was the first to end.
func (s *Processes) EndDead(ctx context.Context, processes []uuid.UUID) (int64, error) {
	result, err := s.db.ExecContext(ctx, `UPDATE worker_processes SET stopped_at = clock_timestamp(),
		lease_until = clock_timestamp() WHERE id = ANY($1::uuid[]) AND stopped_at IS NULL`, pg.UUIDs(processes))
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("bury worker processes: %w", err))
	}
	return result.RowsAffected()
}

// Block notes why a worker process takes no units at all; empty: it takes them.
func (s *Processes) Block(ctx context.Context, process uuid.UUID, why string) error {
	_, err := s.db.ExecCount(ctx, "note why a worker process takes nothing", `UPDATE worker_processes SET blocked = $2 WHERE id = $1`, process, work.Clean(why))
	return err
}

// Lease is how a worker process's lease stands.
type Lease struct {
	Process uuid.UUID    `db:"id"`
	BeatAt  time.Time    `db:"beat_at"` // the last sign of life; on Postgres's clock, so only good to be compared with itself
	Length  work.Seconds `db:"length"`
}

// Leases returns the lease of each worker process that has not stopped, and the
// time on Postgres's clock.
func (s *Processes) Leases(ctx context.Context) ([]Lease, time.Time, error) {
	leases, now, _, err := s.leases(ctx, `false`)
	return leases, now, err
}

// LeasesAndLead is Leases for a process that does not lead, and tells whether nobody
// does. The shared lock by which it finds out is gone with the statement.
func (s *Processes) LeasesAndLead(ctx context.Context) (leases []Lease, now time.Time, free bool, err error) {
	return s.leases(ctx, `pg_try_advisory_xact_lock_shared($1)`, int64(leadLock))
}

func (s *Processes) leases(ctx context.Context, free string, args ...any) ([]Lease, time.Time, bool, error) {
	var rows []struct {
		Now     time.Time     `db:"now"`
		Free    bool          `db:"free"`
		Process *uuid.UUID    `db:"id"`
		BeatAt  *time.Time    `db:"beat_at"`
		Length  *work.Seconds `db:"length"`
	}
	err := s.db.Vital.SelectContext(ctx, &rows, `SELECT now, free, id, beat_at, extract(epoch FROM lease_until - beat_at)::double precision AS length
		FROM (SELECT clock_timestamp() AS now, `+free+` AS free OFFSET 0) AS one LEFT JOIN worker_processes ON stopped_at IS NULL`, args...)
	if err != nil {
		return nil, time.Time{}, false, pg.Translate(fmt.Errorf("read leases: %w", err))
	}
	var leases []Lease
	for _, r := range rows {
		if r.Process != nil {
			leases = append(leases, Lease{*r.Process, *r.BeatAt, *r.Length})
		}
	}
	return leases, rows[0].Now, rows[0].Free, nil
}

// EndLeases ends leases that nobody has renewed since they were read. It returns
// how many.
func (s *Processes) EndLeases(ctx context.Context, leases []Lease) (int64, error) {
	ids, beats := make([]uuid.UUID, len(leases)), make([]string, len(leases))
	for i, l := range leases {
		ids[i], beats[i] = l.Process, l.BeatAt.Format(time.RFC3339Nano)
	}
	result, err := s.db.ExecContext(ctx, `UPDATE worker_processes p SET stopped_at = clock_timestamp(), lease_until = clock_timestamp()
		FROM unnest($1::uuid[], $2::timestamptz[]) AS l(id, beat_at) WHERE p.id = l.id AND p.beat_at = l.beat_at AND p.stopped_at IS NULL`,
		pg.UUIDs(ids), pq.Array(beats))
	if err != nil {
		return 0, pg.Translate(fmt.Errorf("end leases: %w", err))
	}
	return result.RowsAffected()
}

// alive holds for a worker process p whose lease nobody has ended. No clock is
// asked: it may be set while the lease lasts.
const alive = `p.stopped_at IS NULL AND p.lease_until > p.beat_at`

// List returns the worker processes that have not stopped, newest first.
// One whose lease has run out is still among them until it is ended.
func (s *Processes) List(ctx context.Context) ([]work.Process, error) {
	var rows []struct {
		work.Process
		Queues pq.StringArray `db:"queues"`
		Offers []byte         `db:"backends"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT id, hostname, pid, identity, version, slots, running, queues, backends,
		started_at, beat_at, lease_until, lease_until > clock_timestamp() AS live,
		clock_timestamp() - beat_at > (lease_until - beat_at) * 0.4 AS quiet, stopped_at, blocked FROM worker_processes WHERE stopped_at IS NULL
		ORDER BY started_at DESC LIMIT 1000`)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("list worker processes: %w", err))
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
