package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Runs are the tries at units: claimed, finished, given up, read.
type Runs struct {
	db     *pg.DB
	claim  *pg.Group[Claim, claimAnswer]
	finish *pg.Group[Finish, Verdict]
}

// Claim asks for a unit on behalf of a worker process.
type Claim struct {
	UnitID    uuid.UUID
	RunID     uuid.UUID
	Process   uuid.UUID
	SessionID string
	Backends  []string // that the process can run
	Alone     bool     // the process runs nothing else, so it may have a suspect
}

// Claimed is a unit that is this worker process's to run.
type Claimed struct {
	work.Unit
	RunID          uuid.UUID
	SessionID      string         // for a session that begins anew
	ResumeSession  string         // the session to go on with; empty: begin anew
	SessionCostUSD float64        // what that session has cost so far
	Left           *time.Duration // until the deadline, on Postgres's clock
}

// Claim makes a queued and due unit running and opens its run. It returns nil
// when there is nothing to claim: another has it, it is over, or it is paused. Repeating a
// claim whose commit is unknown is safe: its run id gets the same answer.
// It returns ErrSuspect for a unit that must be claimed alone.
func (s *Runs) Claim(ctx context.Context, c Claim) (*Claimed, error) {
	out, err := s.claim.Do(ctx, c)
	if err = cmp.Or(err, out.err); err != nil {
		return nil, fmt.Errorf("claim unit %s: %w", c.UnitID, err)
	}
	return out.claimed, nil
}

// ErrSuspect: the unit may be what kills its worker processes, and is given to
// one that runs nothing else.
var ErrSuspect = errors.New("a suspect is to run alone")

type claimAnswer struct {
	claimed *Claimed
	err     error
}

// In: $1..$5 arrays of unit, run, process, session, and backends with commas
// around each, $6 an array of whether alone, $7 how many deaths make a suspect.
// Out: the units that were claimed, each with its run. A unit that is asked for twice is given once,
// and none to a run that is there already: its claim was repeated.
// Rows are locked in id order so that two processes cannot wait for each
// other.
var claimUnits = `
WITH asked AS (
    SELECT DISTINCT ON (unit_id) * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::bool[])
        AS a(unit_id, run_id, process, session_id, backends, alone)
    WHERE NOT EXISTS (SELECT FROM worker_runs r WHERE r.id = a.run_id) ORDER BY unit_id
), ripe AS (
    SELECT u.id FROM work_units u JOIN asked ON asked.unit_id = u.id
    WHERE ` + isQueued + ` AND NOT u.held AND strpos(asked.backends, ',' || u.backend || ',') > 0 AND (u.not_before IS NULL OR u.not_before <= clock_timestamp())
        AND (u.deadline IS NULL OR u.deadline > clock_timestamp())
        AND (u.expires_at IS NULL OR u.expires_at > clock_timestamp() OR u.started_at IS NOT NULL)
        AND (u.deaths < $7 OR asked.alone) AND ` + notPaused + `
    ORDER BY u.id FOR UPDATE OF u
), taken AS (
    UPDATE work_units u SET state = 'running', run_count = u.run_count + 1,
        started_at = coalesce(u.started_at, clock_timestamp())
    FROM ripe WHERE u.id = ripe.id AND ` + isQueued + ` RETURNING u.*
), opened AS (
    INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, worker_process, status, model, session_id, started_at, rev)
    SELECT a.run_id, t.tenant, t.id, t.run_count, t.backend, a.process, 'running', nullif(t.model, ''),
        coalesce(t.resume_session, a.session_id), clock_timestamp(), 0
    FROM taken t JOIN asked a ON a.unit_id = t.id
)
SELECT ` + claimedColumns + `, a.run_id FROM taken JOIN asked a ON a.unit_id = taken.id`

// isQueued holds for a queued unit, in statements that name their units. Written so,
// it keeps Postgres from the partial indexes of queued units: a plan that was made
// when few were queued would read the whole queue for each claim.
const isQueued = `state IS NOT DISTINCT FROM 'queued'`

var claimedColumns = unitColumns + `, coalesce(resume_session, '') AS resume_session, session_cost_usd,
    extract(epoch FROM deadline - clock_timestamp())::double precision AS left_s`

type claimedRow struct {
	unitRow
	RunID          uuid.UUID `db:"run_id"`
	ResumeSession  string    `db:"resume_session"`
	SessionCostUSD float64   `db:"session_cost_usd"`
	Left           *float64  `db:"left_s"`
}

func (r claimedRow) claimed() *Claimed {
	c := &Claimed{Unit: r.unit(), RunID: r.RunID, ResumeSession: r.ResumeSession, SessionCostUSD: r.SessionCostUSD}
	if r.Left != nil {
		left := work.Seconds(*r.Left).Duration()
		c.Left = &left
	}
	return c
}

// held finds the units whose live run is one of runs. The driver repeats a
// statement when the connection breaks, also one that was committed: without
// this look the unit would stay with a worker process that knows nothing of
// it. It is a statement of its own to see what the claim has waited for.
func (s *Runs) held(ctx context.Context, runs []string) ([]claimedRow, error) {
	var rows []claimedRow
	err := s.db.SelectContext(ctx, &rows, `SELECT `+claimedColumns+`, run_id FROM work_units
		JOIN (SELECT id AS run_id, unit_id, attempt FROM worker_runs WHERE id = ANY($1::uuid[]) AND status = 'running') AS r
		ON r.unit_id = work_units.id AND r.attempt = run_count`, pq.Array(runs))
	return rows, err
}

// suspects finds those of units that are due and must be claimed alone.
func (s *Runs) suspects(ctx context.Context, units []string) (map[uuid.UUID]bool, error) {
	var ids []uuid.UUID
	err := s.db.SelectContext(ctx, &ids, `SELECT id FROM work_units u WHERE id = ANY($1::uuid[]) AND `+isQueued+` AND NOT held AND deaths >= $2
		AND (not_before IS NULL OR not_before <= clock_timestamp()) AND `+notPaused,
		pq.Array(units), work.SuspectDeaths)
	found := make(map[uuid.UUID]bool, len(ids))
	for _, id := range ids {
		found[id] = true
	}
	return found, err
}

func (s *Runs) claimAll(ctx context.Context, claims []Claim) ([]claimAnswer, error) {
	units, runs := make([]string, len(claims)), make([]string, len(claims))
	processes, sessions, backends := make([]string, len(claims)), make([]string, len(claims)), make([]string, len(claims))
	alone := make([]bool, len(claims))
	for i, c := range claims {
		units[i], runs[i], processes[i], sessions[i] = c.UnitID.String(), c.RunID.String(), c.Process.String(), c.SessionID
		backends[i], alone[i] = ","+strings.Join(c.Backends, ",")+",", c.Alone
	}
	var rows []claimedRow
	if err := s.db.Hot.SelectContext(pg.Prepare(ctx), &rows, claimUnits, pq.Array(units), pq.Array(runs), pq.Array(processes),
		pq.Array(sessions),
		pq.Array(backends), pq.Array(alone), work.SuspectDeaths); err != nil {
		return nil, err
	}
	var suspects map[uuid.UUID]bool
	if len(rows) < len(claims) {
		held, err := s.held(ctx, runs)
		if err != nil {
			return nil, err
		}
		rows = append(rows, held...)
		if suspects, err = s.suspects(ctx, units); err != nil {
			return nil, err
		}
	}
	byRun := make(map[uuid.UUID]*Claimed, len(rows))
	for _, r := range rows {
		byRun[r.RunID] = r.claimed()
	}
	outs := make([]claimAnswer, len(claims))
	for i, c := range claims {
		claimed := byRun[c.RunID]
		if claimed != nil {
			claimed.SessionID = c.SessionID
		} else if suspects[c.UnitID] && !c.Alone {
			outs[i].err = ErrSuspect
		}
		outs[i].claimed = claimed
	}
	return outs, nil
}

// runColumns is a run without its prompt, result and transcript.
const runColumns = `r.id, r.unit_id, r.attempt, r.worker_type, r.worker_process, r.status, r.live_status, r.model,
    left(r.error_message, 2000) AS error_message, r.error_class, r.session_id, r.num_turns, r.tool_calls, r.denials, r.input_tokens,
    r.output_tokens, r.cache_read_tokens, r.cache_creation_tokens, r.total_cost_usd, r.cost_incomplete, r.duration_ms,
    r.duration_api_ms, r.execution_time, r.implausible, r.output_files, r.started_at, r.completed_at, u.title,
    (SELECT t.removed_at FROM transcripts t WHERE t.run_id = r.id) AS transcript_removed_at,
    -- No EXISTS: for one run Postgres would read the whole table into a hash.
    coalesce((SELECT true FROM transcripts t WHERE t.run_id = r.id AND t.removed_at IS NULL),
        (SELECT true FROM transcript_chunks c WHERE c.run_id = r.id LIMIT 1), false) AS has_transcript`

type runRow struct {
	work.Run
	work.Usage
	ErrorClass   *string        `db:"error_class"`
	ErrorMessage *string        `db:"error_message"`
	Files        []byte         `db:"output_files"`
	Implausible  pq.StringArray `db:"implausible"`
}

func (r runRow) run() (work.Run, error) {
	run := r.Run
	run.Implausible = r.Implausible
	run.Usage, run.Error = r.Usage, failure(r.ErrorClass, r.ErrorMessage)
	if err := json.Unmarshal(r.Files, &run.OutputFiles); err != nil {
		return run, fmt.Errorf("read output files of run %s: %w", run.ID, err)
	}
	return run, nil
}

func runsOf(rows []runRow) ([]work.Run, error) {
	runs := make([]work.Run, 0, len(rows))
	for _, row := range rows {
		run, err := row.run()
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// Get returns one run with its prompt and result.
func (s *Runs) Get(ctx context.Context, tenant string, id uuid.UUID) (work.Run, error) {
	var row runRow
	err := s.db.GetContext(ctx, &row, `SELECT `+runColumns+`, r.rendered_prompt, r.result
		FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE r.id = $1 AND r.tenant = $2`, id, tenant)
	if err != nil {
		return work.Run{}, pg.Translate(fmt.Errorf("read run %s: %w", id, err))
	}
	return row.run()
}

// MaxUnitRuns is how many runs are read with their unit. Losses and waits use
// up no retry, so a unit can have thousands.
const MaxUnitRuns = 100

// maxRunTexts bounds the prompts and results that are read with them, in bytes.
const maxRunTexts = 32 << 20

// OfUnit returns the newest MaxUnitRuns runs of a unit, oldest first, with
// prompts and results: those of the newest, and of others from there on while
// the newer ones together have at most maxRunTexts.
func (s *Runs) OfUnit(ctx context.Context, unit uuid.UUID) ([]work.Run, error) {
	var rows []runRow
	err := s.db.SelectContext(ctx, &rows, `SELECT `+runColumns+`,
		CASE WHEN newer <= $3 THEN r.rendered_prompt END AS rendered_prompt, CASE WHEN newer <= $3 THEN r.result END AS result
		FROM (SELECT *, coalesce(sum(coalesce(octet_length(rendered_prompt), 0) + coalesce(octet_length(result), 0))
				OVER (ORDER BY attempt DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS newer
			FROM worker_runs WHERE unit_id = $1 ORDER BY attempt DESC LIMIT $2) r
		JOIN work_units u ON u.id = r.unit_id ORDER BY r.attempt`, unit, MaxUnitRuns, maxRunTexts)
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("read runs of unit %s: %w", unit, err))
	}
	return runsOf(rows)
}

// UnitUsage adds up what all runs of a unit have used.
func (s *Runs) UnitUsage(ctx context.Context, unit uuid.UUID) (work.Usage, error) {
	var all work.Usage
	err := s.db.GetContext(ctx, &all, `SELECT coalesce(sum(input_tokens), 0)::bigint AS input_tokens, coalesce(sum(output_tokens), 0)::bigint AS output_tokens,
		coalesce(sum(cache_read_tokens), 0)::bigint AS cache_read_tokens, coalesce(sum(cache_creation_tokens), 0)::bigint AS cache_creation_tokens
		FROM worker_runs WHERE unit_id = $1`, unit)
	if err != nil {
		return all, pg.Translate(fmt.Errorf("read usage of unit %s: %w", unit, err))
	}
	return all, nil
}

// Live returns the runs that go on of the given units, by unit: when each
// began, its tool calls so far and what it is about.
func (s *Runs) Live(ctx context.Context, units []uuid.UUID) (map[uuid.UUID]work.Run, error) {
	var rows []work.Run
	err := s.db.SelectContext(ctx, &rows, `SELECT id, unit_id, attempt, live_status, tool_calls, started_at
		FROM worker_runs WHERE unit_id = ANY($1) AND status = 'running'`, pq.Array(units))
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("read live runs: %w", err))
	}
	runs := make(map[uuid.UUID]work.Run, len(rows))
	for _, r := range rows {
		runs[r.UnitID] = r
	}
	return runs, nil
}

// RunFilter chooses runs of one tenant; zero fields choose all.
type RunFilter struct {
	Tenant     string
	Statuses   []work.RunStatus
	WorkerType string
	Unit       uuid.UUID
	Search     string
	After      uuid.UUID
	Limit      int // 0: 50
}

// List lists runs, newest first, and tells the id to go on after when there
// are more.
func (s *Runs) List(ctx context.Context, f RunFilter) ([]work.Run, *uuid.UUID, error) {
	f.Limit = cmp.Or(f.Limit, pg.DefaultLimit)
	var w pg.Where
	w.Add("r.tenant = ?", f.Tenant)
	w.AddIf(f.After != uuid.Nil, "r.id < ?", f.After)
	w.AddIf(len(f.Statuses) == 1, "r.status = ?", string(pg.First(f.Statuses)))
	w.AddIf(len(f.Statuses) > 1, "r.status = ANY(?)", pg.TextArray(f.Statuses))
	w.AddIf(f.WorkerType != "", "r.worker_type = ?", f.WorkerType)
	w.AddIf(f.Unit != uuid.Nil, "r.unit_id = ?", f.Unit)
	w.AddIf(f.Search != "", "u.id IN (SELECT unit_id FROM unit_search s WHERE s.title ILIKE ?)", "%"+pg.EscapeLike(f.Search)+"%")
	var rows []runRow
	query := `SELECT ` + runColumns + ` FROM worker_runs r JOIN work_units u ON u.id = r.unit_id`
	if err := s.db.Page(ctx, &rows, query, "r.id", w, f.Limit); err != nil {
		return nil, nil, fmt.Errorf("list runs: %w", err)
	}
	runs, err := runsOf(rows)
	if err != nil {
		return nil, nil, err
	}
	return pg.CutPage(runs, f.Limit, func(r work.Run) uuid.UUID { return r.ID })
}

// Cached is a result that a unit may take over.
type Cached struct {
	RunID       uuid.UUID
	Result      string
	Model       string
	OutputFiles []work.OutputFile
	CompletedAt time.Time // of the run
}

// Cached finds the result that is kept under key and is at most ttl old; nil:
// there is none, or one of its files is gone.
func (s *Runs) Cached(ctx context.Context, tenant string, key []byte, ttl time.Duration) (*Cached, error) {
	var row struct {
		ID          uuid.UUID `db:"id"`
		Result      string    `db:"result"`
		Model       string    `db:"model"`
		OutputFiles []byte    `db:"output_files"`
		CompletedAt time.Time `db:"completed_at"`
	}
	err := s.db.GetContext(ctx, &row, `SELECT r.id, r.result, coalesce(r.model, '') AS model, r.output_files, r.completed_at
		FROM result_cache c JOIN worker_runs r ON r.id = c.run_id
		WHERE c.tenant = $1 AND c.key = $2 AND c.created_at > clock_timestamp() - $3 * interval '1 second'
			AND NOT EXISTS (SELECT FROM jsonb_to_recordset(r.output_files) AS o(id uuid)
				WHERE NOT EXISTS (SELECT FROM files WHERE files.id = o.id))`,
		tenant, key, ttl.Seconds())
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, pg.Translate(fmt.Errorf("look for a cached result: %w", err))
	}
	c := &Cached{RunID: row.ID, Result: row.Result, Model: row.Model, CompletedAt: row.CompletedAt}
	if err := json.Unmarshal(row.OutputFiles, &c.OutputFiles); err != nil {
		return nil, fmt.Errorf("read output files of run %s: %w", row.ID, err)
	}
	return c, nil
}
