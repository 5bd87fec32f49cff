// Package migrations holds the schema: numbered SQL files, forward only. The
// whole schema on one page is testdata/schema.sql, which a test keeps true.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed [0-9]*.sql
var files embed.FS

// Up brings the database to this program's schema and returns the names of
// the files it applied. Several callers at once are safe: one migrates under
// an advisory lock, the others wait.
func Up(ctx context.Context, db *sql.DB) ([]string, error) {
	provider, err := provider(db)
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	applied := make([]string, 0, len(results))
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	return applied, nil
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
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait to migrate: %w", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func (turn) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", lock.DefaultLockID); err != nil {
		return fmt.Errorf("let others migrate: %w", err)
	}
	return nil
}
