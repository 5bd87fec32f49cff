// Package store is the ledger: Postgres, and the only place that changes a
// state. It knows nothing of HTTP, Redis or agents. Every change of a unit's
// state is one conditional statement, and batches are changed under the lock of
// their row, so both are safe for any number of processes at once.
//
//	store.go       Open: the way in
//	pg             connections, grouped writes, errors
//	unit.go        accept, read, list
//	move.go        cancel and retry, of one unit or of all that a filter chooses
//	batch.go       batches: add, read, list, results
//	batch_fill.go  their units, made a piece at a time
//	batch_move.go  what may begin, when it is over; pause, approve, cancel
//	batch_file.go  files that are read from a batch; batches that are deleted
//	batch_trial.go what the rest of a batch is to cost
//	batch_figures.go  what pages tell of batches
//	provider_batch.go  the batch lane: units that wait for a provider's batches
//	provider_answer.go  answers that no run uses, and what they have cost
//	run.go         runs: claim; read, list
//	finish.go      how a run ends, and what becomes of its unit
//	cost.go        what is known of costs, and of how many runs it is not all
//	file.go        files, and bytes that are none yet or no more
//	cache.go       results that other units may take over
//	event.go       what has changed since a reader looked last
//	transcript.go  chunks while a run goes on, one blob at its end
//	schedule.go    schedules: put, read, list, due
//	trigger.go     triggers: put, read, list; what came for them
//	trigger_batch.go  batches that deliveries make
//	webhook.go     webhook endpoints and what signs their messages
//	delivery.go    messages to them: written, claimed, tried
//	process.go     worker processes: register, beat, stop
//	overview.go    what happened in an hour, a day, a month; tallies of hours that are over
//	pause.go       queues and backends that operators hold back
//	reconcile.go   what a second's look at the ledger finds to do
//	diagnose.go    whether this Postgres is fit to be a ledger
package store

import (
	"context"
	"fmt"
	"time"

	"piecework/migrations"
	"piecework/store/pg"
)

// Store is the database, by what is kept in it. All parts share their connections.
type Store struct {
	db *pg.DB

	Units       *Units
	Queues      *Queues
	Runs        *Runs
	Transcripts *Transcripts

	Batches         *Batches
	ProviderBatches *ProviderBatches
	Schedules       *Schedules
	Triggers        *Triggers

	Endpoints  *Endpoints
	Deliveries *Deliveries
	Files      *Files

	Processes  *Processes
	Pauses     *Pauses
	Reconciler *Reconciler
	Retention  *Retention

	Events   *Events
	Overview *Overview

	probe *pg.Group[struct{}, struct{}]
}

// Option changes how a store works.
type Option func(*options)

type options struct{ unprepared bool }

// Unprepared is for a Postgres behind a pooler that gives each transaction
// another connection, and cannot keep prepared statements.
func Unprepared(o *options) { o.unprepared = true }

// Open connects to the Postgres at url with at most conns connections. It
// does not migrate.
func Open(ctx context.Context, url string, conns int, opts ...Option) (*Store, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	db, err := pg.Open(url, conns, o.unprepared)
	if err != nil {
		return nil, err
	}
	s := newStore(db)
	if err := s.Ping(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("reach postgres: %w", err)
	}
	return s, nil
}

// callerImpatience is how long a caller of the API waits for a Postgres that is
// known not to answer.
const callerImpatience = 5 * time.Second

func newStore(db *pg.DB) *Store {
	s := &Store{
		db: db, Units: &Units{db: db}, Queues: &Queues{db}, Runs: &Runs{db: db}, Transcripts: &Transcripts{db: db},
		ProviderBatches: &ProviderBatches{db}, Schedules: &Schedules{db}, Triggers: &Triggers{db: db}, Endpoints: &Endpoints{db}, Files: &Files{db},
		Processes: &Processes{db}, Pauses: &Pauses{db}, Reconciler: &Reconciler{db}, Retention: &Retention{db}, Events: &Events{db}, Overview: &Overview{db},
	}
	s.Batches, s.Deliveries = &Batches{db, s.Units}, &Deliveries{db, s.Endpoints}
	s.Units.accept = pg.NewGroup(500, NewUnit.weight, db.Writes, s.Units.acceptAll)
	s.Runs.claim = pg.NewGroup(500, nil, db.Writes, s.Runs.claimAll)
	s.Runs.finish = pg.NewGroup(250, Finish.weight, db.Writes, s.Runs.finishAll)
	s.Transcripts.append = pg.NewGroup(500, Progress.weight, db.Writes, s.Transcripts.appendAll)
	s.Triggers.decline = pg.NewGroup(500, nil, db.Writes, s.Triggers.declineAll)
	s.probe = pg.NewGroup(10_000, nil, db.Writes, s.probeAll)
	s.Units.accept.Impatience, s.Triggers.decline.Impatience = callerImpatience, callerImpatience
	return s
}

// Close gives the connections back.
func (s *Store) Close() error { return s.db.Close() }

// Ping tells whether Postgres answers.
func (s *Store) Ping(ctx context.Context) error { return s.db.Ping(ctx) }

// migrationLimit is how long one statement of a migration may take: it may
// build an index.
const migrationLimit = time.Hour

// Migrate brings the database at url to this program's schema and returns the
// migrations it applied.
func Migrate(ctx context.Context, url string) ([]string, error) {
	s, err := Open(ctx, url, 2)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	return migrations.Up(pg.Allow(ctx, migrationLimit), s.db.DB.DB)
}

// Behind returns how many migrations the database lacks.
func (s *Store) Behind(ctx context.Context) (int64, error) { return migrations.Behind(ctx, s.db.DB.DB) }

// Clock is Postgres's clock, by which everything's age is told.
func (s *Store) Clock(ctx context.Context) (time.Time, error) { return s.db.Clock(ctx) }

// Trouble tells why writes of this store do not come back, nil when they do, as
// far as is known.
func (s *Store) Trouble() error { return s.db.Writes.Trouble() }

// Writable tells whether Postgres takes writes and answers in time. It writes,
// so it finds out that Postgres is back.
func (s *Store) Writable(ctx context.Context) error {
	_, err := s.probe.Do(ctx, struct{}{})
	if err == nil {
		err = s.db.Writes.Trouble()
	}
	return err
}

func (s *Store) probeAll(ctx context.Context, rows []struct{}) ([]struct{}, error) {
	_, err := s.db.Vital.ExecContext(ctx, `INSERT INTO settings (name, value) VALUES ('write_probe', clock_timestamp()::text)
		ON CONFLICT (name) DO UPDATE SET value = excluded.value`)
	return rows, err
}

// Refused tells whether err proves that what was to be written can never be: a
// value that the database cannot hold, or a constraint. Whatever else goes wrong,
// the same call may succeed later.
func Refused(err error) bool { return pg.Refused(err) }
