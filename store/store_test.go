package store

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"database/sql"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store/pg"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func migrate(ctx context.Context, url string) error {
	_, err := Migrate(ctx, url)
	return err
}

// fixture is a store with a worker process whose lease lasts.
type fixture struct {
	*Store
	t       *testing.T
	url     string
	process uuid.UUID
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return openFixture(t, testkit.DB(t, migrate))
}

func openFixture(t *testing.T, url string) *fixture {
	t.Helper()
	s, err := Open(t.Context(), url, 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.Units.accept.Limit, s.Runs.claim.Limit, s.Transcripts.append.Limit, s.Runs.finish.Limit = testkit.Patience, testkit.Patience,
		testkit.Patience, testkit.Patience
	l := &fixture{Store: s, t: t, url: url}
	l.process = l.register(time.Hour)
	return l
}

// with is the database's URL with more settings of the connection.
func (l *fixture) with(settings string) string {
	if strings.Contains(l.url, "?") {
		return l.url + "&" + settings
	}
	return l.url + "?" + settings
}

func (l *fixture) register(lease time.Duration) uuid.UUID {
	l.t.Helper()
	p := work.Process{ID: uuid.Must(uuid.NewV7()), Hostname: "host", PID: 1, Slots: 4, Queues: []string{"default"},
		Backends: []work.Offer{{Name: "mock", Available: true}}}
	l.must(l.Processes.Register(l.t.Context(), p, lease))
	return p.ID
}

func (l *fixture) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *fixture) exec(query string, args ...any) {
	l.t.Helper()
	_, err := l.db.ExecContext(l.t.Context(), query, args...)
	l.must(err)
}

func get[T any](l *fixture, query string, args ...any) (value T) {
	l.t.Helper()
	l.must(l.db.GetContext(l.t.Context(), &value, query, args...))
	return value
}

func newUnit(change ...func(*NewUnit)) NewUnit {
	n := NewUnit{Unit: work.Unit{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "a title", Spec: work.Spec{
		Backend: "mock", Prompt: "a prompt", Payload: json.RawMessage(`{}`), Timeout: 60, IdleTimeout: 60, MissingKey: "fail",
		Queue: work.DefaultQueue, Priority: work.DefaultPriority, Labels: json.RawMessage(`{}`),
	}}}
	for _, f := range change {
		f(&n)
	}
	return n
}

func (l *fixture) put(change ...func(*NewUnit)) work.Unit {
	l.t.Helper()
	u, _, err := l.Units.Accept(l.t.Context(), newUnit(change...))
	l.must(err)
	return u
}

func (l *fixture) take(unit uuid.UUID, process uuid.UUID) *Claimed {
	l.t.Helper()
	c, err := l.Runs.Claim(l.t.Context(), claimOf(unit, process))
	l.must(err)
	return c
}

func claimOf(unit, process uuid.UUID) Claim {
	return Claim{UnitID: unit, RunID: uuid.Must(uuid.NewV7()), Process: process, SessionID: uuid.NewString(),
		Backends: []string{"claude", "mock"}, Alone: true}
}

// run accepts and claims a unit.
func (l *fixture) run(change ...func(*NewUnit)) *Claimed {
	l.t.Helper()
	c := l.take(l.put(change...).ID, l.process)
	if c == nil {
		l.t.Fatal("nothing claimed")
	}
	return c
}

// ending makes a finish of c that moves the unit to next.
func ending(c *Claimed, next work.State, change ...func(*Finish)) Finish {
	f := Finish{UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount, Next: next}
	switch next {
	case work.Succeeded:
		f.Status, f.Result = work.RunSucceeded, "the answer"
	case work.Cancelled:
		f.Status = work.RunCancelled
	case work.Waiting:
		f.Status = work.RunReleased
	case work.TimedOut:
		f.Status, f.Error = work.RunTimedOut, work.Fail(work.ClassTimeout, "too long")
	default:
		f.Status, f.Error, f.Failures = work.RunFailed, work.Fail(work.ClassInfra, "broken"), 1
	}
	for _, change := range change {
		change(&f)
	}
	return f
}

func (l *fixture) end(f Finish, want Verdict) {
	l.t.Helper()
	verdict, err := l.Runs.Finish(l.t.Context(), f)
	if err != nil || verdict != want {
		l.t.Fatalf("verdict %q, error %v, want %q", verdict, err, want)
	}
}

func (l *fixture) unit(id uuid.UUID) work.Unit {
	l.t.Helper()
	u, err := l.Units.Get(l.t.Context(), work.DefaultTenant, id)
	l.must(err)
	return u
}

func (l *fixture) theRun(id uuid.UUID) work.Run {
	l.t.Helper()
	r, err := l.Runs.Get(l.t.Context(), work.DefaultTenant, id)
	l.must(err)
	return r
}

func (l *fixture) steps(run uuid.UUID) (texts []string) {
	l.t.Helper()
	blob, err := l.Transcripts.Open(l.t.Context(), work.DefaultTenant, run)
	l.must(err)
	steps, err := transcript.Decode(blob)
	l.must(err)
	for _, s := range steps {
		texts = append(texts, s.Text)
	}
	return texts
}

// waiting counts statements of this database that wait for a lock.
func (l *fixture) waiting() int {
	return get[int](l, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
}

// locked runs f while another transaction holds the unit.
func (l *fixture) locked(unit uuid.UUID, f func()) {
	l.t.Helper()
	tx, err := l.db.BeginTxx(l.t.Context(), nil)
	l.must(err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(l.t.Context(), `SELECT FROM work_units WHERE id = $1 FOR UPDATE`, unit)
	l.must(err)
	f()
}

// tap is a connector that notes every statement.
type tap struct {
	driver.Connector
	mu   sync.Mutex
	said []statement
}

type statement struct {
	query string
	args  []any
}

func newTap(t *testing.T, url string) (*fixture, *tap) {
	t.Helper()
	text, err := pg.DSN(url)
	if err != nil {
		t.Fatal(err)
	}
	connector, err := pq.NewConnector(text)
	if err != nil {
		t.Fatal(err)
	}
	spy := &tap{Connector: connector}
	db := sqlx.NewDb(sql.OpenDB(spy), "postgres")
	t.Cleanup(func() { _ = db.Close() })
	return &fixture{Store: newStore(pg.New(db, db, db)), t: t, url: url}, spy
}

func (s *tap) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return tapped{conn, s}, nil
}

func (s *tap) note(query string, args []driver.NamedValue) {
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, statement{query, values})
}

// hear returns what was said since it was last asked.
func (s *tap) hear() []statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	said := s.said
	s.said = nil
	return said
}

type tapped struct {
	driver.Conn
	tap *tap
}

func (c tapped) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.tap.note(query, args)
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c tapped) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.tap.note(query, args)
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

// Every call of a store whose Postgres is gone says so in the house's words,
// and works again when it is back.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	server := testkit.OwnPostgres(t, migrate)
	l := openFixture(t, server.URL)
	c, queued := l.run(), l.put()
	server.Kill()
	for name, call := range everyCall(l, c) {
		var away *work.Unavailable
		if err := call(t.Context()); !errors.As(err, &away) || away.What != "postgres" || away.RetryAfter <= 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	server.Start()
	if n := get[int](l, `SELECT count(*) FROM work_units`); n != 2 {
		t.Errorf("%d units after the outage, want 2: something was half written", n)
	}
	if u := l.unit(queued.ID); u.State != work.Queued {
		t.Errorf("the queued unit is %s", u.State)
	}
	l.end(ending(c, work.Succeeded), Recorded)
	l.put()
}

func everyCall(l *fixture, c *Claimed) map[string]func(context.Context) error {
	id, tenant := c.ID, work.DefaultTenant
	return map[string]func(context.Context) error{
		"Ping":   l.Ping,
		"Accept": func(ctx context.Context) error { _, _, err := l.Units.Accept(ctx, newUnit()); return err },
		"Unit":   func(ctx context.Context) error { _, err := l.Units.Get(ctx, tenant, id); return err },
		"State":  func(ctx context.Context) error { _, err := l.Units.State(ctx, tenant, id); return err },
		"Units": func(ctx context.Context) error {
			_, _, err := l.Units.List(ctx, UnitFilter{Tenant: tenant})
			return err
		},
		"Cancel": func(ctx context.Context) error { _, err := l.Units.Cancel(ctx, tenant, id); return err },
		"Retry":  func(ctx context.Context) error { _, err := l.Units.Retry(ctx, tenant, id, Changes{}); return err },
		"RetryAll": func(ctx context.Context) error {
			_, _, err := l.Units.RetryAll(ctx, UnitFilter{Tenant: tenant}, Changes{})
			return err
		},
		"CancelAll": func(ctx context.Context) error {
			_, _, err := l.Units.CancelAll(ctx, UnitFilter{Tenant: tenant})
			return err
		},
		"PreviewRetry": func(ctx context.Context) error {
			_, err := l.Units.PreviewRetry(ctx, UnitFilter{Tenant: tenant}, Changes{}, 1)
			return err
		},
		"PreviewCancel": func(ctx context.Context) error {
			_, err := l.Units.PreviewCancel(ctx, UnitFilter{Tenant: tenant}, 1)
			return err
		},
		"Claim":      func(ctx context.Context) error { _, err := l.Runs.Claim(ctx, claimOf(id, l.process)); return err },
		"Finish":     func(ctx context.Context) error { _, err := l.Runs.Finish(ctx, ending(c, work.Succeeded)); return err },
		"Run":        func(ctx context.Context) error { _, err := l.Runs.Get(ctx, tenant, c.RunID); return err },
		"Runs":       func(ctx context.Context) error { _, _, err := l.Runs.List(ctx, RunFilter{Tenant: tenant}); return err },
		"UnitRuns":   func(ctx context.Context) error { _, err := l.Runs.OfUnit(ctx, id); return err },
		"UnitUsage":  func(ctx context.Context) error { _, err := l.Runs.UnitUsage(ctx, id); return err },
		"Append":     func(ctx context.Context) error { return l.Transcripts.Append(ctx, Progress{RunID: c.RunID}) },
		"Transcript": func(ctx context.Context) error { _, err := l.Transcripts.Open(ctx, tenant, c.RunID); return err },
		"FoldLost":   func(ctx context.Context) error { _, err := l.Transcripts.FoldLost(ctx, 1); return err },
		"Register": func(ctx context.Context) error {
			return l.Processes.Register(ctx, work.Process{ID: l.process}, time.Hour)
		},
		"Beat":            func(ctx context.Context) error { return l.Processes.Heartbeat(ctx, l.process, time.Hour, 0, nil) },
		"News":            func(ctx context.Context) error { _, err := l.Processes.Assignments(ctx, l.process); return err },
		"Leases":          func(ctx context.Context) error { _, _, err := l.Processes.Leases(ctx); return err },
		"LeasesAndLead":   func(ctx context.Context) error { _, _, _, err := l.Processes.LeasesAndLead(ctx); return err },
		"Pending":         func(ctx context.Context) error { _, err := l.Reconciler.Pending(ctx, CheckCursor{}); return err },
		"EndLeases":       func(ctx context.Context) error { _, err := l.Processes.EndLeases(ctx, nil); return err },
		"Untaken":         func(ctx context.Context) error { _, err := l.Queues.Untaken(ctx, nil); return err },
		"ClockBack":       func(ctx context.Context) error { _, err := l.Reconciler.ClockBack(ctx, time.Hour); return err },
		"Writable":        l.Writable,
		"Pause":           func(ctx context.Context) error { _, err := l.Pauses.Pause(ctx, PauseQueue, "q", "", ""); return err },
		"Resume":          func(ctx context.Context) error { _, err := l.Pauses.Resume(ctx, PauseQueue, "q"); return err },
		"Pauses":          func(ctx context.Context) error { _, err := l.Pauses.List(ctx); return err },
		"Queues":          func(ctx context.Context) error { _, err := l.Queues.List(ctx, tenant); return err },
		"Stop":            func(ctx context.Context) error { return l.Processes.Stop(ctx, l.process) },
		"Bury":            func(ctx context.Context) error { _, err := l.Processes.EndDead(ctx, []uuid.UUID{id}); return err },
		"Processes":       func(ctx context.Context) error { _, err := l.Processes.List(ctx); return err },
		"Place":           func(ctx context.Context) error { _, err := l.Queues.Place(ctx, work.Unit{}); return err },
		"Lead":            func(ctx context.Context) error { _, err := l.db.LeadOnce(ctx, leadLock, l.Ping); return err },
		"ExpireLeases":    func(ctx context.Context) error { _, err := l.Runs.ExpireLeases(ctx); return err },
		"ExpireDeadlines": func(ctx context.Context) error { _, err := l.Units.ExpireDeadlines(ctx); return err },
		"Unchecked":       func(ctx context.Context) error { _, _, err := l.Queues.Unchecked(ctx, CheckCursor{}, 1); return err },
		"Doubt":           func(ctx context.Context) error { return l.Queues.Recheck(ctx, []uuid.UUID{id}) },
		"Redispatch":      func(ctx context.Context) error { _, err := l.Queues.Redispatch(ctx, []uuid.UUID{id}); return err },
		"RecheckAll":      func(ctx context.Context) error { _, err := l.Queues.RecheckAll(ctx); return err },
		"Due":             func(ctx context.Context) error { _, err := l.Queues.Due(ctx, nil, nil, nil, 1); return err },
		"Epoch":           func(ctx context.Context) error { _, err := l.Queues.Epoch(ctx, "x"); return err },
		"Open":            func(ctx context.Context) error { _, err := Open(ctx, l.url, 1); return err },
	}
}

// A caller that stops waiting for a database that hangs hears that it is away.
func TestPostgresHangs(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	u := l.put()
	l.locked(u.ID, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := l.Runs.Claim(ctx, claimOf(u.ID, l.process))
		var away *work.Unavailable
		if !errors.As(err, &away) {
			t.Errorf("claim of a locked unit: %v", err)
		}
	})
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	url := testkit.DB(t, nil)
	schema := func() (found work.Finding) {
		for _, f := range Diagnose(t.Context(), url) {
			if f.Status != work.FindingOK && f.Mend == "" {
				t.Errorf("%s is no good and nothing mends it", f.Name)
			}
			if f.Name == "postgres schema" {
				found = f
			}
		}
		return found
	}
	if f := schema(); f.Status != work.FindingFail || !strings.Contains(f.Detail, "behind") {
		t.Errorf("an empty database: %+v", f)
	}
	if err := migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	if f := schema(); f.Status != work.FindingOK {
		t.Errorf("a migrated database: %+v", f)
	}
	if f := Diagnose(t.Context(), "host=/nowhere sslmode=disable"); len(f) != 1 || f[0].Status != work.FindingFail {
		t.Errorf("no database: %+v", f)
	}
}

// Two processes that start at once both want what only one can make.
func TestMadeOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for name, c := range map[string]struct {
		insert string
		read   func() (string, error)
	}{
		"the epoch": {`INSERT INTO settings (name, value) VALUES ('redis_epoch', 'first')`, func() (string, error) {
			return l.Queues.Epoch(t.Context(), "second")
		}},
		"the secret of callbacks": {`INSERT INTO callback_secrets (tenant, secret) VALUES ('default', 'first')`, func() (string, error) {
			secrets, err := l.Endpoints.CallbackSecrets(t.Context(), work.DefaultTenant, "second")
			return secrets.Secret, err
		}},
	} {
		tx, err := l.db.BeginTxx(t.Context(), nil)
		l.must(err)
		_, err = tx.ExecContext(t.Context(), c.insert)
		l.must(err)
		got := make(chan string, 1)
		go func() {
			text, err := c.read()
			if err != nil {
				text = err.Error()
			}
			got <- text
		}()
		testkit.Eventually(t, "it waits for the first", func() bool { return l.waiting() == 1 })
		l.must(tx.Commit())
		if text := <-got; text != "first" {
			t.Errorf("%s: %s", name, text)
		}
	}
}
