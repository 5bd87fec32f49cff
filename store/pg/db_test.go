package pg

import (
	"context"
	"errors"
	"testing"
	"time"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// open connects to the Postgres at url.
func open(t *testing.T, url string) *DB {
	t.Helper()
	db, err := Open(url, 20, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// empty is the address of a database without tables.
func empty(t *testing.T) string {
	t.Helper()
	return testkit.DB(t, func(context.Context, string) error { return nil })
}

func TestDSN(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"host=/tmp dbname=x":                      "host=/tmp dbname=x binary_parameters=yes timezone=UTC",
		"postgres://u:p@h/db?sslmode=disable":     "postgres://u:p@h/db?application_name=piecework&binary_parameters=yes&connect_timeout=5&sslmode=disable&timezone=UTC",
		"postgresql:///db?application_name=mine":  "postgresql:///db?application_name=mine&binary_parameters=yes&connect_timeout=5&timezone=UTC",
		"postgres://h/db?connect_timeout=1&foo=2": "postgres://h/db?application_name=piecework&binary_parameters=yes&connect_timeout=1&foo=2&timezone=UTC",
	} {
		if got, err := DSN(given); err != nil || got != want {
			t.Errorf("%s: %s, error %v", given, got, err)
		}
	}
	if _, err := DSN("postgres://%zz"); err == nil {
		t.Error("an unreadable URL was taken")
	}
}

// Each statement has its own deadline on the socket: that of an earlier one, or of
// the opening of the connection, does not end it.
func TestDeadlineOfAnEarlierStatement(t *testing.T) {
	t.Parallel()
	db := open(t, empty(t))
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	calls := map[string]func() error{
		"exec": func() error { _, err := conn.ExecContext(t.Context(), `SELECT 1`); return err },
		"ping": func() error { return conn.PingContext(t.Context()) },
		"transaction": func() error {
			tx, err := conn.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			return tx.Rollback()
		},
	}
	for name, call := range calls {
		if err := conn.Raw(func(opened any) error {
			return opened.(*boundConn).link.SetDeadline(time.Now().Add(-time.Second))
		}); err != nil {
			t.Fatal(err)
		}
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A caller that leaves ends its statement, and the others' connections stay.
func TestCallerLeavesAConnection(t *testing.T) {
	t.Parallel()
	db := open(t, empty(t))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := db.ExecContext(ctx, `SELECT pg_sleep(600)`); err == nil {
		t.Error("it was not cancelled")
	}
	if db.pulse.silent.Load() != 0 {
		t.Error("a caller that left counts as a silent Postgres")
	}
	testkit.Eventually(t, "Postgres has ended the statement", func() bool {
		var n int
		if err := db.Get(&n, `SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(600)%' AND state = 'active' AND datname = current_database()`); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}

// What was cancelled because it took too long was answered: the others are not
// distrusted.
func TestSlowStatement(t *testing.T) {
	t.Parallel()
	db := open(t, empty(t))
	_, err := db.ExecContext(Allow(t.Context(), 100*time.Millisecond), `SELECT pg_sleep(600)`)
	if err = Translate(err); !errors.As(err, new(*work.Unavailable)) || unanswered(err) {
		t.Errorf("error %v", err)
	}
	if db.pulse.silent.Load() != 0 {
		t.Error("a slow statement counts as a silent Postgres")
	}
}
