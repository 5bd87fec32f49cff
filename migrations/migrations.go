// Package migrations holds the schema: numbered SQL files, forward only. The
// whole schema on one page is testdata/schema.sql, which a test keeps true.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"

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
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, fmt.Errorf("make migration lock: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return p, nil
}
