// Package pg is how this program speaks to Postgres: connections on which no
// statement waits for ever, many callers' writes in one statement, and what an
// error means. It knows no table.
//
//	db.go        Open; one statement, one transaction, one page
//	connect.go   a deadline for each statement
//	group.go     many callers' writes in one statement
//	writes.go    whether Postgres takes writes
//	error.go     what a Postgres error means for repeating the statement
//	lead.go      one process at a time
//	query.go     conditions and parameters
package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// DB is one database, by connections for three purposes.
type DB struct {
	*sqlx.DB
	Vital  *sqlx.DB // for heartbeats, which must not wait for others'
	Hot    *sqlx.DB // for the grouped writes, whose statements are prepared
	Writes *Writes
	pulse  *pulse

	leadLimit, leadIdle time.Duration // which the tests shorten
}

// Open makes the connections to the Postgres at url, at most conns. It asks for
// none yet.
func Open(url string, conns int, unprepared bool) (*DB, error) {
	text, err := DSN(url)
	if err != nil {
		return nil, err
	}
	p := &pulse{begun: time.Now()}
	c, err := newConnector(text, p, unprepared)
	if err != nil {
		return nil, fmt.Errorf("open postgres: %w", err)
	}
	hot := c
	if !unprepared {
		if hot, err = newConnector(WithParameters(text, ByKey), p, false); err != nil {
			return nil, fmt.Errorf("open postgres: %w", err)
		}
	}
	return newDB(pool(c, max(conns-hotConns, 2)), pool(c, vitalConns), pool(hot, hotConns), p), nil
}

// New is a database by connections that others have made.
func New(db, vital, hot *sqlx.DB) *DB { return newDB(db, vital, hot, &pulse{begun: time.Now()}) }

func newDB(db, vital, hot *sqlx.DB, p *pulse) *DB {
	return &DB{DB: db, Vital: vital, Hot: hot, Writes: newWrites(p), pulse: p, leadLimit: leadLimit, leadIdle: leadIdle}
}

// Close gives the connections back.
func (db *DB) Close() error { return errors.Join(db.DB.Close(), db.Vital.Close(), db.Hot.Close()) }

// Ping tells whether Postgres answers.
func (db *DB) Ping(ctx context.Context) error { return Translate(db.Vital.PingContext(ctx)) }

// ByKey are settings of the connections for grouped writes. Their statements find
// some hundred rows by their keys. Their plans are kept, also from a time when the
// tables were empty and reading all of one was cheapest.
var ByKey = map[string]string{"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}

// hotConns are for the grouped writes: one for each group, and one for a flush
// that was left behind.
const hotConns = 7

// vitalConns are kept for what must be said in time, whatever the others wait
// for.
const vitalConns = 2

func pool(c *connector, conns int) *sqlx.DB {
	db := sqlx.NewDb(sql.OpenDB(c), "postgres")
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db
}

// DSN adds what the store relies on to a URL or a keyword string: binary
// parameters spare the blobs a hex encoding, and times come in UTC, whatever the
// server's own zone is.
func DSN(text string) (string, error) {
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

// WithParameters adds settings of Postgres to what DSN has returned.
func WithParameters(dsn string, settings map[string]string) string {
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

// Clock is Postgres's clock, by which everything's age is told.
func (db *DB) Clock(ctx context.Context) (now time.Time, err error) {
	if err = db.GetContext(ctx, &now, `SELECT clock_timestamp()`); err != nil {
		return now, Translate(fmt.Errorf("read the clock: %w", err))
	}
	return now, nil
}

// GetOrMake reads one row with a query that inserts it when it is missing. When another
// process inserts it at the same time, the query waits for that and finds nothing, for
// its snapshot is older: then the row is read again.
func (db *DB) GetOrMake(ctx context.Context, into any, query string, args ...any) error {
	err := db.GetContext(ctx, into, query, args...)
	if errors.Is(err, sql.ErrNoRows) {
		err = db.GetContext(ctx, into, query, args...)
	}
	return err
}

// ExecCount runs one statement and returns how many rows it changed.
func (db *DB) ExecCount(ctx context.Context, what, query string, args ...any) (int, error) {
	result, err := db.ExecContext(Allow(ctx, LongLimit), query, args...)
	if err != nil {
		return 0, Translate(fmt.Errorf("%s: %w", what, err))
	}
	n, err := result.RowsAffected()
	return int(n), err
}

func (db *DB) InTx(ctx context.Context, what string, f func(*sqlx.Tx) error) error {
	ctx = Allow(ctx, LongLimit)
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return Translate(fmt.Errorf("%s: %w", what, err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if err = f(tx); err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return Translate(fmt.Errorf("%s: %w", what, err))
	}
	return nil
}

// Page selects one row more than limit, newest first.
func (db *DB) Page(ctx context.Context, rows any, query, key string, w Where, limit int) error {
	query += " WHERE " + w.Text() + fmt.Sprintf(" ORDER BY %s DESC LIMIT %d", key, limit+1)
	return Translate(sqlx.SelectContext(ctx, db.DB, rows, query, w.Args...))
}
