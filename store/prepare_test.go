package store

import (
	"testing"
	"time"
)

// prepares tells how many statements a connection for grouped writes has prepared.
func (l *ledger) prepares() (n int) {
	l.t.Helper()
	l.must(l.hot.GetContext(l.t.Context(), &n, `SELECT count(*) FROM pg_prepared_statements`))
	return n
}

// Statements that come all the time are prepared once for each connection. One that
// Postgres has forgotten, as behind a pooler, is prepared anew and nothing is lost.
func TestStatementsArePreparedOnce(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.hot.SetMaxOpenConns(1)
	for range 3 {
		l.put()
	}
	if n := l.prepares(); n != 1 {
		t.Errorf("%d statements are prepared", n)
	}
	if _, err := l.hot.ExecContext(t.Context(), `DEALLOCATE ALL`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l.put()
	}
	if n := l.prepares(); n != 1 {
		t.Errorf("%d statements are prepared again", n)
	}
}

func TestUnprepared(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	plain, err := Open(t.Context(), l.url, 10, Unprepared)
	l.must(err)
	t.Cleanup(func() { _ = plain.Close() })
	other := &ledger{Store: plain, t: t, url: l.url}
	other.process = other.register(time.Hour)
	other.put()
	other.run()
	if n := other.prepares(); n != 0 {
		t.Errorf("%d statements are prepared", n)
	}
}
