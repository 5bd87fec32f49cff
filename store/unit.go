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

// unitColumns is everything a unit's own row says, without a run's output.
const unitColumns = `id, tenant, state, title, backend, worker, model, queue, priority, labels, prompt, system_prompt,
    payload, files, working_directory, coalesce(output_schema, 'null') AS output_schema, coalesce(accept, 'null') AS accept, coalesce(project_settings, '') AS project_settings, coalesce(mcp_servers, '[]') AS mcp_servers, coalesce(request, 'null') AS request, missing_key, session_policy, on_denied, denials, max_turns, coalesce(cache_ttl, 0) AS cache_ttl, max_cost_usd,
    max_retries, timeout, idle_timeout, startup_timeout, not_before, deadline, expires_at, callback_url, run_count, failures, losses, waits, crashes, deaths, dispatch,
    cancel_requested_at, summary, error_class, error_message, coalesce(cache, '') AS cache, cached_from, ` + costColumns + `, created_at, started_at, finished_at,
    batch_id, coalesce(custom_id, '') AS custom_id, held, coalesce(nullif(lane, 'live'), '') AS lane`

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

// listColumns leaves out what may be large.
const listColumns = `id, tenant, state, title, backend, worker, model, queue, priority, labels, left(prompt, 500) AS prompt,
    '' AS system_prompt, '{}'::json AS payload, files, working_directory, 'null'::json AS output_schema, 'null'::json AS accept, coalesce(project_settings, '') AS project_settings, coalesce(mcp_servers, '[]') AS mcp_servers, 'null'::json AS request, missing_key, session_policy, on_denied, denials, max_turns, coalesce(cache_ttl, 0) AS cache_ttl, max_cost_usd,
    max_retries, timeout, idle_timeout, startup_timeout, not_before, deadline, expires_at, callback_url, run_count, failures, losses, waits, crashes, deaths, dispatch,
    cancel_requested_at, summary, error_class, left(error_message, 500) AS error_message, coalesce(cache, '') AS cache, cached_from, ` + costColumns + `, created_at,
    started_at, finished_at, batch_id, coalesce(custom_id, '') AS custom_id, held, coalesce(nullif(lane, 'live'), '') AS lane`

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
