package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"golang.org/x/sync/errgroup"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store/pg"
)

// behindProxy is a database whose connections lead through a proxy.
func behindProxy(t *testing.T) (*fixture, *testkit.Proxy) {
	t.Helper()
	proxy, url := testkit.PostgresProxy(t, testkit.DB(t, migrate))
	s, err := Open(t.Context(), url, 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l := &fixture{Store: s, t: t, url: url}
	l.process = l.register(time.Hour)
	return l, proxy
}

// busy opens n connections, which are idle afterwards.
func (l *fixture) busy(n int) {
	l.t.Helper()
	var group errgroup.Group
	for _, pool := range []*sqlx.DB{l.db.DB, l.db.Hot} {
		for range min(n, pool.Stats().MaxOpenConnections) {
			group.Go(func() error {
				_, err := pool.ExecContext(l.t.Context(), `SELECT pg_sleep(0.5)`)
				return err
			})
		}
	}
	l.must(group.Wait())
}

// returns fails the test when f does not come back at all. What it fails with,
// f says.
func returns(t *testing.T, what string, f func() error) error {
	t.Helper()
	back := make(chan error, 1)
	go func() { back <- f() }()
	select {
	case err := <-back:
		return err
	case <-time.After(testkit.Patience):
		t.Fatalf("%s does not come back", what)
		return nil
	}
}

// Connections that carry nothing any more, while new ones work: a write is
// repeated on a new one, and one silent connection is enough to distrust all.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	l, proxy := behindProxy(t)
	l.busy(10)
	proxy.Hole()
	id := uuid.Must(uuid.NewV7())
	err := returns(t, "a write", func() error {
		_, _, err := l.Units.Accept(t.Context(), newUnit(func(n *NewUnit) { n.ID = id }))
		return err
	})
	if err != nil {
		t.Errorf("a write through connections of which the first was dead: %v", err)
	}
	for range 10 { // as many as there were dead ones
		err := returns(t, "a read after that", func() error {
			_, err := l.Units.Get(t.Context(), work.DefaultTenant, id)
			return err
		})
		if err != nil {
			t.Errorf("a read after that: %v", err)
		}
	}
	if err := returns(t, "a look whether it is ready", func() error { return l.Writable(t.Context()) }); err != nil {
		t.Errorf("not ready: %v", err)
	}
}

// Nobody waits for a Postgres that does not answer, without a deadline of his
// own either, and the store says so. When it answers again, so does the store.
func TestSilentPostgres(t *testing.T) {
	t.Parallel()
	l, proxy := behindProxy(t)
	l.busy(3)
	proxy.Hold()
	calls := map[string]func() error{
		"accept": func() error { _, _, err := l.Units.Accept(t.Context(), newUnit()); return err },
		"read":   func() error { _, err := l.Queues.List(t.Context(), work.DefaultTenant); return err },
		"beat":   func() error { return l.Processes.Heartbeat(t.Context(), l.process, time.Hour, 0, nil) },
		"ping":   func() error { return l.Ping(t.Context()) },
		"ready":  func() error { return l.Writable(t.Context()) },
		"transaction": func() error {
			_, err := l.Batches.Advance(pg.Allow(t.Context(), pg.StatementLimit), uuid.New())
			return err
		},
		"lead": func() error {
			_, err := l.db.LeadOnce(t.Context(), leadLock, func(context.Context) error { return nil })
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			if err := returns(t, name, call); !errors.As(err, new(*work.Unavailable)) {
				t.Errorf("error %v", err)
			}
		})
	}
	proxy.Release()
	testkit.Eventually(t, "ready again", func() bool { return l.Writable(t.Context()) == nil })
	if _, _, err := l.Units.Accept(t.Context(), newUnit()); err != nil {
		t.Error(err)
	}
}
