package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"piecework/internal/work"
)

// Claim asks for a unit on behalf of a worker process.
type Claim struct {
	UnitID    uuid.UUID
	RunID     uuid.UUID
	Process   uuid.UUID
	SessionID string
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
// when there is nothing to claim: another has it, or it is over. Repeating a
// claim whose commit is unknown is safe: its run id gets the same answer.
func (s *Store) Claim(ctx context.Context, c Claim) (*Claimed, error) {
	claimed, err := s.claim.do(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("claim unit %s: %w", c.UnitID, err)
	}
	return claimed, nil
}

// In: $1..$4 arrays of unit, run, process, session. Out: the units that were
// claimed, each with its run. A unit that is asked for twice is given once.
// Rows are locked in id order so that two processes cannot wait for each
// other.
const claimUnits = `
WITH asked AS (
    SELECT DISTINCT ON (unit_id) * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[])
        AS a(unit_id, run_id, process, session_id) ORDER BY unit_id
), ripe AS (
    SELECT u.id FROM work_units u JOIN asked ON asked.unit_id = u.id
    WHERE u.state = 'queued' AND (u.not_before IS NULL OR u.not_before <= clock_timestamp())
        AND (u.deadline IS NULL OR u.deadline > clock_timestamp())
    ORDER BY u.id FOR UPDATE OF u
), taken AS (
    UPDATE work_units u SET state = 'running', run_count = u.run_count + 1,
        started_at = coalesce(u.started_at, clock_timestamp())
    FROM ripe WHERE u.id = ripe.id AND u.state = 'queued' RETURNING u.*
), opened AS (
    INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, worker_process, status, model, session_id, started_at)
    SELECT a.run_id, t.tenant, t.id, t.run_count, t.backend, a.process, 'running', nullif(t.model, ''),
        coalesce(t.resume_session, a.session_id), clock_timestamp()
    FROM taken t JOIN asked a ON a.unit_id = t.id
)
SELECT ` + claimedColumns + `, a.run_id FROM taken JOIN asked a ON a.unit_id = taken.id`

const claimedColumns = unitColumns + `, coalesce(resume_session, '') AS resume_session, session_cost_usd,
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
func (s *Store) held(ctx context.Context, runs []string) ([]claimedRow, error) {
	var rows []claimedRow
	err := s.db.SelectContext(ctx, &rows, `SELECT `+claimedColumns+`, run_id FROM work_units
		JOIN (SELECT id AS run_id, unit_id, attempt FROM worker_runs WHERE id = ANY($1::uuid[]) AND status = 'running') AS r
		ON r.unit_id = work_units.id AND r.attempt = run_count`, pq.Array(runs))
	return rows, err
}

func (s *Store) claimAll(ctx context.Context, claims []Claim) ([]*Claimed, error) {
	units, runs := make([]string, len(claims)), make([]string, len(claims))
	processes, sessions := make([]string, len(claims)), make([]string, len(claims))
	for i, c := range claims {
		units[i], runs[i], processes[i], sessions[i] = c.UnitID.String(), c.RunID.String(), c.Process.String(), c.SessionID
	}
	var rows []claimedRow
	if err := s.db.SelectContext(ctx, &rows, claimUnits, pq.Array(units), pq.Array(runs), pq.Array(processes), pq.Array(sessions)); err != nil {
		return nil, err
	}
	if len(rows) < len(claims) {
		held, err := s.held(ctx, runs)
		if err != nil {
			return nil, err
		}
		rows = append(rows, held...)
	}
	byRun := make(map[uuid.UUID]*Claimed, len(rows))
	for _, r := range rows {
		byRun[r.RunID] = r.claimed()
	}
	outs := make([]*Claimed, len(claims))
	for i, c := range claims {
		if outs[i] = byRun[c.RunID]; outs[i] != nil {
			outs[i].SessionID = c.SessionID
		}
	}
	return outs, nil
}

// Finish is how a run ended and what becomes of its unit.
type Finish struct {
	UnitID  uuid.UUID
	RunID   uuid.UUID
	Attempt int

	Status work.RunStatus // of the run
	Next   work.State     // of the unit; Queued means that it is to run again
	Delay  time.Duration  // before it may run again
	// Counts of the unit that this run adds to.
	Failures, Losses, Waits, Crashes int

	Result         string // partial unless the run succeeded
	Error          *work.Failure
	RenderedPrompt string
	Model          string
	SessionID      string
	Resumable      bool // the next run may go on with SessionID
	NumTurns       int
	ToolCalls      int
	Usage          work.Usage
	TotalCostUSD   *float64
	CostIncomplete bool
	DurationMS     int64
	DurationAPIMS  int64
	OutputFiles    []work.File

	Steps int
	Blob  []byte // the transcript, gzipped
}

// Verdict is what the ledger made of a finish.
type Verdict string

// The verdicts.
const (
	Recorded Verdict = "recorded" // the run ended the way it said
	Fenced   Verdict = "fenced"   // it came too late: the run keeps what it brought, the unit gets no result
)

// Finish closes a run and moves its unit, in one statement guarded by the run
// number. Repeating a finish whose commit is unknown is safe: the second call
// changes nothing and returns the same verdict.
func (s *Store) Finish(ctx context.Context, f Finish) (Verdict, error) {
	verdict, err := s.finish.do(ctx, f)
	if err != nil {
		return "", fmt.Errorf("finish run %s of unit %s: %w", f.RunID, f.UnitID, err)
	}
	return verdict, nil
}

// finishIn is one row for json_to_recordset; names are columns.
type finishIn struct {
	UnitID         uuid.UUID   `json:"unit_id"`
	RunID          uuid.UUID   `json:"run_id"`
	Attempt        int         `json:"attempt"`
	Status         string      `json:"status"`
	Next           string      `json:"next"`
	Delay          float64     `json:"delay"`
	Failures       int         `json:"failures"`
	Losses         int         `json:"losses"`
	Waits          int         `json:"waits"`
	Crashes        int         `json:"crashes"`
	Result         *string     `json:"result"`
	Summary        *string     `json:"summary"`
	ErrorClass     *string     `json:"error_class"`
	ErrorMessage   *string     `json:"error_message"`
	RenderedPrompt string      `json:"rendered_prompt"`
	Model          string      `json:"model"`
	SessionID      string      `json:"session_id"`
	Resumable      bool        `json:"resumable"`
	NumTurns       int         `json:"num_turns"`
	ToolCalls      int         `json:"tool_calls"`
	InputTokens    int64       `json:"input_tokens"`
	OutputTokens   int64       `json:"output_tokens"`
	CacheRead      int64       `json:"cache_read_tokens"`
	CacheCreation  int64       `json:"cache_creation_tokens"`
	TotalCostUSD   *float64    `json:"total_cost_usd"`
	CostIncomplete bool        `json:"cost_incomplete"`
	DurationMS     int64       `json:"duration_ms"`
	DurationAPIMS  int64       `json:"duration_api_ms"`
	OutputFiles    []work.File `json:"output_files"`
	Steps          int         `json:"steps"`
	From           int         `json:"blob_from"` // 1-based offset into $2
	Length         int         `json:"blob_length"`
}

// In: $1 a JSON array of finishIn, $2 all their transcripts end to end. Out:
// for each run whether its unit moved, and what the run's status was before.
//
// The unit moves only while it is running this very attempt. A run that is
// over already is left alone (a repeated finish), except one that was given
// up as lost, which becomes fenced: it came back too late. Cost counts in
// either case, once. Runs are read under their locks: a finish that has waited
// for another of the same run must see what that one did. No unit may be there
// twice: one statement changes a row once.
const finishRuns = `
WITH f AS (
    SELECT * FROM json_to_recordset($1) AS f(unit_id uuid, run_id uuid, attempt integer, status text, next text,
        delay double precision, failures integer, losses integer, waits integer, crashes integer, result text,
        summary text, error_class text, error_message text, rendered_prompt text, model text, session_id text,
        resumable boolean, num_turns integer, tool_calls integer, input_tokens bigint, output_tokens bigint,
        cache_read_tokens bigint, cache_creation_tokens bigint, total_cost_usd double precision,
        cost_incomplete boolean, duration_ms bigint, duration_api_ms bigint, output_files jsonb, steps integer,
        blob_from integer, blob_length integer)
), locked AS (
    SELECT u.id, u.state, u.run_count, u.cancel_requested_at FROM work_units u JOIN f ON f.unit_id = u.id
    ORDER BY u.id FOR UPDATE OF u
), was AS (
    SELECT r.id, l.state = 'running' AND l.run_count = f.attempt AND r.status = 'running' AS mine,
        r.status = 'running' OR r.status = 'lost' AND r.given_up AS open, r.status = 'fenced' AS fenced,
        -- A cancel that arrived while the run was failing or shutting down wins over another run.
        CASE WHEN f.next = 'queued' AND l.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE f.next END AS next
    FROM worker_runs r JOIN f ON f.run_id = r.id JOIN locked l ON l.id = f.unit_id
    ORDER BY r.unit_id FOR UPDATE OF r
), moved AS (
    UPDATE work_units u SET state = was.next,
        failures = u.failures + f.failures, losses = u.losses + f.losses, waits = u.waits + f.waits,
        crashes = u.crashes + f.crashes,
        not_before = CASE WHEN was.next = 'queued' THEN clock_timestamp() + f.delay * interval '1 second' ELSE u.not_before END,
        check_at = CASE WHEN was.next = 'queued' THEN clock_timestamp() + f.delay * interval '1 second' ELSE u.check_at END,
        dispatch = CASE WHEN was.next = 'queued' THEN u.dispatch + 1 ELSE u.dispatch END,
        finished_at = CASE WHEN was.next IN ('succeeded', 'failed', 'cancelled', 'timed_out') THEN clock_timestamp() END,
        final_run = CASE WHEN was.next <> 'queued' THEN f.run_id END,
        summary = CASE WHEN was.next <> 'queued' THEN f.summary END,
        error_class = f.error_class, error_message = f.error_message,
        resume_session = CASE WHEN f.resumable THEN f.session_id END,
        session_cost_usd = CASE WHEN f.resumable THEN coalesce(f.total_cost_usd, 0) +
            CASE WHEN f.session_id = u.resume_session THEN u.session_cost_usd ELSE 0 END ELSE 0 END,
        cost_usd = u.cost_usd + coalesce(f.total_cost_usd, 0)
    FROM f JOIN was ON was.id = f.run_id AND was.mine WHERE u.id = f.unit_id RETURNING u.id
), charged AS (
    UPDATE work_units u SET cost_usd = u.cost_usd + coalesce(f.total_cost_usd, 0)
    FROM f JOIN was ON was.id = f.run_id AND was.open AND NOT was.mine WHERE u.id = f.unit_id
), closed AS (
    UPDATE worker_runs r SET status = CASE WHEN was.mine THEN f.status ELSE 'fenced' END,
        result = f.result, error_class = f.error_class, error_message = f.error_message,
        rendered_prompt = f.rendered_prompt, model = coalesce(nullif(f.model, ''), r.model),
        session_id = coalesce(nullif(f.session_id, ''), r.session_id), num_turns = f.num_turns, tool_calls = f.tool_calls,
        input_tokens = f.input_tokens, output_tokens = f.output_tokens, cache_read_tokens = f.cache_read_tokens,
        cache_creation_tokens = f.cache_creation_tokens, total_cost_usd = f.total_cost_usd,
        cost_incomplete = f.cost_incomplete, duration_ms = f.duration_ms, duration_api_ms = f.duration_api_ms,
        output_files = f.output_files, completed_at = clock_timestamp(),
        execution_time = extract(epoch FROM clock_timestamp() - r.started_at)
    FROM f JOIN was ON was.id = f.run_id AND was.open WHERE r.id = f.run_id RETURNING r.id
), folded AS (
    INSERT INTO transcripts (run_id, steps, blob)
    SELECT f.run_id, f.steps, substr($2::bytea, f.blob_from, f.blob_length) FROM f JOIN closed ON closed.id = f.run_id
    ON CONFLICT (run_id) DO UPDATE SET steps = excluded.steps, blob = excluded.blob
), swept AS (
    DELETE FROM transcript_chunks c USING closed WHERE c.run_id = closed.id
)
SELECT id, NOT mine AND (open OR fenced) AS fenced FROM was`

func (s *Store) finishAll(ctx context.Context, rows []Finish) ([]Verdict, error) {
	var now, later []Finish
	seen := make(map[uuid.UUID]bool, len(rows))
	for _, f := range rows {
		if seen[f.UnitID] {
			later = append(later, f)
			continue
		}
		seen[f.UnitID] = true
		now = append(now, f)
	}
	verdicts := make(map[uuid.UUID]Verdict, len(rows))
	for len(now) > 0 {
		if err := s.finishOnce(ctx, now, verdicts); err != nil {
			return nil, err
		}
		n := min(len(later), 1)
		now, later = later[:n], later[n:]
	}
	outs := make([]Verdict, len(rows))
	for i, f := range rows {
		outs[i] = cmp.Or(verdicts[f.RunID], Fenced) // a run that is gone: its unit was deleted
	}
	return outs, nil
}

// finishOnce writes runs of different units and notes their verdicts. Of a
// run that comes twice the first verdict stands; the second is the same.
func (s *Store) finishOnce(ctx context.Context, rows []Finish, verdicts map[uuid.UUID]Verdict) error {
	in := make([]finishIn, len(rows))
	blobs := bytes.NewBuffer([]byte{}) // never nil: that would be NULL
	for i, f := range rows {
		in[i] = f.row(blobs.Len() + 1)
		blobs.Write(f.Blob)
	}
	param, err := encode(in)
	if err != nil {
		return err
	}
	var found []struct {
		ID     uuid.UUID `db:"id"`
		Fenced bool      `db:"fenced"`
	}
	if err := s.db.SelectContext(ctx, &found, finishRuns, param, blobs.Bytes()); err != nil {
		return err
	}
	for _, run := range found {
		verdicts[run.ID] = Recorded
		if run.Fenced {
			verdicts[run.ID] = Fenced
		}
	}
	return nil
}

func (f Finish) weight() int { return len(f.Result) + len(f.RenderedPrompt) + len(f.Blob) }

// summaryBytes is how much of an output a list shows.
const summaryBytes = 500

func (f Finish) row(from int) finishIn {
	in := finishIn{
		UnitID: f.UnitID, RunID: f.RunID, Attempt: f.Attempt, Status: string(f.Status), Next: string(f.Next),
		Delay: f.Delay.Seconds(), Failures: f.Failures, Losses: f.Losses, Waits: f.Waits, Crashes: f.Crashes,
		RenderedPrompt: work.Clean(f.RenderedPrompt), Model: work.Clean(f.Model), SessionID: work.Clean(f.SessionID), Resumable: f.Resumable,
		NumTurns: f.NumTurns, ToolCalls: f.ToolCalls, InputTokens: f.Usage.InputTokens,
		OutputTokens: f.Usage.OutputTokens, CacheRead: f.Usage.CacheReadTokens,
		CacheCreation: f.Usage.CacheCreationTokens, TotalCostUSD: f.TotalCostUSD, CostIncomplete: f.CostIncomplete,
		DurationMS: f.DurationMS, DurationAPIMS: f.DurationAPIMS, OutputFiles: f.OutputFiles,
		Steps: f.Steps, From: from, Length: len(f.Blob),
	}
	if in.OutputFiles == nil {
		in.OutputFiles = []work.File{}
	}
	if f.Result != "" || f.Status == work.RunSucceeded {
		result := work.Clean(f.Result)
		summary, _ := work.Cut(result, summaryBytes)
		in.Result, in.Summary = &result, &summary
	}
	if f.Error != nil {
		class, message := string(f.Error.Class), work.Clean(f.Error.Message)
		in.ErrorClass, in.ErrorMessage = &class, &message
	}
	return in
}

// runColumns is a run without its prompt, result and transcript.
const runColumns = `r.id, r.unit_id, r.attempt, r.worker_type, r.worker_process, r.status, r.live_status, r.model,
    left(r.error_message, 2000) AS error_message, r.error_class, r.session_id, r.num_turns, r.tool_calls, r.input_tokens,
    r.output_tokens, r.cache_read_tokens, r.cache_creation_tokens, r.total_cost_usd, r.cost_incomplete, r.duration_ms,
    r.duration_api_ms, r.execution_time, r.output_files, r.started_at, r.completed_at, u.title,
    EXISTS (SELECT FROM transcripts t WHERE t.run_id = r.id) OR
    EXISTS (SELECT FROM transcript_chunks c WHERE c.run_id = r.id) AS has_transcript`

type runRow struct {
	work.Run
	work.Usage
	ErrorClass   *string `db:"error_class"`
	ErrorMessage *string `db:"error_message"`
	Files        []byte  `db:"output_files"`
}

func (r runRow) run() (work.Run, error) {
	run := r.Run
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

// Run returns one run with its prompt and result.
func (s *Store) Run(ctx context.Context, tenant string, id uuid.UUID) (work.Run, error) {
	var row runRow
	err := s.db.GetContext(ctx, &row, `SELECT `+runColumns+`, r.rendered_prompt, r.result
		FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE r.id = $1 AND r.tenant = $2`, id, tenant)
	if err != nil {
		return work.Run{}, translate(fmt.Errorf("read run %s: %w", id, err))
	}
	return row.run()
}

// UnitRuns returns every run of a unit, oldest first, with prompts and
// results.
func (s *Store) UnitRuns(ctx context.Context, unit uuid.UUID) ([]work.Run, error) {
	var rows []runRow
	err := s.db.SelectContext(ctx, &rows, `SELECT `+runColumns+`, r.rendered_prompt, r.result
		FROM worker_runs r JOIN work_units u ON u.id = r.unit_id WHERE r.unit_id = $1 ORDER BY r.attempt`, unit)
	if err != nil {
		return nil, translate(fmt.Errorf("read runs of unit %s: %w", unit, err))
	}
	return runsOf(rows)
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

// Runs lists runs, newest first, and tells the id to go on after when there
// are more.
func (s *Store) Runs(ctx context.Context, f RunFilter) ([]work.Run, *uuid.UUID, error) {
	f.Limit = cmp.Or(f.Limit, defaultLimit)
	var w where
	w.add("r.tenant = ?", f.Tenant)
	w.addIf(f.After != uuid.Nil, "r.id < ?", f.After)
	w.addIf(len(f.Statuses) == 1, "r.status = ?", string(first(f.Statuses)))
	w.addIf(len(f.Statuses) > 1, "r.status = ANY(?)", textArray(f.Statuses))
	w.addIf(f.WorkerType != "", "r.worker_type = ?", f.WorkerType)
	w.addIf(f.Unit != uuid.Nil, "r.unit_id = ?", f.Unit)
	w.addIf(f.Search != "", "u.title ILIKE ?", "%"+escapeLike(f.Search)+"%")
	var rows []runRow
	query := `SELECT ` + runColumns + ` FROM worker_runs r JOIN work_units u ON u.id = r.unit_id`
	if err := s.page(ctx, &rows, query, "r.id", w, f.Limit); err != nil {
		return nil, nil, fmt.Errorf("list runs: %w", err)
	}
	runs, err := runsOf(rows)
	if err != nil {
		return nil, nil, err
	}
	return cutPage(runs, f.Limit, func(r work.Run) uuid.UUID { return r.ID })
}
