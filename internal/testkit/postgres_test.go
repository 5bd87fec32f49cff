package testkit

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"
	"time"
)

var migrations atomic.Int32

func migrate(ctx context.Context, url string) error {
	migrations.Add(1)
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, "create table units (id int primary key)")
	return err
}

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "select count(*) from units").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDBIsOnesOwn(t *testing.T) {
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			db := open(t, DB(t, migrate))
			t.Log("ready after", time.Since(start))
			if n := count(t, db); n != 0 {
				t.Errorf("%d rows of somebody else", n)
			}
			if _, err := db.ExecContext(t.Context(), "insert into units values (1)"); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Cleanup(func() {
		if n := migrations.Load(); n != 1 {
			t.Errorf("migrated %d times", n)
		}
	})
}

// A database goes with its test, even while somebody is connected.
func TestDBIsDropped(t *testing.T) {
	var before int
	left := "select count(*) from pg_database where datname like 'piecework_test_%'"
	db := open(t, DB(t, nil))
	if err := db.QueryRowContext(t.Context(), left).Scan(&before); err != nil {
		t.Fatal(err)
	}
	t.Run("", func(t *testing.T) {
		other, err := sql.Open("postgres", DB(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := other.PingContext(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	var after int
	if err := db.QueryRowContext(t.Context(), left).Scan(&after); err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Errorf("%d databases before, %d after", before, after)
	}
}

func TestOwnPostgresOutage(t *testing.T) {
	t.Parallel()
	server := OwnPostgres(t, func(ctx context.Context, url string) error {
		db, err := sql.Open("postgres", url)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }()
		_, err = db.ExecContext(ctx, "create table units as select 1 as id")
		return err
	})
	db := open(t, server.URL)
	if n := count(t, db); n != 1 {
		t.Fatalf("%d rows", n)
	}
	server.Kill()
	server.Kill()
	if err := db.PingContext(t.Context()); err == nil {
		t.Error("killed, yet it answers")
	}
	server.Start()
	server.Start()
	if n := count(t, db); n != 1 {
		t.Errorf("%d rows after the crash", n)
	}
}

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"postgres://u:p@h:5432/db?sslmode=disable": "postgres://u:p@h:5432/x?sslmode=disable",
		"postgres:///db?host=%2Ftmp%2Fa":           "postgres:///x?host=%2Ftmp%2Fa",
		"host=/tmp/a dbname=db":                    "host=/tmp/a dbname=db dbname=x",
	} {
		if got := withDatabase(server, "x"); got != want {
			t.Errorf("%s: got %s", server, got)
		}
	}
}
