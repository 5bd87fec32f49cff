// Package store is the database: Postgres, and the only place that changes a
// state. It knows nothing of HTTP, Redis or agents. Every change of a unit's
// state is one conditional statement, and batches are changed under the lock of
// their row, so both are safe for any number of processes at once.
//
//	store.go        Open; whether the database is there, takes writes, is fit
//	pg              connections, grouped writes, errors
//
//	accept.go       units are accepted
//	unit.go         units are read and listed
//	move.go         cancel and retry, of one unit or of all that a filter chooses
//	queue.go        queued units: which are due; pauses of queues and backends
//	run.go          runs: claim, read, list; results that other units may take over
//	finish.go       how a run ends, and what becomes of its unit
//	reconcile.go    what the reconciler finds: dead worker processes, deadlines, a clock set back
//	transcript.go   chunks while a run goes on, one blob at its end
//
//	batch.go        batches: add, read, list; approve, pause, cancel
//	enumerate.go    their units, made some hundreds at a time
//	advance.go      what may begin, and when a batch is over
//	budget.go       what units may still cost; what the rest of a batch is to cost
//	results.go      what has come of a batch
//	provider_batch.go   units that wait for a provider's batches
//	provider_answer.go  what those answer, and what unused answers have cost
//
//	schedule.go     schedules: put, read, list, due
//	trigger.go      triggers: put, read, list; what was received for them
//	endpoint.go     webhook endpoints and what signs their messages
//	delivery.go     messages to them: written, claimed, tried
//	file.go         files, also those that are read from batches; their bytes
//	process.go      worker processes: register, heartbeat, leases
//	event.go        what has changed since a reader looked last
//	overview.go     what happened in an hour, a day, a month
//	retention.go    what is old is removed
package store

import (
	"context"
	"fmt"
	"time"

	"piecework/internal/work"
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
		ProviderBatches: &ProviderBatches{db}, Schedules: &Schedules{db}, Triggers: &Triggers{db: db}, Endpoints: &Endpoints{db},
		Files:     &Files{db},
		Processes: &Processes{db}, Pauses: &Pauses{db}, Reconciler: &Reconciler{db}, Retention: &Retention{db}, Events: &Events{db},
		Overview: &Overview{db},
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

// Diagnose looks whether the Postgres at url is fit to be a database, and says
// how to mend what is not.
func Diagnose(ctx context.Context, url string) []work.Finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := Open(ctx, url, 1)
	if err != nil {
		return []work.Finding{{Name: "postgres", Status: work.FindingFail, Detail: err.Error(),
			Mend: "Start it, or set DATABASE_URL to postgres://USER:PASSWORD@HOST:5432/DATABASE. Until then no unit is accepted."}}
	}
	defer func() { _ = s.Close() }()
	var version int
	if err := s.db.GetContext(ctx, &version, `SELECT current_setting('server_version_num')::integer`); err != nil {
		return []work.Finding{{Name: "postgres", Status: work.FindingFail, Detail: err.Error(), Mend: "Check the user's rights."}}
	}
	findings := []work.Finding{{Name: "postgres", Status: work.FindingOK, Detail: fmt.Sprintf("reachable, version %d.%d", version/10000, version%10000)}}
	if version < 130000 {
		findings = append(findings, work.Finding{Name: "postgres version", Status: work.FindingFail, Detail: "older than 13", Mend: "Upgrade PostgreSQL to 13 or later."})
	}
	findings = append(findings, s.durability(ctx)...)
	return append(findings, s.schema(ctx))
}

// durability checks what a committed unit relies on.
func (s *Store) durability(ctx context.Context) []work.Finding {
	var findings []work.Finding
	for _, setting := range []struct {
		name string
		why  string
	}{
		{"fsync", "a power cut can destroy the database"},
		{"synchronous_commit", "a crash can forget units that were acknowledged"},
		{"full_page_writes", "a crash can tear pages"},
	} {
		var value string
		if err := s.db.GetContext(ctx, &value, `SELECT current_setting($1)`, setting.name); err != nil {
			findings = append(findings, work.Finding{Name: "postgres " + setting.name, Status: work.FindingWarn, Detail: err.Error(),
				Mend: "Check the user's rights."})
			continue
		}
		f := work.Finding{Name: "postgres " + setting.name, Status: work.FindingOK, Detail: value}
		if value == "off" {
			f.Status, f.Detail = work.FindingFail, "off: "+setting.why
			f.Mend = fmt.Sprintf("ALTER SYSTEM SET %s = on; SELECT pg_reload_conf();", setting.name)
		}
		findings = append(findings, f)
	}
	return findings
}

func (s *Store) schema(ctx context.Context) work.Finding {
	behind, err := s.Behind(ctx)
	switch {
	case err != nil:
		return work.Finding{Name: "postgres schema", Status: work.FindingFail, Detail: err.Error(), Mend: "Run `piecework migrate`."}
	case behind > 0:
		return work.Finding{Name: "postgres schema", Status: work.FindingFail, Detail: fmt.Sprintf("%d migrations behind", behind), Mend: "Run `piecework migrate`."}
	}
	return work.Finding{Name: "postgres schema", Status: work.FindingOK, Detail: "up to date"}
}
