// Package store is the ledger: Postgres, and the only place that changes a
// state. It knows nothing of HTTP, Redis or agents. Every change of a unit's
// state is one conditional statement, and batches are changed under the lock of
// their row, so both are safe for any number of processes at once.
//
//	store.go       Open: the way in
//	connect.go     connections on which no statement waits for ever
//	group.go       many callers' writes in one statement
//	diary.go       whether Postgres takes writes
//	error.go       what a Postgres error means for repeating the statement
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
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"piecework/migrations"
)

// Store is the database, by what is kept in it. All parts share their connections.
type Store struct {
	*pool

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

	probe *group[struct{}, struct{}]
}

// pool is what all parts of a store share.
type pool struct {
	db    *sqlx.DB
	vital *sqlx.DB // connections for signs of life, which must not wait for others'
	hot   *sqlx.DB // connections for the grouped writes, whose statements are prepared
	pulse *pulse
	diary *diary // of all groups

	leadLimit, leadIdle time.Duration // which the tests shorten
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
	text, err := dsn(url)
	if err != nil {
		return nil, err
	}
	p := &pulse{begun: time.Now()}
	c, err := newConnector(text, p, o.unprepared)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	hot := c
	if !o.unprepared {
		if hot, err = newConnector(withParameters(text, byKey), p, false); err != nil {
			return nil, fmt.Errorf("open postgres: %w", err)
		}
	}
	s := newStore(connect(c, max(conns-hotConns, 2)), connect(c, vitalConns), connect(hot, hotConns), p)
	if err := s.Ping(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("reach postgres: %w", err)
	}
	return s, nil
}

// byKey are settings of the connections for grouped writes. Their statements find
// some hundred rows by their keys. Their plans are kept, also from a time when the
// tables were empty and reading all of one was cheapest.
var byKey = map[string]string{"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}

// callerImpatience is how long a caller of the API waits for a Postgres that is
// known not to answer.
const callerImpatience = 5 * time.Second

// hotConns are for the grouped writes: one for each group, and one for a flush
// that was left behind.
const hotConns = 7

// vitalConns are kept for what must be said in time, whatever the others wait
// for.
const vitalConns = 2

func connect(c *connector, conns int) *sqlx.DB {
	db := sqlx.NewDb(sql.OpenDB(c), "postgres")
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db
}

func newStore(db, vital, hot *sqlx.DB, p *pulse) *Store {
	c := &pool{db: db, vital: vital, hot: hot, pulse: p, diary: newDiary(p), leadLimit: leadLimit, leadIdle: leadIdle}
	s := &Store{
		pool: c, Units: &Units{pool: c}, Queues: &Queues{c}, Runs: &Runs{pool: c}, Transcripts: &Transcripts{pool: c},
		ProviderBatches: &ProviderBatches{c}, Schedules: &Schedules{c}, Triggers: &Triggers{pool: c}, Endpoints: &Endpoints{c}, Files: &Files{c},
		Processes: &Processes{c}, Pauses: &Pauses{c}, Reconciler: &Reconciler{c}, Retention: &Retention{c}, Events: &Events{c}, Overview: &Overview{c},
	}
	s.Batches, s.Deliveries = &Batches{c, s.Units}, &Deliveries{c, s.Endpoints}
	s.Units.accept = newGroup(500, NewUnit.weight, c.diary, s.Units.acceptAll)
	s.Runs.claim = newGroup(500, nil, c.diary, s.Runs.claimAll)
	s.Runs.finish = newGroup(250, Finish.weight, c.diary, s.Runs.finishAll)
	s.Transcripts.append = newGroup(500, Progress.weight, c.diary, s.Transcripts.appendAll)
	s.Triggers.decline = newGroup(500, nil, c.diary, s.Triggers.declineAll)
	s.probe = newGroup(10_000, nil, c.diary, s.probeAll)
	s.Units.accept.impatience, s.Triggers.decline.impatience = callerImpatience, callerImpatience
	return s
}

// Close gives the connections back.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.vital.Close(), s.hot.Close()) }

// Ping tells whether Postgres answers.
func (s *Store) Ping(ctx context.Context) error { return translate(s.vital.PingContext(ctx)) }

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
	return migrations.Up(allow(ctx, migrationLimit), s.db.DB)
}

// Behind returns how many migrations the database lacks.
func (s *Store) Behind(ctx context.Context) (int64, error) { return migrations.Behind(ctx, s.db.DB) }

// Clock is Postgres's clock, by which everything's age is told.
func (s *Store) Clock(ctx context.Context) (time.Time, error) { return s.clock(ctx) }

// encode makes a JSON parameter. What callers sent stays as it was: <, > and &
// are not escaped.
func encode(v any) (string, error) {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", &badRow{fmt.Errorf("encode rows: %w", err)}
	}
	return text.String(), nil
}

// dsn adds what the store relies on to a URL or a keyword string: binary
// parameters spare the blobs a hex encoding, and times come in UTC, whatever the
// server's own zone is.
func dsn(text string) (string, error) {
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return text + " binary_parameters=yes timezone=UTC", nil
	}
	u, err := url.Parse(text)
	if err != nil {
		// The error would quote the address, and the password with it.
		return "", errors.New("read DATABASE_URL: it is no address; write special characters of a password as %XX")
	}
	q := u.Query()
	q.Set("binary_parameters", "yes")
	q.Set("timezone", "UTC")
	if q.Get("application_name") == "" {
		q.Set("application_name", "piecework")
	}
	if q.Get("connect_timeout") == "" {
		q.Set("connect_timeout", "5")
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// withParameters adds settings of Postgres to what dsn has returned.
func withParameters(dsn string, settings map[string]string) string {
	u, err := url.Parse(dsn)
	if isURL := err == nil && u.Scheme != ""; !isURL {
		for name, value := range settings {
			dsn += " " + name + "=" + value
		}
		return dsn
	}
	q := u.Query()
	for name, value := range settings {
		q.Set(name, value)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// makeOnce reads one row with a query that inserts it when it is missing. When another
// process inserts it at the same time, the query waits for that and finds nothing, for
// its snapshot is older: then the row is read again.
func (s *pool) makeOnce(ctx context.Context, into any, query string, args ...any) error {
	err := s.db.GetContext(ctx, into, query, args...)
	if errors.Is(err, sql.ErrNoRows) {
		err = s.db.GetContext(ctx, into, query, args...)
	}
	return err
}
