package store

import (
	"context"
	"fmt"
	"time"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Pauses hold queues and backends back.
type Pauses struct{ db *pg.DB }

// PauseKind says what a pause holds; it is the unit's column too.
type PauseKind string

// What can be paused.
const (
	PauseQueue   PauseKind = "queue"
	PauseBackend PauseKind = "backend"
)

// Pause is an operator's last word on a queue or a backend. While it is paused
// no unit of it begins; units that run go on.
type Pause struct {
	Kind      PauseKind  `db:"kind" json:"kind"`
	Name      string     `db:"name" json:"name"`
	Since     *time.Time `db:"since" json:"since"` // nil: it was resumed
	By        string     `db:"set_by" json:"set_by"`
	Why       string     `db:"why" json:"why"`
	ResumedAt *time.Time `db:"resumed_at" json:"resumed_at"`
}

// PauseOf finds the pause that holds a queue or a backend, nil when it goes on.
func PauseOf(pauses []Pause, kind PauseKind, name string) *Pause {
	for _, p := range pauses {
		if p.Kind == kind && p.Name == name && p.Since != nil {
			return &p
		}
	}
	return nil
}

// notPaused holds for a unit u whose queue and backend go on.
const notPaused = `NOT EXISTS (SELECT FROM pauses p WHERE p.since IS NOT NULL
	AND (p.kind, p.name) IN (('queue', u.queue), ('backend', u.backend)))`

const pauseColumns = `kind, name, since, set_by, why, resumed_at`

// Pause holds back the units of a queue or a backend. A pause of what is
// paused keeps its time, and its by and why unless others are given. A claim
// that was under way when Pause was called may still succeed.
func (s *Pauses) Pause(ctx context.Context, kind PauseKind, name, by, why string) (Pause, error) {
	var p Pause
	err := s.db.GetContext(ctx, &p, `INSERT INTO pauses (kind, name, since, set_by, why) VALUES ($1, $2, clock_timestamp(), $3, $4)
		ON CONFLICT (kind, name) DO UPDATE SET since = coalesce(pauses.since, excluded.since),
			set_by = coalesce(nullif(excluded.set_by, ''), pauses.set_by), why = coalesce(nullif(excluded.why, ''), pauses.why)
		RETURNING `+pauseColumns, string(kind), name, work.Clean(by), work.Clean(why))
	if err != nil {
		return p, pg.Translate(fmt.Errorf("pause %s %s: %w", kind, name, err))
	}
	return p, nil
}

// Resume lets the units of a queue or a backend begin again, whether it was
// paused or not. Their bells may have been heard for nothing meanwhile, so all
// are doubted, after the pause has ended for every claim: whoever is refused
// from then on was not refused by it. Units that a backend had refused for its
// credentials or its account do not wait any longer. Repeating is safe.
func (s *Pauses) Resume(ctx context.Context, kind PauseKind, name string) (Pause, error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	var p Pause
	err := s.db.GetContext(ctx, &p, `INSERT INTO pauses (kind, name, resumed_at) VALUES ($1, $2, clock_timestamp())
		ON CONFLICT (kind, name) DO UPDATE SET since = NULL, set_by = '', why = '', resumed_at = excluded.resumed_at
		RETURNING `+pauseColumns, string(kind), name)
	if err != nil {
		return p, pg.Translate(fmt.Errorf("resume %s %s: %w", kind, name, err))
	}
	var refused []work.Class
	for _, c := range work.Classes() {
		if kind == PauseBackend && c.Follow() == work.FollowPause {
			refused = append(refused, c)
		}
	}
	_, err = s.db.ExecContext(ctx, `WITH held AS (
			SELECT id FROM work_units WHERE state = 'queued' AND NOT held AND `+string(kind)+` = $1
			AND (not_before IS NULL OR not_before <= clock_timestamp() OR error_class = ANY ($2::text[]))
			ORDER BY id FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET check_at = clock_timestamp(),
			not_before = CASE WHEN u.not_before > clock_timestamp() THEN clock_timestamp() ELSE u.not_before END
		FROM held WHERE u.id = held.id`, name, pg.TextArray(refused))
	if err != nil {
		return p, pg.Translate(fmt.Errorf("doubt the bells of %s %s: %w", kind, name, err))
	}
	return p, nil
}

// List returns every queue and backend that is paused, or was.
func (s *Pauses) List(ctx context.Context) ([]Pause, error) {
	var pauses []Pause
	if err := s.db.SelectContext(ctx, &pauses, `SELECT `+pauseColumns+` FROM pauses ORDER BY kind, name`); err != nil {
		return nil, pg.Translate(fmt.Errorf("list pauses: %w", err))
	}
	return pauses, nil
}

// Queue is what waits and runs in one queue.
type Queue struct {
	Name    string        `db:"name"`
	Queued  int           `db:"queued"`
	Due     int           `db:"due"` // of the queued ones: those that may begin now
	Running int           `db:"running"`
	Oldest  *work.Seconds `db:"oldest"` // how long the oldest due unit has been there, nil when none is
}

// List returns the queues that have units which wait or run.
func (s *Queues) List(ctx context.Context, tenant string) ([]Queue, error) {
	var queues []Queue
	err := s.db.SelectContext(ctx, &queues, `SELECT queue AS name,
			count(*) FILTER (WHERE state = 'queued') AS queued, count(*) FILTER (WHERE due) AS due,
			count(*) FILTER (WHERE state = 'running') AS running,
			extract(epoch FROM clock_timestamp() - min(greatest(created_at, not_before)) FILTER (WHERE due))::double precision AS oldest
		FROM (SELECT queue, state, created_at, not_before,
				state = 'queued' AND NOT held AND (not_before IS NULL OR not_before <= clock_timestamp()) AS due
			FROM work_units WHERE tenant = $1 AND state IN ('queued', 'running')) AS u
		GROUP BY queue ORDER BY queue`, tenant)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("list queues: %w", err))
	}
	return queues, nil
}
