package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// prepares tells how many statements a connection for grouped writes has prepared.
func (l *fixture) prepares() (n int) {
	l.t.Helper()
	l.must(l.db.Hot.GetContext(l.t.Context(), &n, `SELECT count(*) FROM pg_prepared_statements`))
	return n
}

// Statements that come all the time are prepared once for each connection. One that
// Postgres has forgotten, as behind a pooler, is prepared anew and nothing is lost.
func TestStatementsArePreparedOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.db.Hot.SetMaxOpenConns(1)
	for range 3 {
		l.put()
	}
	if n := l.prepares(); n != 1 {
		t.Errorf("%d statements are prepared", n)
	}
	if _, err := l.db.Hot.ExecContext(t.Context(), `DEALLOCATE ALL`); err != nil {
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
	l := newFixture(t)
	plain, err := Open(t.Context(), l.url, 10, Unprepared)
	l.must(err)
	t.Cleanup(func() { _ = plain.Close() })
	other := &fixture{Store: plain, t: t, url: l.url}
	other.process = other.register(time.Hour)
	other.put()
	other.run()
	if n := other.prepares(); n != 0 {
		t.Errorf("%d statements are prepared", n)
	}
}

// A plan is kept, so one that is made while nothing is queued must do for a backlog:
// whoever names units finds them by their ids.
func TestPlansOfAnEmptyQueue(t *testing.T) {
	t.Parallel()
	hot := newFixture(t).db.Hot
	l, spy := newTap(t, testkit.DB(t, migrate))
	l.process = l.register(time.Hour)
	spy.hear()
	id := uuid.New()
	_, err := l.Runs.Claim(t.Context(), claimOf(id, l.process))
	l.must(err)
	_, err = l.Runs.suspects(t.Context(), []string{id.String()})
	l.must(err)
	_, err = l.Queues.Redispatch(t.Context(), []uuid.UUID{id})
	l.must(err)
	_, err = l.Queues.Untaken(t.Context(), []Message{{UnitID: id, Number: 1}})
	l.must(err)
	_, err = l.Runs.Finish(t.Context(), Finish{UnitID: id, RunID: id, Attempt: 1, Status: work.RunSucceeded, Next: work.Succeeded})
	l.must(err)
	said, looked := spy.hear(), 0
	conn, err := hot.Connx(t.Context())
	l.must(err)
	defer conn.Close()
	for i, s := range said {
		if !strings.Contains(s.query, "work_units") {
			continue
		}
		looked++
		_, err := conn.ExecContext(t.Context(), fmt.Sprintf("PREPARE p%d AS %s", i, s.query))
		l.must(err)
		var plan []string
		nulls := strings.TrimSuffix(strings.Repeat("NULL,", len(s.args)), ",")
		_, err = conn.ExecContext(t.Context(), "SET plan_cache_mode = force_generic_plan")
		l.must(err)
		l.must(conn.SelectContext(t.Context(), &plan, fmt.Sprintf("EXPLAIN EXECUTE p%d (%s)", i, nulls)))
		for _, line := range plan {
			if strings.Contains(strings.ReplaceAll(line, "work_units_pkey", ""), "work_units_") || strings.Contains(line, "Seq Scan on work_units") {
				t.Errorf("%.60s…\nis planned with %s", strings.TrimSpace(s.query), line)
			}
		}
	}
	if looked < 5 {
		t.Errorf("looked at %d statements", looked)
	}
}
