package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// NewUnit is a unit that asks to be accepted.
type NewUnit struct {
	work.Unit
	Delay          work.Seconds // runs no sooner than this after it was accepted
	IdempotencyKey string       // empty: none
	BodyHash       []byte       // of the request that carries the key
	Turn           int          // when its batch lets it go: before those with a higher one
	// Row is what Encoded has made of the unit, for Batches.AddChunk; nil: it is made there.
	Row json.RawMessage
	// Delivery is the webhook that the unit is made of; nil for none. Only the
	// first of its name makes a unit; one that has made a batch makes none.
	Delivery *work.TriggerDelivery
}

func (n NewUnit) weight() int {
	return len(n.Prompt) + len(n.SystemPrompt) + len(n.Payload) + len(n.OutputSchema) + len(n.Request) + len(n.Accept)
}

type accepted struct {
	unit     work.Unit
	replayed bool
	err      error
}

// ErrKeyReused: the idempotency key came before with another body.
var ErrKeyReused = errors.New("idempotency key was used before with another body")

// ErrMadeBatch: the delivery that a unit was to be made of has made a batch
// before. Redelivered finds it.
var ErrMadeBatch = errors.New("this delivery has made a batch before")

// Accept commits a new unit, or finds the one that the same idempotency key, or
// the same delivery, made before and says so. When it returns nil the unit
// cannot be lost.
func (s *Units) Accept(ctx context.Context, n NewUnit) (work.Unit, bool, error) {
	out, err := s.accept.Do(ctx, n)
	if err = cmp.Or(err, out.err); err != nil {
		return work.Unit{}, false, fmt.Errorf("accept unit: %w", lostFile(err))
	}
	return out.unit, out.replayed, nil
}

// unitIn is one row for json_to_recordset; names are columns.
type unitIn struct {
	CustomID *string   `json:"custom_id,omitempty"`
	ID       uuid.UUID `json:"id"`
	Tenant   string    `json:"tenant"`
	Title    string    `json:"title"`
	work.Spec
	Delay          work.Seconds `json:"delay"`
	BatchID        *uuid.UUID   `json:"batch_id,omitempty"`
	Held           bool         `json:"held"`
	Turn           int          `json:"turn,omitempty"`
	Uploads        []uuid.UUID  `json:"uploads,omitempty"`
	IdempotencyKey *string      `json:"idempotency_key"`
	BodyHash       string       `json:"body_hash"`
	Trigger        string       `json:"trigger,omitempty"`
	Delivery       string       `json:"delivery,omitempty"`
	Event          string       `json:"event,omitempty"`
}

// In: $1 a JSON array of unitIn, no two of one delivery. Out: the rows that were
// new. A row whose key another caller has used is left out; so is one that
// repeats in the array, one whose custom id its batch has, and one whose delivery
// has made a unit before.
func insertUnits(columns string) string {
	return `
WITH r AS (` + unitsIn + `), first AS (
    INSERT INTO trigger_deliveries AS d (id, tenant, trigger, delivery, event, outcome, unit_id, received_at)
    SELECT id, tenant, trigger, delivery, coalesce(event, ''), 'accepted', id, clock_timestamp() FROM r WHERE trigger IS NOT NULL
    ON CONFLICT (tenant, trigger, delivery) DO UPDATE SET outcome = 'accepted', unit_id = excluded.unit_id, id = excluded.id, event = excluded.event,
        received_at = excluded.received_at, duplicates = d.duplicates + 1 WHERE d.outcome <> 'accepted'
    RETURNING unit_id
), fresh AS (` + insertInto + `
FROM r WHERE trigger IS NULL OR id IN (SELECT unit_id FROM first)
ON CONFLICT DO NOTHING
RETURNING *
), used AS (
    INSERT INTO unit_files (unit_id, file_id)
    SELECT fresh.id, u.file_id::uuid FROM fresh JOIN r ON r.id = fresh.id, json_array_elements_text(r.uploads) AS u(file_id)
)
SELECT ` + columns + ` FROM fresh`
}

// insertPlain is insertUnits for units without deliveries and files, which nearly all
// are. What is given is then not kept a second time for those.
func insertPlain(columns string) string {
	return insertInto + ` FROM (` + unitsIn + `) AS r ON CONFLICT DO NOTHING RETURNING ` + columns
}

const unitsIn = `
    SELECT *, CASE WHEN delay > 0 THEN clock_timestamp() + delay * interval '1 second' ELSE not_before END AS due
    FROM json_to_recordset($1) AS r(id uuid, tenant text, title text, backend text, worker text, model text,
        queue text, priority smallint, labels jsonb, prompt text, system_prompt text, payload json, files jsonb, uploads json,
        working_directory text, output_schema json, accept json, project_settings text, mcp_servers jsonb, request json, missing_key text, session_policy text, on_denied text, max_turns integer, cache_ttl double precision,
        max_cost_usd double precision, max_retries integer, timeout double precision, idle_timeout double precision, startup_timeout double precision,
        not_before timestamptz, delay double precision, deadline timestamptz, expires_at timestamptz, callback_url text, batch_id uuid, custom_id text, held boolean, turn integer, lane text,
        idempotency_key text, body_hash text, trigger text, delivery text, event text)`

const insertInto = `
INSERT INTO work_units (id, tenant, state, title, backend, worker, model, queue, priority, labels, prompt,
    system_prompt, payload, files, working_directory, output_schema, accept, project_settings, mcp_servers, request, missing_key, session_policy, on_denied, max_turns, cache_ttl,
    max_cost_usd, max_retries, timeout, idle_timeout, startup_timeout, not_before, deadline, expires_at, callback_url, batch_id, custom_id, held, turn, lane, check_at, created_at, idempotency_key, body_hash)
SELECT id, tenant, CASE WHEN lane = 'batch' AND NOT held THEN 'waiting' ELSE 'queued' END, title, backend, coalesce(worker, ''), coalesce(model, ''), queue, priority, labels, prompt,
    coalesce(system_prompt, ''), payload, coalesce(files, '[]'), coalesce(working_directory, ''), output_schema, accept, nullif(project_settings, ''), mcp_servers, request, missing_key,
    coalesce(nullif(session_policy, ''), 'resume'), coalesce(nullif(on_denied, ''), 'fail'), coalesce(max_turns, 0), cache_ttl, max_cost_usd, max_retries, timeout, idle_timeout, coalesce(startup_timeout, 0), due, deadline, expires_at, callback_url, batch_id, custom_id, held, coalesce(turn, 0), coalesce(nullif(lane, ''), 'live'),
    CASE WHEN held THEN 'infinity' ELSE coalesce(due, clock_timestamp() + interval '2 seconds') END, clock_timestamp(), idempotency_key, decode(body_hash, 'hex')`

// freshRow is what Postgres has decided about a unit that is new.
type freshRow struct {
	ID            uuid.UUID       `db:"id"`
	State         work.State      `db:"state"`
	Labels        json.RawMessage `db:"labels"`
	NotBefore     *time.Time      `db:"not_before"`
	CreatedAt     time.Time       `db:"created_at"`
	Dispatch      int             `db:"dispatch"`
	SessionPolicy string          `db:"session_policy"`
	OnDenied      string          `db:"on_denied"`
}

const freshColumns = `id, state, labels, not_before, created_at, dispatch, session_policy, on_denied`

// These are made once: a connection knows its prepared statements by their texts.
var (
	acceptUnits = insertUnits(freshColumns)
	acceptPlain = insertPlain(freshColumns)
)

// unit is the unit as it would be read: n with what Postgres has decided.
func (r freshRow) unit(n NewUnit) work.Unit {
	u := n.Unit
	u.State, u.Labels, u.NotBefore, u.CreatedAt, u.Dispatch = r.State, r.Labels, r.NotBefore, r.CreatedAt, r.Dispatch
	u.SessionPolicy, u.OnDenied = r.SessionPolicy, r.OnDenied
	u.Cost = work.NewCost(0, 0)
	return u
}

func (n NewUnit) row() unitIn {
	in := unitIn{ID: n.ID, Tenant: n.Tenant, Title: n.Title, Spec: n.Spec, Delay: n.Delay, BatchID: n.BatchID, Held: n.Held, Turn: n.Turn,
		Uploads: n.Uploads(), BodyHash: fmt.Sprintf("%x", n.BodyHash)}
	if n.BatchID != nil {
		id := work.Clean(n.CustomID)
		in.CustomID = &id
	}
	if key := work.Clean(n.IdempotencyKey); key != "" {
		in.IdempotencyKey = &key
	}
	if d := n.Delivery; d != nil {
		in.Trigger, in.Delivery, in.Event = d.Trigger, d.Delivery, work.Clean(d.Event)
	}
	return in
}

// Encoded is the row of a unit of a batch: an object whose first fields are
// custom_id and id. It may be kept, also for a later version of this program.
func (n NewUnit) Encoded() (json.RawMessage, error) {
	text, err := pg.Encode(n.row())
	return json.RawMessage(text), err
}

func (s *Units) acceptAll(ctx context.Context, rows []NewUnit) ([]accepted, error) {
	in, statement := make([]unitIn, 0, len(rows)), acceptPlain
	seen := map[deliveryKey]bool{}
	for _, n := range rows {
		if n.Delivery != nil {
			if seen[keyOf(*n.Delivery)] {
				continue // it finds the unit of the first
			}
			seen[keyOf(*n.Delivery)] = true
		}
		row := n.row()
		if n.Delivery != nil || len(row.Uploads) > 0 {
			statement = acceptUnits
		}
		in = append(in, row)
	}
	// Two processes that insert the same keys must meet them in one order, or
	// each waits for the other.
	slices.SortFunc(in, func(a, b unitIn) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(deref(a.IdempotencyKey), deref(b.IdempotencyKey)),
			strings.Compare(a.Trigger, b.Trigger), strings.Compare(a.Delivery, b.Delivery))
	})
	param, err := pg.Encode(in)
	if err != nil {
		return nil, err
	}
	var fresh []freshRow
	if err := s.db.Hot.SelectContext(pg.Prepare(ctx), &fresh, statement, param); err != nil {
		return nil, err
	}
	made := make(map[uuid.UUID]freshRow, len(fresh))
	for _, row := range fresh {
		made[row.ID] = row
	}
	outs := make([]accepted, len(rows))
	var again []int
	for i, n := range rows {
		if row, ok := made[n.ID]; ok {
			outs[i] = accepted{unit: row.unit(n)}
		} else if n.Delivery != nil {
			again = append(again, i)
		} else {
			outs[i] = s.replay(ctx, n)
		}
	}
	return outs, s.redelivered(ctx, rows, again, outs)
}

// Before returns the unit that an idempotency key made before. It is
// work.ErrNotFound when the key is new, and ErrKeyReused when it came with
// another body.
func (s *Units) Before(ctx context.Context, tenant, key string, bodyHash []byte) (work.Unit, error) {
	out := s.replay(ctx, NewUnit{Unit: work.Unit{Tenant: tenant}, IdempotencyKey: key, BodyHash: bodyHash})
	return out.unit, out.err
}

// replay finds the unit that stood in n's way: the one its key made before,
// or n itself, committed by a statement whose answer was lost and which the
// driver has repeated. Its error is n's alone: the others are committed.
func (s *Units) replay(ctx context.Context, n NewUnit) accepted {
	var row struct {
		unitRow
		SameBody bool `db:"same_body"`
	}
	err := s.db.GetContext(ctx, &row, `SELECT `+unitColumns+`, coalesce(body_hash = $4, false) AS same_body FROM work_units
		WHERE id = $1 OR tenant = $2 AND idempotency_key = $3`, n.ID, n.Tenant, work.Clean(n.IdempotencyKey), n.BodyHash)
	switch {
	case err != nil:
		return accepted{err: pg.Translate(err)}
	case row.ID == n.ID:
		return accepted{unit: row.unit()}
	case !row.SameBody:
		return accepted{err: ErrKeyReused}
	}
	return accepted{unit: row.unit(), replayed: true}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
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

// Place is where a queued unit stands among the others.
type Place struct {
	Scheduled bool `db:"scheduled"` // it is not due yet
	Ahead     int  `db:"ahead"`     // due units of its queue and backend that go before it, maxAhead at most
}

const maxAhead = 10_000

// Place tells where a queued unit stands.
func (s *Queues) Place(ctx context.Context, u work.Unit) (Place, error) {
	var p Place
	err := s.db.GetContext(ctx, &p, `SELECT coalesce((SELECT not_before > clock_timestamp() FROM work_units WHERE id = $1), false) AS scheduled,
		(SELECT count(*) FROM (SELECT FROM work_units WHERE state = 'queued' AND NOT held AND queue = $2 AND backend = $3
			AND (not_before IS NULL OR not_before <= clock_timestamp())
			AND (priority > $4 OR priority = $4 AND id < $1) LIMIT $5) AS before) AS ahead`,
		u.ID, u.Queue, u.Backend, u.Priority, maxAhead)
	if err != nil {
		return p, pg.Translate(fmt.Errorf("find the place of unit %s: %w", u.ID, err))
	}
	return p, nil
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
