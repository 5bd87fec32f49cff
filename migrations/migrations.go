// Package migrations holds the schema: numbered SQL files, forward only. The
// whole schema on one page is testdata/schema.sql, which a test keeps true.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed [0-9]*.sql
var files embed.FS

const (
	// lockTimeout is how long a migration waits for a table that others use. They
	// wait behind it meanwhile, so it gives up and tries again.
	lockTimeout = 3 * time.Second
	lockPause   = 2 * time.Second
	lockTries   = 15
	// lockNotAvailable is what Postgres says then (SQLSTATE).
	lockNotAvailable = "55P03"
)

// Up brings the database to this program's schema and returns the names of
// the files it applied. Several callers at once are safe: one migrates under
// an advisory lock, the others wait. Whoever works with the ledger meanwhile
// waits for three seconds at most: a table that is not free by then is tried
// again, for about a minute.
func Up(ctx context.Context, db *sql.DB) ([]string, error) {
	provider, err := provider(db)
	if err != nil {
		return nil, err
	}
	var applied []string
	for tries := 1; ; {
		result, err := provider.UpByOne(ctx)
		switch {
		case err == nil:
			applied, tries = append(applied, result.Source.Path), 1
			continue
		case errors.Is(err, goose.ErrNoNextVersion):
			return applied, nil
		case !locked(err):
			return applied, fmt.Errorf("migrate: %w", err)
		case tries == lockTries:
			return applied, fmt.Errorf("migrate: a table was not free in %d tries of %s; end the transaction that holds it (pg_stat_activity shows which), and start again: %w",
				tries, lockTimeout, err)
		}
		tries++
		select {
		case <-ctx.Done():
			return applied, fmt.Errorf("migrate: %w", context.Cause(ctx))
		case <-time.After(lockPause):
		}
	}
}

// locked tells whether Postgres gave up waiting for a lock. The error of the
// driver, which is not ours to name here, knows its SQLSTATE.
func locked(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == lockNotAvailable
}

// Behind returns how many migrations the database lacks.
func Behind(ctx context.Context, db *sql.DB) (int64, error) {
	provider, err := provider(db)
	if err != nil {
		return 0, err
	}
	current, target, err := provider.GetVersions(ctx)
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return target - current, nil
}

func provider(db *sql.DB) (*goose.Provider, error) {
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(turn{}))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return p, nil
}

// turn is goose's lock, asked for more often: goose's own waits five seconds
// between two tries, which processes that start together would feel. It asks
// rather than waits inside Postgres, where a waiting statement would hold up a
// CREATE INDEX CONCURRENTLY.
type turn struct{}

const askAgain = 50 * time.Millisecond

func (turn) SessionLock(ctx context.Context, conn *sql.Conn) error {
	ticker := time.NewTicker(askAgain)
	defer ticker.Stop()
	for {
		var mine bool
		err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", lock.DefaultLockID).Scan(&mine)
		if err != nil {
			return fmt.Errorf("wait to migrate: %w", err)
		}
		if mine {
			return prepare(ctx, conn)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait to migrate: %w", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// prepare makes the connection fit for the next file. One that builds an index
// while others write (NO TRANSACTION) may wait: nobody waits behind it. When it
// fails it leaves an index that is good for nothing.
func prepare(ctx context.Context, conn *sql.Conn) error {
	next, err := nextFile(ctx, conn)
	if err != nil {
		return err
	}
	timeout := lockTimeout
	if strings.Contains(next, "-- +goose NO TRANSACTION") {
		timeout = 0
		if err := dropInvalid(ctx, conn); err != nil {
			return err
		}
	}
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("SET lock_timeout = %d", timeout.Milliseconds())); err != nil {
		return fmt.Errorf("set lock_timeout: %w", err)
	}
	return nil
}

// nextFile returns the text of the file that is to be applied next, empty when
// there is none.
func nextFile(ctx context.Context, conn *sql.Conn) (string, error) {
	version := 0
	var known bool
	err := conn.QueryRowContext(ctx, "SELECT to_regclass('goose_db_version') IS NOT NULL").Scan(&known)
	if err == nil && known {
		err = conn.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version").Scan(&version)
	}
	if err != nil {
		return "", fmt.Errorf("read schema version: %w", err)
	}
	names, err := fs.Glob(files, "*.sql") // in the order of their numbers
	if err != nil {
		return "", fmt.Errorf("list migrations: %w", err)
	}
	for _, name := range names {
		if name > fmt.Sprintf("%04d_~", version) {
			text, err := files.ReadFile(name)
			return string(text), err
		}
	}
	return "", nil
}

func dropInvalid(ctx context.Context, conn *sql.Conn) error {
	var drop sql.NullString
	err := conn.QueryRowContext(ctx, `SELECT string_agg(format('%I.%I', n.nspname, c.relname), ', ') FROM pg_index i
		JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE NOT i.indisvalid AND n.nspname = current_schema()`).Scan(&drop)
	if err == nil && drop.Valid {
		_, err = conn.ExecContext(ctx, "DROP INDEX "+drop.String)
	}
	if err != nil {
		return fmt.Errorf("remove an index that was not finished: %w", err)
	}
	return nil
}

func (turn) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "RESET lock_timeout"); err != nil {
		return fmt.Errorf("reset lock_timeout: %w", err)
	}
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", lock.DefaultLockID); err != nil {
		return fmt.Errorf("let others migrate: %w", err)
	}
	return nil
}
