package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store/pg"
)

func titles(units []work.Unit) (all []string) {
	for _, u := range units {
		all = append(all, u.Title)
	}
	return all
}

func TestUnitsAreCountedByState(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for range 3 {
		l.put()
	}
	for range 20 {
		l.put(func(n *NewUnit) { n.Backend, n.Worker = "codex", "many" })
	}
	l.put(func(n *NewUnit) { n.Tenant = "other" })
	l.end(ending(l.take(l.put(func(n *NewUnit) { n.Backend = "claude" }).ID, l.process), work.Failed), Recorded)
	for _, test := range []struct {
		filter         UnitFilter
		queued, failed int
		whole          bool
	}{
		{UnitFilter{Tenant: work.DefaultTenant}, 2, 1, true}, // two are all that is counted of a state
		{UnitFilter{Tenant: work.DefaultTenant, Backend: "mock"}, 2, 0, false},
		{UnitFilter{Tenant: work.DefaultTenant, Worker: "many"}, 2, 0, false},
		{UnitFilter{Tenant: work.DefaultTenant, Backend: "claude"}, 0, 1, true},
		{UnitFilter{Tenant: work.DefaultTenant, Since: time.Now().Add(time.Hour)}, 0, 0, true},
		{UnitFilter{Tenant: "other"}, 1, 0, true},
		{UnitFilter{Tenant: "other", Search: "title"}, 1, 0, true},
	} {
		counts, whole, err := l.Units.Count(t.Context(), test.filter, 2)
		if err != nil || counts[work.Queued] != test.queued || counts[work.Failed] != test.failed || len(counts) != len(work.States) ||
			whole != test.whole {
			t.Errorf("%+v: %v, %t, %v", test.filter, counts, whole, err)
		}
	}
}

func TestLiveRuns(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	over, goes := l.put().ID, l.put().ID
	l.end(ending(l.take(over, l.process), work.Succeeded), Recorded)
	c := l.take(goes, l.process)
	l.must(l.Transcripts.Append(t.Context(), Progress{RunID: c.RunID, LiveStatus: "reads", ToolCalls: 4}))
	live, err := l.Runs.Live(t.Context(), []uuid.UUID{over, goes, l.put().ID})
	if err != nil || len(live) != 1 || live[goes].ID != c.RunID || live[goes].ToolCalls != 4 || *live[goes].LiveStatus != "reads" {
		t.Errorf("%+v, %v", live, err)
	}
}

func TestUnitsFilters(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	named := func(title string, change ...func(*NewUnit)) uuid.UUID {
		return l.put(append(change, func(n *NewUnit) { n.Title = title })...).ID
	}
	named("plain")
	named("100% sure", func(n *NewUnit) { n.Backend = "claude" })
	named("100 sure", func(n *NewUnit) { n.Worker = "w" })
	named("snake_case", func(n *NewUnit) { n.Labels = json.RawMessage(`{"team":"a","x":"y"}`) })
	named(`back\slash`, func(n *NewUnit) { n.Labels = json.RawMessage(`{"team":"b"}`) })
	named("snakeXcase", func(n *NewUnit) { n.Tenant = "other" })
	failed := l.take(named("failed"), l.process)
	l.end(ending(failed, work.Failed), Recorded)
	done := named("done")
	l.end(ending(l.take(done, l.process), work.Succeeded), Recorded)
	for _, test := range []struct {
		filter UnitFilter
		want   []string
	}{
		{UnitFilter{}, []string{"done", "failed", `back\slash`, "snake_case", "100 sure", "100% sure", "plain"}},
		{UnitFilter{Limit: 2}, []string{"done", "failed"}},
		{UnitFilter{States: []work.State{work.Succeeded}}, []string{"done"}},
		{UnitFilter{States: []work.State{work.Succeeded, work.Failed}}, []string{"done", "failed"}},
		{UnitFilter{Backend: "claude"}, []string{"100% sure"}},
		{UnitFilter{Class: work.ClassInfra}, []string{"failed"}},
		{UnitFilter{Class: work.ClassAuth}, nil},
		{UnitFilter{Worker: "w"}, []string{"100 sure"}},
		{UnitFilter{Labels: map[string]string{"team": "a"}}, []string{"snake_case"}},
		{UnitFilter{Labels: map[string]string{"team": "b", "x": "y"}}, nil},
		{UnitFilter{Search: "100% s"}, []string{"100% sure"}},
		{UnitFilter{Search: "E_C"}, []string{"snake_case"}},
		{UnitFilter{Search: `k\s`}, []string{`back\slash`}},
		{UnitFilter{Search: "SURE"}, []string{"100 sure", "100% sure"}},
		{UnitFilter{Search: "pl\x00ain\x00"}, []string{"plain"}},
	} {
		test.filter.Tenant = work.DefaultTenant
		units, _, err := l.Units.List(t.Context(), test.filter)
		if err != nil || !slices.Equal(titles(units), test.want) {
			t.Errorf("%+v: %q, error %v, want %q", test.filter, titles(units), err, test.want)
		}
	}
}

// Pages neither repeat nor leave out a unit, whatever arrives meanwhile.
func TestUnitsPages(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	var want, got []uuid.UUID
	for range 25 {
		want = append(want, l.put().ID)
	}
	slices.Reverse(want)
	f := UnitFilter{Tenant: work.DefaultTenant, Limit: 10}
	for range 4 {
		units, next, err := l.Units.List(t.Context(), f)
		l.must(err)
		for _, u := range units {
			got = append(got, u.ID)
		}
		if next == nil {
			break
		}
		f.After = *next
		l.put()
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages came to %d units, want the %d of the beginning", len(got), len(want))
	}
	if units, next, err := l.Units.List(t.Context(), UnitFilter{Tenant: work.DefaultTenant, Limit: 27}); err != nil || len(units) != 27 ||
		next != nil {
		t.Errorf("a page that is just full: %d units, next %v, error %v", len(units), next, err)
	}
}

func TestRunsFilters(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	first := l.run(func(n *NewUnit) { n.Title = "one" })
	second := l.run(func(n *NewUnit) { n.Title, n.Backend = "two", "claude" })
	l.run(func(n *NewUnit) { n.Tenant = "other" })
	l.end(ending(first, work.Succeeded), Recorded)
	for _, test := range []struct {
		filter RunFilter
		want   []uuid.UUID
	}{
		{RunFilter{}, []uuid.UUID{second.RunID, first.RunID}},
		{RunFilter{After: second.RunID}, []uuid.UUID{first.RunID}},
		{RunFilter{Limit: 1}, []uuid.UUID{second.RunID}},
		{RunFilter{Statuses: []work.RunStatus{work.RunSucceeded}}, []uuid.UUID{first.RunID}},
		{RunFilter{Statuses: []work.RunStatus{work.RunSucceeded, work.RunRunning}}, []uuid.UUID{second.RunID, first.RunID}},
		{RunFilter{WorkerType: "claude"}, []uuid.UUID{second.RunID}},
		{RunFilter{Unit: first.ID}, []uuid.UUID{first.RunID}},
		{RunFilter{Search: "TWO"}, []uuid.UUID{second.RunID}},
	} {
		test.filter.Tenant = work.DefaultTenant
		runs, next, err := l.Runs.List(t.Context(), test.filter)
		var got []uuid.UUID
		for _, r := range runs {
			got = append(got, r.ID)
		}
		if err != nil || !slices.Equal(got, test.want) || (next != nil) != (test.filter.Limit == 1) {
			t.Errorf("%+v: %v, next %v, error %v", test.filter, got, next, err)
		}
	}
}

// everyList calls each list with each filter that changes its statement.
func everyList(ctx context.Context, s *Store) error {
	after := uuid.Must(uuid.NewV7())
	for _, f := range []UnitFilter{
		{}, {After: after}, {States: []work.State{work.Queued}}, {States: work.States}, {Backend: "mock"}, {Worker: "w"},
		{Class: work.ClassInfra},
		{Labels: map[string]string{"a": "b"}}, {Search: "title"},
	} {
		f.Tenant = work.DefaultTenant
		if _, _, err := s.Units.List(ctx, f); err != nil {
			return fmt.Errorf("units %+v: %w", f, err)
		}
	}
	for _, f := range []RunFilter{
		{}, {After: after}, {Statuses: []work.RunStatus{work.RunRunning}}, {Statuses: work.RunStatuses}, {WorkerType: "mock"},
		{Unit: after}, {Search: "title"},
	} {
		f.Tenant = work.DefaultTenant
		if _, _, err := s.Runs.List(ctx, f); err != nil {
			return fmt.Errorf("runs %+v: %w", f, err)
		}
	}
	return nil
}

// The lists are read by a user who may see every column but the large ones:
// Postgres refuses a statement that so much as names another.
func TestListsReadNoTranscript(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	l.end(ending(c, work.Succeeded, func(f *Finish) { f.Blob, _ = l.Transcripts.Encode(nil) }), Recorded)
	l.must(l.Transcripts.Append(t.Context(), Progress{RunID: l.run().RunID, LiveStatus: "busy"}))
	reader := l.readerOf(map[string][]string{
		"transcripts": {"blob"}, "transcript_chunks": {"body"},
		"worker_runs": {"result", "rendered_prompt", "definition"}, "unit_search": {}, "work_units": {"system_prompt", "payload", "output_schema"},
	})
	if err := everyList(t.Context(), reader); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"transcript": func() error { _, err := reader.Transcripts.Open(t.Context(), work.DefaultTenant, c.RunID); return err }(),
		"run":        func() error { _, err := reader.Runs.Get(t.Context(), work.DefaultTenant, c.RunID); return err }(),
		"unit":       func() error { _, err := reader.Units.Get(t.Context(), work.DefaultTenant, c.ID); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("the trap does not work: %s: %v", name, err)
		}
	}
}

// readerOf opens the database as a user without rights on some columns.
func (l *fixture) readerOf(hidden map[string][]string) *Store {
	l.t.Helper()
	role := "piecework_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	l.exec(`CREATE ROLE ` + role)
	l.t.Cleanup(func() {
		_, err := l.db.ExecContext(context.WithoutCancel(l.t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		l.must(err)
	})
	for table, columns := range hidden {
		seen := get[string](l, `SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
			WHERE attrelid = $1::regclass AND attnum > 0 AND attname <> ALL ($2::text[])`, table, pg.TextArray(columns))
		l.exec(fmt.Sprintf(`GRANT SELECT (%s) ON %s TO %s`, seen, table, role))
	}
	reader, err := Open(l.t.Context(), l.with("role="+role), 2)
	l.must(err)
	l.t.Cleanup(func() { _ = reader.Close() })
	return reader
}

const many = 20_000

// fill makes many units, each with a finished run.
func (l *fixture) fill() {
	l.t.Helper()
	id := `(lpad(to_hex(g), 12, '0') || '70008000000000000000')::uuid`
	l.exec(`INSERT INTO work_units (id, tenant, state, title, backend, queue, priority, prompt, payload, missing_key, timeout,
			idle_timeout, check_at, created_at, started_at, finished_at)
		SELECT `+id+`, 'default', 'succeeded', 'title ' || g, 'mock', 'default', 5, '', '{}', 'fail', 1, 1, now(), now(), now(), now()
		FROM generate_series(1, $1::integer) g`, many)
	l.exec(`INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, started_at, completed_at)
		SELECT `+id+`, 'default', `+id+`, 1, 'mock', 'succeeded', now(), now() FROM generate_series(1, $1::integer) g`, many)
	l.exec(`ANALYZE work_units, worker_runs`)
}

type planNode struct {
	Type      string     `json:"Node Type"`
	Relation  string     `json:"Relation Name"`
	Rows      float64    `json:"Actual Rows"` // with ANALYZE alone
	Removed   float64    `json:"Rows Removed by Filter"`
	Rechecked float64    `json:"Rows Removed by Index Recheck"`
	Index     string     `json:"Index Name"`
	Loops     float64    `json:"Actual Loops"`
	Plans     []planNode `json:"Plans"`
}

func explain(t *testing.T, db *sqlx.DB, s statement) (nodes []planNode) {
	t.Helper()
	var text string
	if err := db.GetContext(t.Context(), &text, s.query, s.args...); err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan planNode }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	queue := []planNode{plans[0].Plan}
	for len(queue) > 0 {
		nodes = append(nodes, queue[0])
		queue = append(queue[1:], queue[0].Plans...)
	}
	return nodes
}

// What is asked every second, or whenever a slot is free, reads a few of a long
// backlog.
func TestBacklogIsNotReadThrough(t *testing.T) {
	t.Parallel()
	l, spy := newTap(t, testkit.DB(t, migrate))
	l.fill()
	l.exec(`UPDATE work_units SET state = 'queued', finished_at = NULL, started_at = NULL; ANALYZE work_units`)
	const few = 50
	due, cursor, err := l.Queues.Unchecked(t.Context(), CheckCursor{}, few)
	l.must(err)
	var ids []uuid.UUID
	for _, d := range due {
		ids = append(ids, d.UnitID)
	}
	for name, ask := range map[string]func() error{
		"due": func() error {
			found, err := l.Queues.Due(t.Context(), []string{"default", "slow"}, []string{"claude", "mock"}, nil, few)
			if len(found) != few {
				t.Errorf("%d due", len(found))
			}
			return err
		},
		"unchecked": func() error { _, _, err := l.Queues.Unchecked(t.Context(), cursor, few); return err },
		"pending": func() error {
			p, err := l.Reconciler.Pending(t.Context(), cursor)
			if p != (Pending{Unchecked: true}) {
				t.Errorf("pending: %+v", p)
			}
			return err
		},
		"doubt":            func() error { return l.Queues.Recheck(t.Context(), ids) },
		"redispatch":       func() error { _, err := l.Queues.Redispatch(t.Context(), ids); return err },
		"expire leases":    func() error { _, err := l.Runs.ExpireLeases(t.Context()); return err },
		"expire deadlines": func() error { _, err := l.Units.ExpireDeadlines(t.Context()); return err },
	} {
		spy.hear()
		l.must(ask())
		for _, s := range spy.hear() {
			s.query = "EXPLAIN (ANALYZE, FORMAT JSON) " + s.query
			for _, node := range explain(t, l.db.DB, s) {
				if node.Relation == "work_units" && node.Rows+node.Removed > 2*few {
					t.Errorf("%s: %s reads %g units", name, node.Type, node.Rows+node.Removed)
				}
			}
		}
	}
}
