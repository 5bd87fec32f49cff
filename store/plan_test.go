package store

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store/pg"
)

// grown are the tables that have a row, or more, for each unit that ever was.
var grown = []string{"work_units", "unit_search", "worker_runs", "transcripts"}

// tooMuch tells where a plan reads or sorts more than most rows of a table that grows.
func (n planNode) tooMuch(most float64) (found []string) {
	rows := (n.Rows + n.Removed + n.Rechecked) * n.Loops
	if rows > most && (slices.Contains(grown, n.Relation) || n.Type == "Sort" || n.Type == "Bitmap Index Scan") {
		found = append(found, fmt.Sprintf("%s of %.0f rows: %s %s", n.Type, rows, n.Relation, n.Index))
	}
	for _, p := range n.Plans {
		found = append(found, p.tooMuch(most)...)
	}
	return found
}

// unitsOtherwise is the index by which a plan finds units, unless that is the primary
// key.
func (n planNode) unitsOtherwise() string {
	if n.Relation == "work_units" && n.Index != "" && n.Index != "work_units_pkey" {
		return n.Index
	}
	for _, p := range n.Plans {
		if other := p.unitsOtherwise(); other != "" {
			return other
		}
	}
	return ""
}

type plan struct {
	Query string   `json:"Query Text"`
	Plan  planNode `json:"Plan"`
}

// planned is a store whose statements tell their plans, those of triggers too.
type planned struct {
	*fixture
	mu   sync.Mutex
	said []string
}

var telling = map[string]string{
	"session_preload_libraries": "auto_explain", "auto_explain.log_min_duration": "0", "auto_explain.log_level": "notice", "client_min_messages": "notice",
	"auto_explain.log_format": "json", "auto_explain.log_analyze": "on", "auto_explain.log_timing": "off", "auto_explain.log_nested_statements": "on",
}

func newPlanned(t *testing.T, url string) *planned {
	t.Helper()
	p := &planned{}
	text, err := pg.DSN(url)
	if err != nil {
		t.Fatal(err)
	}
	open := func(settings map[string]string) *sqlx.DB {
		connector, err := pq.NewConnector(pg.WithParameters(pg.WithParameters(text, telling), settings))
		if err != nil {
			t.Fatal(err)
		}
		db := sqlx.NewDb(sql.OpenDB(pq.ConnectorWithNoticeHandler(connector, func(notice *pq.Error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.said = append(p.said, notice.Message)
		})), "postgres")
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	db := open(nil)
	p.fixture = &fixture{Store: newStore(pg.New(db, db, open(pg.ByKey))), t: t, url: url}
	p.process = p.register(time.Hour)
	return p
}

// plans returns those of all statements since it was last asked.
func (p *planned) plans() (all []plan) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.said {
		_, text, ok := strings.Cut(text, "plan:\n")
		if !ok {
			continue
		}
		var one plan
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			p.t.Fatal(err)
		}
		all = append(all, one)
	}
	p.said = nil
	return all
}

// TestPlans has the statements that are asked again and again plan and run on a
// database large enough that Postgres plans as for a million units: with the same data
// and statistics of all of it, in which every row is sampled. What reads a whole
// table that grows, or more rows of one than belong to the answer, is too slow some day.
func TestPlans(t *testing.T) {
	t.Parallel()
	url := testkit.DB(t, migrate)
	if err := testkit.Seed(t.Context(), url, 20_000); err != nil {
		t.Fatal(err)
	}
	p := newPlanned(t, url)
	ctx, tenant := t.Context(), work.DefaultTenant
	middle := get[uuid.UUID](p.fixture, `SELECT id FROM work_units WHERE created_at > now() - interval '45 days' ORDER BY created_at LIMIT 1`)
	for more := true; more; { // so that the overview has no more than the last minute to count
		var err error
		more, err = p.Overview.Tally(ctx, tenant)
		p.must(err)
	}
	p.plans()

	const few, page = 100, 3000
	for what, f := range map[string]UnitFilter{
		"all": {}, "succeeded": {States: []work.State{work.Succeeded}}, "timed out": {States: []work.State{work.TimedOut}},
		"running":             {States: []work.State{work.Running}},
		"failed or timed out": {States: []work.State{work.Failed, work.TimedOut}},
		"backend of many":     {Backend: "mock"}, "backend of few": {Backend: "codex"}, "backend of none": {Backend: "gemini"},
		"backend and state":    {Backend: "codex", States: []work.State{work.Succeeded}},
		"backend and no state": {Backend: "mock", States: []work.State{work.Queued}},
		"class":                {Class: work.ClassTimeout}, "class of none": {Class: work.ClassAuth},
		"label of all": {Labels: map[string]string{"kind": "letter"}}, "label of one in twenty": {Labels: map[string]string{"project": "project-3"}},
		"label of few": {Labels: map[string]string{"customer": "c-17"}}, "label of none": {Labels: map[string]string{"none": "x"}},
		"title of all": {Search: "letter"}, "title of some": {Search: "harbour"}, "title of few": {Search: "zeppelin"},
		"title of none": {Search: "no such words"},
		"since":         {Since: time.Now().Add(-time.Hour)},
	} {
		f.Tenant = tenant
		p.check("list: "+what, page, func() error { _, _, err := p.Units.List(ctx, f); return err })
		f.After = middle
		p.check("in the middle of the list: "+what, page, func() error { _, _, err := p.Units.List(ctx, f); return err })
		f.After = uuid.Nil
		if f.States == nil {
			p.check("count: "+what, page, func() error { _, _, err := p.Units.Count(ctx, f, few); return err })
		}
	}
	for what, f := range map[string]RunFilter{
		"all": {}, "succeeded": {Statuses: []work.RunStatus{work.RunSucceeded}}, "timed out": {Statuses: []work.RunStatus{work.RunTimedOut}},
		"lost": {Statuses: []work.RunStatus{work.RunLost}}, "backend": {WorkerType: "codex"}, "unit": {Unit: middle}, "title": {Search: "zeppelin"},
	} {
		f.Tenant = tenant
		p.check("runs: "+what, page, func() error { _, _, err := p.Runs.List(ctx, f); return err })
		f.After = middle
		p.check("in the middle of the runs: "+what, page, func() error { _, _, err := p.Runs.List(ctx, f); return err })
	}
	p.check("unit", few, func() error { _, err := p.Units.Get(ctx, tenant, middle); return err })
	p.check("runs of a unit", few, func() error { _, err := p.Runs.OfUnit(ctx, middle); return err })
	p.check("live unit", few, func() error { _, _, err := p.Events.Unit(ctx, middle, 0); return err })
	p.check("heads", few, func() error { _, err := p.Events.Heads(ctx, []uuid.UUID{middle}); return err })

	moment, err := p.Events.Now(ctx)
	p.must(err)
	var c *Claimed
	p.check("accept and claim", few, func() error { c = p.run(); p.put(); return nil })
	p.check("append", few, func() error { return p.Transcripts.Append(ctx, Progress{RunID: c.RunID, LiveStatus: "busy"}) })
	p.check("changed units", few, func() error { _, _, err := p.Events.Changed(ctx, moment, few); return err })
	p.check("pending", few, func() error { _, err := p.Reconciler.Pending(ctx, CheckCursor{}); return err })
	p.check("expire leases", few, func() error { _, err := p.Runs.ExpireLeases(ctx); return err })
	p.check("expire deadlines", few, func() error { _, err := p.Units.ExpireDeadlines(ctx); return err })
	p.check("unchecked", few, func() error { _, _, err := p.Queues.Unchecked(ctx, CheckCursor{}, 500); return err })
	p.check("due", few, func() error { _, err := p.Queues.Due(ctx, []string{"default"}, []string{"mock"}, nil, 10); return err })
	p.check("recheck all", few, func() error { _, err := p.Queues.RecheckAll(ctx); return err })
	p.check("resume", few, func() error { _, err := p.Pauses.Resume(ctx, PauseBackend, "mock"); return err })
	p.check("clock back", few, func() error { _, err := p.Reconciler.ClockBack(ctx, time.Hour); return err })
	p.check("finish", few, func() error { _, err := p.Runs.Finish(ctx, ending(c, work.Succeeded)); return err })
	p.check("fold", few, func() error { _, err := p.Transcripts.FoldLost(ctx, few); return err })
	p.check("queues", few, func() error { _, err := p.Queues.List(ctx, tenant); return err })
	p.check("tally", few, func() error { _, err := p.Overview.Tally(ctx, tenant); return err })
	for _, w := range work.Windows {
		p.check("figures of "+w.Name, page, func() error { _, err := p.Overview.Figures(ctx, tenant, w, time.Now()); return err })
	}
	old := time.Now().Add(-80 * 24 * time.Hour)
	for range 2 { // the second time behind what the first has emptied
		p.check("prune transcripts", few+few/2, func() error { _, err := p.Retention.PruneTranscripts(ctx, old, few); return err })
	}
	p.check("prune units", 3*few, func() error { _, err := p.Retention.PruneUnits(ctx, tenant, old, few); return err })
	p.check("prune keys", few, func() error { _, err := p.Retention.PruneKeys(ctx, old, few); return err })
	p.check("prune provider batches", few, func() error { _, err := p.Retention.PruneProviderBatches(ctx, old, few); return err })
	p.check("purge batches", few, func() error { _, err := p.Retention.PurgeBatches(ctx, few); return err })

	// A backlog that came after the statistics, which know of no queued unit.
	var backlog []uuid.UUID
	p.must(p.db.SelectContext(ctx, &backlog, `INSERT INTO work_units (id, tenant, state, title, backend, queue, priority, prompt, payload, missing_key, timeout, idle_timeout, check_at, created_at)
		SELECT gen_random_uuid(), 'default', 'queued', 'waits', 'mock', 'default', 4, 'x', '{}', 'fail', 60, 60, now() + interval '1 hour', now() FROM generate_series(1, 2000) RETURNING id`))
	p.plans()
	byID := func(what string, do func() error) {
		t.Helper()
		p.must(do())
		for _, one := range p.plans() {
			if other := one.Plan.unitsOtherwise(); other != "" {
				t.Errorf("%s finds units by %s, whose id it knows\n%.3000s", what, other, one.Query)
			}
		}
	}
	byID("claim", func() error {
		if p.take(backlog[0], p.process) == nil {
			t.Error("nothing claimed")
		}
		return nil
	})
	bell := Message{UnitID: backlog[1], Number: 1}
	byID("untaken", func() error { _, err := p.Queues.Untaken(ctx, []Message{bell}); return err })
	byID("redispatch", func() error { _, err := p.Queues.Redispatch(ctx, backlog[1:3]); return err })
	byID("doubt", func() error { return p.Queues.Recheck(ctx, backlog[1:3]) })
	byID("defer", func() error { return p.Queues.Defer(ctx, backlog[1], p.process, time.Second) })
}

// check fails when a plan of what is done is about more than most rows.
func (p *planned) check(what string, most float64, do func() error) {
	p.t.Helper()
	p.plans()
	if err := do(); err != nil {
		p.t.Errorf("%s: %v", what, err)
	}
	plans := p.plans()
	if len(plans) == 0 {
		p.t.Errorf("%s: no plan was told", what)
	}
	for _, one := range plans {
		if bad := one.Plan.tooMuch(most); bad != nil {
			p.t.Errorf("%s: %s\n%.3000s", what, strings.Join(bad, "; "), one.Query)
		}
	}
}
