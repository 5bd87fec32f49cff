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

// Queues are the queued units: which are due, and which may have no message in Redis.
type Queues struct{ db *pg.DB }

// recheck is how long a message that was seen on its way is trusted.
const recheck = time.Minute

// maxRows is how many rows one statement of a look at the database changes: what is
// more comes with the next, so that nobody waits long for a row.
const maxRows = 1000

// Message is one message: unit X may be runnable.
type Message struct {
	UnitID   uuid.UUID `db:"id"`
	Number   int       `db:"dispatch"`
	Queue    string    `db:"queue"`
	Backend  string    `db:"backend"`
	Priority int       `db:"priority"`
}

// MessageOf returns the newest message of a unit.
func MessageOf(u work.Unit) Message {
	return Message{UnitID: u.ID, Number: u.Dispatch, Queue: u.Queue, Backend: u.Backend, Priority: u.Priority}
}

// CheckCursor is how far a walk over the units that are due has come.
type CheckCursor struct {
	at time.Time
	id uuid.UUID
}

// committedLate is by how much a unit that became due may be committed after another
// that became so later.
const committedLate = 500 * time.Millisecond

// Back is the cursor from which nothing is missed that was committed late.
func (c CheckCursor) Back() CheckCursor {
	if c.at.IsZero() {
		return c
	}
	return CheckCursor{at: c.at.Add(-committedLate)}
}

// Unchecked returns queued units that are due after a cursor, in the order in which
// they became so, and the cursor behind them: whoever walks on sees those that have
// become due meanwhile. What waits is not written to for being looked at.
func (s *Queues) Unchecked(ctx context.Context, after CheckCursor, limit int) ([]Message, CheckCursor, error) {
	var rows []struct {
		Message
		CheckAt time.Time `db:"check_at"`
	}
	err := s.db.SelectContext(ctx, &rows, `SELECT id, dispatch, queue, backend, priority, check_at FROM work_units
		WHERE state = 'queued' AND check_at <= now() AND (check_at, id) > ($1, $2)
		ORDER BY check_at, id LIMIT $3`, after.at, after.id, limit)
	if err != nil {
		return nil, after, pg.Translate(fmt.Errorf("find units whose messages may be lost: %w", err))
	}
	due := make([]Message, len(rows))
	for i, r := range rows {
		due[i], after = r.Message, CheckCursor{r.CheckAt, r.UnitID}
	}
	return due, after, nil
}

// Defer puts off the dispatch of a unit that process has taken from the queue and
// may not begin yet. When another live worker process has the unit's backend and
// knows of no limit of its model, that one may try after a minute at most.
func (s *Queues) Defer(ctx context.Context, unit, process uuid.UUID, after time.Duration) error {
	_, err := s.db.ExecContext(ctx, `WITH queued AS (
			SELECT id, EXISTS (SELECT FROM worker_processes p WHERE p.id <> $2 AND p.stopped_at IS NULL AND p.lease_until > clock_timestamp()
				AND p.backends @> jsonb_build_array(jsonb_build_object('name', backend, 'available', true))
				AND NOT p.backends @> jsonb_build_array(jsonb_build_object('name', backend, 'limits', jsonb_build_array(jsonb_build_object('model', model))))) AS elsewhere
			FROM work_units WHERE id = $1 AND `+isQueued+` AND NOT held FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET check_at = clock_timestamp() + CASE WHEN elsewhere THEN least($3::double precision, $4::double precision) ELSE $3::double precision END * interval '1 second'
		FROM queued WHERE u.id = queued.id`, unit, process, after.Seconds(), recheck.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("defer unit %s: %w", unit, err))
	}
	return nil
}

// Recheck notes that nobody knows whether the units' messages came through.
func (s *Queues) Recheck(ctx context.Context, units []uuid.UUID) error {
	return s.lookAgain(ctx, units, 0)
}

func (s *Queues) lookAgain(ctx context.Context, units []uuid.UUID, after time.Duration) error {
	_, err := s.db.ExecContext(ctx, `WITH `+stillQueued+` UPDATE work_units u
		SET check_at = clock_timestamp() + $2 * interval '1 second' FROM queued WHERE u.id = queued.id`,
		pg.UUIDs(units), after.Seconds())
	if err != nil {
		return pg.Translate(fmt.Errorf("note when to look again: %w", err))
	}
	return nil
}

// stillQueued locks those of $1 that are queued. One that is locked is being
// claimed or cancelled just now, and waiting for it could end in a deadlock.
const stillQueued = `queued AS (
	SELECT id FROM work_units WHERE id = ANY($1::uuid[]) AND ` + isQueued + ` AND NOT held ORDER BY id FOR UPDATE SKIP LOCKED)`

// Redispatch gives each unit that is still queued a new message and returns the
// messages to enqueue.
func (s *Queues) Redispatch(ctx context.Context, units []uuid.UUID) ([]Message, error) {
	var messages []Message
	err := s.db.SelectContext(ctx, &messages, `WITH `+stillQueued+` UPDATE work_units u SET dispatch = dispatch + 1,
		check_at = clock_timestamp() + $2 * interval '1 second'
		FROM queued WHERE u.id = queued.id RETURNING u.id, dispatch, queue, backend, priority`,
		pg.UUIDs(units), recheck.Seconds())
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("redispatch units: %w", err))
	}
	return messages, nil
}

// RecheckAll makes every queued unit's message doubtful: Redis has forgotten
// what it was told. It returns how many. It goes on some at a time until ctx ends.
func (s *Queues) RecheckAll(ctx context.Context) (n int64, err error) {
	now, err := s.db.Clock(ctx)
	if err != nil {
		return 0, fmt.Errorf("recheck all units: %w", err)
	}
	for done := maxRows; err == nil && done == maxRows; n += int64(done) {
		done, err = s.db.ExecCount(ctx, "recheck all units", `WITH due AS (
			SELECT id FROM work_units WHERE state = 'queued' AND NOT held AND check_at > $1
			AND (not_before IS NULL OR not_before <= $1) ORDER BY check_at LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE work_units u SET check_at = $1 FROM due WHERE u.id = due.id`, now, maxRows)
	}
	return n, err
}

// Untaken returns those of the messages whose unit is still queued and due, and
// waits for no worker process to be alone with it.
func (s *Queues) Untaken(ctx context.Context, messages []Message) ([]uuid.UUID, error) {
	units, numbers := make([]uuid.UUID, len(messages)), make([]int64, len(messages))
	for i, b := range messages {
		units[i], numbers[i] = b.UnitID, int64(b.Number)
	}
	var untaken []uuid.UUID
	err := s.db.SelectContext(ctx, &untaken, `SELECT u.id FROM unnest($1::uuid[], $2::integer[]) AS b(id, dispatch)
		JOIN work_units u ON u.id = b.id AND u.dispatch = b.dispatch
		WHERE `+isQueued+` AND NOT u.held AND (u.not_before IS NULL OR u.not_before <= clock_timestamp()) AND u.deaths < $3`,
		pg.UUIDs(units), pq.Array(numbers), work.SuspectDeaths)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("find units that nobody began: %w", err))
	}
	return untaken, nil
}

// Due returns queued units that may run now on one of the backends, most
// urgent first: what a worker process asks when Redis is away. It takes the
// first few of each queue and backend, as the index has them: to sort the whole
// backlog at every look would cost more than the work. Units of the shut models
// are passed over.
func (s *Queues) Due(ctx context.Context, queues, backends []string, shut []ModelOf, limit int) ([]Message, error) {
	names := make([]string, len(shut)) // a backend's name has no colon
	for i, m := range shut {
		names[i] = m.Backend + ":" + m.Model
	}
	var due []Message
	err := s.db.SelectContext(ctx, &due, `SELECT u.* FROM unnest($1::text[]) AS q, unnest($2::text[]) AS b, LATERAL (
			SELECT id, dispatch, queue, backend, priority FROM work_units u
			WHERE state = 'queued' AND NOT held AND queue = q AND backend = b AND (not_before IS NULL OR not_before <= clock_timestamp()) AND `+notPaused+`
				AND backend || ':' || model <> ALL ($4::text[])
			ORDER BY priority DESC, id LIMIT $3) AS u
		ORDER BY priority DESC, id LIMIT $3`, pq.Array(queues), pq.Array(backends), limit, pq.Array(names))
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("find due units: %w", err))
	}
	return due, nil
}

// Epoch returns the key that Redis should have, making one from fresh when
// there is none yet.
func (s *Queues) Epoch(ctx context.Context, fresh string) (string, error) {
	var epoch string
	err := s.db.GetOrMake(ctx, &epoch, `WITH made AS (
			INSERT INTO settings (name, value) VALUES ('redis_epoch', $1) ON CONFLICT (name) DO NOTHING RETURNING value)
		SELECT value FROM made UNION ALL SELECT value FROM settings WHERE name = 'redis_epoch' LIMIT 1`, fresh)
	if err != nil {
		return "", pg.Translate(fmt.Errorf("read redis epoch: %w", err))
	}
	return epoch, nil
}

// Place is where a queued unit stands among the others.
type Place struct {
	Scheduled bool `db:"scheduled"` // it is not due yet
	Ahead     int  `db:"ahead"`     // due units of its queue and backend that go before it, maxAhead at most
}

const maxAhead = 10_000

// Place tells where a queued unit stands.
func (s *Queues) Place(ctx context.Context, u work.Unit) (Place, error) {
	var p Place
	err := s.db.GetContext(ctx, &p, `SELECT coalesce((SELECT not_before > clock_timestamp() FROM work_units WHERE id = $1), false) AS scheduled,
		(SELECT count(*) FROM (SELECT FROM work_units WHERE state = 'queued' AND NOT held AND queue = $2 AND backend = $3
			AND (not_before IS NULL OR not_before <= clock_timestamp())
			AND (priority > $4 OR priority = $4 AND id < $1) LIMIT $5) AS before) AS ahead`,
		u.ID, u.Queue, u.Backend, u.Priority, maxAhead)
	if err != nil {
		return p, pg.Translate(fmt.Errorf("find the place of unit %s: %w", u.ID, err))
	}
	return p, nil
}

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
// paused or not. Their messages may have been heard for nothing meanwhile, so all
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
		return p, pg.Translate(fmt.Errorf("recheck the units of %s %s: %w", kind, name, err))
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
