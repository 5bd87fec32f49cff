package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Units are units of work: accepted, read, changed, deleted.
type Units struct {
	db     *pg.DB
	accept *pg.Group[NewUnit, accepted]
}

// unitColumn is a column of work_units. It is named here and nowhere else: how it is
// read, how lists read it, and how a new unit gets it.
type unitColumn struct {
	name string
	read string // empty: as it is; notRead: only statements about the database itself look at it
	list string // empty: as it is read
	kind string // its type in the array of new units; empty: they do not give it
	put  string // what is inserted; empty: what was given, or else the column's default
}

const notRead = "-"

var columnsOfUnits = []unitColumn{
	{name: "id", kind: "uuid"},
	{name: "tenant", kind: "text"},
	{name: "state", put: `CASE WHEN lane = 'batch' AND NOT held THEN 'waiting' ELSE 'queued' END`},
	{name: "title", kind: "text"},
	{name: "backend", kind: "text"},
	{name: "worker", kind: "text", put: `coalesce(worker, '')`},
	{name: "model", kind: "text", put: `coalesce(model, '')`},
	{name: "queue", kind: "text"},
	{name: "priority", kind: "smallint"},
	{name: "labels", kind: "jsonb"},
	{name: "prompt", kind: "text", list: `left(prompt, 500)`},
	{name: "system_prompt", kind: "text", put: `coalesce(system_prompt, '')`, list: `''`},
	{name: "payload", kind: "json", list: `'{}'::json`},
	{name: "files", kind: "jsonb", put: `coalesce(files, '[]')`},
	{name: "working_directory", kind: "text", put: `coalesce(working_directory, '')`},
	{name: "output_schema", kind: "json", read: `coalesce(output_schema, 'null')`, list: `'null'::json`},
	{name: "accept", kind: "json", read: `coalesce(accept, 'null')`, list: `'null'::json`},
	{name: "project_settings", kind: "text", put: `nullif(project_settings, '')`, read: `coalesce(project_settings, '')`},
	{name: "mcp_servers", kind: "jsonb", read: `coalesce(mcp_servers, '[]')`},
	{name: "request", kind: "json", read: `coalesce(request, 'null')`, list: `'null'::json`},
	{name: "missing_key", kind: "text"},
	{name: "session_policy", kind: "text", put: `coalesce(nullif(session_policy, ''), 'resume')`},
	{name: "on_denied", kind: "text", put: `coalesce(nullif(on_denied, ''), 'fail')`},
	{name: "denials"},
	{name: "max_turns", kind: "integer", put: `coalesce(max_turns, 0)`},
	{name: "cache_ttl", kind: "double precision", read: `coalesce(cache_ttl, 0)`},
	{name: "max_cost_usd", kind: "double precision"},
	{name: "max_retries", kind: "integer"},
	{name: "timeout", kind: "double precision"},
	{name: "idle_timeout", kind: "double precision"},
	{name: "startup_timeout", kind: "double precision", put: `coalesce(startup_timeout, 0)`},
	{name: "not_before", kind: "timestamptz", put: `due`},
	{name: "deadline", kind: "timestamptz"},
	{name: "expires_at", kind: "timestamptz"},
	{name: "callback_url", kind: "text"},
	{name: "run_count"}, {name: "failures"}, {name: "losses"}, {name: "waits"}, {name: "crashes"}, {name: "deaths"}, {name: "dispatch"},
	{name: "cancel_requested_at"},
	{name: "summary"},
	{name: "error_class"},
	{name: "error_message", list: `left(error_message, 500)`},
	{name: "cache", read: `coalesce(cache, '')`},
	{name: "cached_from"},
	{name: "cost_usd"}, {name: "unpriced_runs"},
	{name: "created_at", put: `clock_timestamp()`},
	{name: "started_at"}, {name: "finished_at"},
	{name: "batch_id", kind: "uuid"},
	{name: "custom_id", kind: "text", read: `coalesce(custom_id, '')`},
	{name: "held", kind: "boolean"},
	{name: "lane", kind: "text", put: `coalesce(nullif(lane, ''), 'live')`, read: `coalesce(nullif(lane, 'live'), '')`},

	{name: "turn", kind: "integer", put: `coalesce(turn, 0)`, read: notRead},
	{name: "check_at", put: `CASE WHEN held THEN 'infinity' ELSE coalesce(due, clock_timestamp() + interval '2 seconds') END`, read: notRead},
	{name: "idempotency_key", kind: "text", read: notRead},
	{name: "body_hash", kind: "text", put: `decode(body_hash, 'hex')`, read: notRead},
	{name: "resume_session", read: notRead}, {name: "session_cost_usd", read: notRead}, {name: "final_run", read: notRead},
	{name: "provider_batch", read: notRead}, {name: "runs_live", read: notRead}, {name: "changed", read: notRead},
}

// eachColumn joins what f makes of the columns; empty: it leaves one out.
func eachColumn(f func(unitColumn) string) string {
	var parts []string
	for _, c := range columnsOfUnits {
		if part := f(c); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ", ")
}

// unitColumns is everything a unit's own row says, without a run's output;
// listColumns leaves out what may be large.
var (
	unitColumns = eachColumn(func(c unitColumn) string { return c.selected(c.read) })
	listColumns = eachColumn(func(c unitColumn) string { return c.selected(cmp.Or(c.list, c.read)) })
)

func (c unitColumn) selected(as string) string {
	switch {
	case c.read == notRead:
		return ""
	case as == "":
		return c.name
	}
	return as + " AS " + c.name
}

type unitRow struct {
	work.Unit
	costRow
	ErrorClass   *string `db:"error_class"`
	ErrorMessage *string `db:"error_message"`
}

func (r unitRow) unit() work.Unit {
	u := r.Unit
	if string(u.OutputSchema) == "null" {
		u.OutputSchema = nil
	}
	if string(u.Accept) == "null" {
		u.Accept = nil
	}
	if string(u.Request) == "null" {
		u.Request = nil
	}
	u.Cost, u.Error = r.cost(), failure(r.ErrorClass, r.ErrorMessage)
	return u
}

// unpriced is the condition that the cost of a run is not known, or not all of
// it, for a run that is over. alias is a row with the columns of worker_runs.
func unpriced(alias string) string {
	return `(` + alias + `.total_cost_usd IS NULL OR ` + alias + `.cost_incomplete)`
}

// costColumns are the two columns of work_units that a costRow reads, and
// sumOfCosts adds them up.
const (
	costColumns = `cost_usd, unpriced_runs`
	sumOfCosts  = `coalesce(sum(cost_usd), 0) AS cost_usd, coalesce(sum(unpriced_runs), 0)::bigint AS unpriced_runs`
)

// costRow is a cost as the database has it: what is known, and of how many runs
// it is not all.
type costRow struct {
	Known    float64 `db:"cost_usd"`
	Unpriced int64   `db:"unpriced_runs"`
}

func (r costRow) cost() work.Cost { return work.NewCost(r.Known, r.Unpriced) }

func failure(class, message *string) *work.Failure {
	if class == nil {
		return nil
	}
	return work.Fail(work.Class(*class), deref(message))
}

// Get returns one unit with the whole output of its final run.
func (s *Units) Get(ctx context.Context, tenant string, id uuid.UUID) (work.Unit, error) {
	var row unitRow
	err := s.db.GetContext(ctx, &row, `SELECT `+unitColumns+`,
		(SELECT result FROM worker_runs WHERE worker_runs.id = work_units.final_run) AS output
		FROM work_units WHERE id = $1 AND tenant = $2`, id, tenant)
	if err != nil {
		return work.Unit{}, pg.Translate(fmt.Errorf("read unit %s: %w", id, err))
	}
	return row.unit(), nil
}

// State returns the state of one unit: all that whoever waits for its end asks again
// and again.
func (s *Units) State(ctx context.Context, tenant string, id uuid.UUID) (state work.State, err error) {
	if err := s.db.GetContext(ctx, &state, `SELECT state FROM work_units WHERE id = $1 AND tenant = $2`, id, tenant); err != nil {
		return "", pg.Translate(fmt.Errorf("read the state of unit %s: %w", id, err))
	}
	return state, nil
}

// UnitFilter chooses units of one tenant; zero fields choose all.
type UnitFilter struct {
	Tenant  string
	States  []work.State
	Backend string
	Worker  string
	Batch   uuid.UUID
	Class   work.Class // of the error
	Labels  map[string]string
	Search  string    // part of the title, in any case
	Since   time.Time // when it was accepted, at the earliest
	IDs     []uuid.UUID
	After   uuid.UUID // the last id of the page before
	Limit   int       // 0: 50
}

// where is the filter as conditions. $1 is the tenant. What units are searched by is
// one look into unit_search, from where the page begins.
func (f UnitFilter) where() (w pg.Where) {
	w.Add("tenant = ?", f.Tenant)
	w.AddIf(len(f.States) == 1, "state = ?", pg.First(f.States))
	w.AddIf(len(f.States) > 1, "state = ANY(?)", pg.TextArray(f.States))
	w.AddIf(f.Worker != "", "worker = ?", f.Worker)
	w.AddIf(f.Batch != uuid.Nil, "batch_id = ?", f.Batch)
	w.AddIf(f.Class != "", "error_class = ?", string(f.Class))
	w.AddIf(len(f.IDs) > 0, "id = ANY(?)", pq.Array(f.IDs))
	w.AddIf(f.After != uuid.Nil, "id < ?", f.After)
	s := pg.Where{Args: w.Args}
	s.AddIf(f.Backend != "", "s.backend = ?", f.Backend)
	s.AddIf(f.Search != "", "s.title ILIKE ?", "%"+pg.EscapeLike(f.Search)+"%")
	s.AddIf(!f.Since.IsZero(), "s.created_at >= ?", f.Since)
	if len(f.Labels) > 0 {
		labels, _ := json.Marshal(f.Labels) // texts always can be
		// The index has no unit without labels.
		s.Add("s.labels <> '{}' AND s.labels @> ?", string(labels))
	}
	if len(s.Conds) > 0 {
		s.AddIf(f.After != uuid.Nil, "s.unit_id < ?", f.After)
		w.Conds, w.Args = append(w.Conds, "id IN (SELECT unit_id FROM unit_search s WHERE s.tenant = $1 AND "+s.Text()+")"), s.Args
	}
	return w
}

// List lists units, newest first, and tells the id to go on after when there
// are more.
func (s *Units) List(ctx context.Context, f UnitFilter) ([]work.Unit, *uuid.UUID, error) {
	f.Limit = cmp.Or(f.Limit, pg.DefaultLimit)
	w := f.where()
	var rows []unitRow
	if err := s.db.Page(ctx, &rows, `SELECT `+listColumns+` FROM work_units`, "id", w, f.Limit); err != nil {
		return nil, nil, fmt.Errorf("list units: %w", err)
	}
	units := make([]work.Unit, 0, len(rows))
	for _, r := range rows {
		units = append(units, r.unit())
	}
	return pg.CutPage(units, f.Limit, func(u work.Unit) uuid.UUID { return u.ID })
}

// Count tells how many units of a filter are in each state; of one state it
// counts no more than most. What is searched for is counted among the newest most
// units that are found: it says whether these are all.
func (s *Units) Count(ctx context.Context, f UnitFilter, most int) (counts map[work.State]int, whole bool, err error) {
	w, wide := f.where(), f.wide()
	query := `SELECT state, count(*) FROM (SELECT state FROM work_units WHERE ` + w.Text() + ` ORDER BY id DESC LIMIT ` + w.Arg(most) + `) found GROUP BY state`
	if wide { // each state is the beginning of an index, and one by one Postgres knows which of them are rare
		limit := fmt.Sprintf("$%d", len(w.Args))
		var each []string
		for _, state := range work.States {
			this := w.Arg(string(state))
			each = append(each, `SELECT `+this+`::text AS state, count(*) FROM (SELECT FROM work_units WHERE state = `+this+` AND `+w.Text()+` LIMIT `+limit+`) found`)
		}
		query = strings.Join(each, " UNION ALL ")
	}
	var rows []stateCount
	if err := s.db.SelectContext(ctx, &rows, query, w.Args...); err != nil {
		return nil, false, pg.Translate(fmt.Errorf("count units: %w", err))
	}
	counts = make(map[work.State]int, len(work.States))
	for _, state := range work.States {
		counts[state] = 0
	}
	sum := 0
	for _, r := range rows {
		counts[r.State] = r.Count
		sum += r.Count
	}
	return counts, wide || sum < most, nil
}

// wide is true for all units, and for all of a batch.
func (f UnitFilter) wide() bool {
	f.Tenant, f.Batch, f.Limit = "", uuid.Nil, 0
	return len(f.where().Conds) == 1
}

type stateCount struct {
	State work.State
	Count int
}

// ModelOf returns the model of a unit.
func (s *Units) ModelOf(ctx context.Context, unit uuid.UUID) (ModelOf, error) {
	var of ModelOf
	if err := s.db.GetContext(ctx, &of, `SELECT backend, model FROM work_units WHERE id = $1`, unit); err != nil {
		return of, pg.Translate(fmt.Errorf("read the model of unit %s: %w", unit, err))
	}
	return of, nil
}

// ModelOf names a model of a backend, as units do: empty is the backend's own.
type ModelOf struct {
	Backend string `db:"backend"`
	Model   string `db:"model"`
}
