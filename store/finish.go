package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

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
	Denials        *int // tool calls that were denied; nil: not counted
	Usage          work.Usage
	TotalCostUSD   *float64
	CostIncomplete bool
	// SessionTotalUSD is what the session has cost until now, where the backend
	// counts that: the database then takes the run's own cost from the runs before.
	SessionTotalUSD *float64
	SessionResumed  bool // the run went on with the session of an earlier one
	DurationMS      int64
	DurationAPIMS   int64
	HTTPStatus      int    // of the answer to a call
	RequestID       string // the API's own
	OutputFiles     []work.OutputFile
	Implausible     []string // figures that the backend told and that cannot be true

	Cache      work.Cache
	CachedFrom *uuid.UUID // the run that the result was taken from; nil: it is this run's own
	CacheKey   []byte     // the result may be taken over under this; nil: it may not

	Steps int
	Rev   int    // of the transcript
	Blob  []byte // the transcript, gzipped; empty: what has come of it so far stays
}

// Verdict is what the database made of a finish.
type Verdict string

// The verdicts.
const (
	Recorded Verdict = "recorded" // the run ended the way it said
	Fenced   Verdict = "fenced"   // it came too late: the run keeps what it brought, the unit gets no result
)

// Finish closes a run and moves its unit, in one statement guarded by the run
// number. Repeating a finish whose commit is unknown is safe: the second call
// changes nothing and returns the same verdict.
func (s *Runs) Finish(ctx context.Context, f Finish) (Verdict, error) {
	verdict, err := s.finish.Do(ctx, f)
	if err != nil {
		return "", fmt.Errorf("finish run %s of unit %s: %w", f.RunID, f.UnitID, err)
	}
	return verdict, nil
}

// finishIn is one row for json_to_recordset; names are columns.
type finishIn struct {
	UnitID         uuid.UUID         `json:"unit_id"`
	RunID          uuid.UUID         `json:"run_id"`
	Attempt        int               `json:"attempt"`
	Status         string            `json:"status"`
	Next           string            `json:"next"`
	Delay          float64           `json:"delay"`
	Failures       int               `json:"failures"`
	Losses         int               `json:"losses"`
	Waits          int               `json:"waits"`
	Crashes        int               `json:"crashes"`
	Result         *string           `json:"result"`
	Summary        *string           `json:"summary"`
	ErrorClass     *string           `json:"error_class"`
	ErrorMessage   *string           `json:"error_message"`
	RenderedPrompt string            `json:"rendered_prompt"`
	Model          string            `json:"model"`
	SessionID      string            `json:"session_id"`
	Resumable      bool              `json:"resumable"`
	NumTurns       int               `json:"num_turns"`
	ToolCalls      int               `json:"tool_calls"`
	Denials        *int              `json:"denials"`
	InputTokens    int64             `json:"input_tokens"`
	OutputTokens   int64             `json:"output_tokens"`
	CacheRead      int64             `json:"cache_read_tokens"`
	CacheCreation  int64             `json:"cache_creation_tokens"`
	TotalCostUSD   *float64          `json:"total_cost_usd"`
	CostIncomplete bool              `json:"cost_incomplete"`
	SessionTotal   *float64          `json:"session_total_usd"`
	SessionResumed bool              `json:"session_resumed"`
	Implausible    []string          `json:"implausible"`
	DurationMS     int64             `json:"duration_ms"`
	DurationAPIMS  int64             `json:"duration_api_ms"`
	HTTPStatus     int               `json:"http_status"`
	RequestID      string            `json:"request_id"`
	OutputFiles    []work.OutputFile `json:"output_files"`
	Steps          int               `json:"steps"`
	Rev            int               `json:"rev"`
	Cache          *string           `json:"cache,omitempty"`
	CachedFrom     *uuid.UUID        `json:"cached_from,omitempty"`
	CacheKey       *string           `json:"cache_key,omitempty"` // hex
	From           int               `json:"blob_from"`           // 1-based offset into $2
	Length         int               `json:"blob_length"`
}

// sumOfDenials is the count of unit u with that of its run e.
const sumOfDenials = `CASE WHEN e.denials IS NULL THEN u.denials ELSE coalesce(u.denials, 0) + e.denials END`

// In: $1 a JSON array of finishIn, $2 all their transcripts end to end, $3
// after how many lost runs in a row a unit ends. Out: for each run whether the
// database has taken its end.
//
// The unit moves only while it is running this very attempt. A run that is
// over already is left alone (a repeated finish), except one that was given
// up as lost and has now another end: it becomes fenced, for it came back too late. Cost counts in
// either case, once, and so do the files that the run left. Runs are read under their locks: a finish that has waited
// for another of the same run must see what that one did. No unit may be there
// twice: one statement changes a row once.
//
// Where an agent counts the cost of its session, a run's own cost is what came
// on top since the run before it. When the end of a run comes late, the run after it
// has counted that one's cost as its own, and gives it back (after).
var finishRuns = `
WITH f AS (
    SELECT * FROM json_to_recordset($1) AS f(unit_id uuid, run_id uuid, attempt integer, status text, next text,
        delay double precision, failures integer, losses integer, waits integer, crashes integer, result text,
        summary text, error_class text, error_message text, rendered_prompt text, model text, session_id text,
        resumable boolean, num_turns integer, tool_calls integer, denials integer, input_tokens bigint, output_tokens bigint,
        cache_read_tokens bigint, cache_creation_tokens bigint, total_cost_usd double precision,
        cost_incomplete boolean, session_total_usd double precision, session_resumed boolean, implausible text[],
        duration_ms bigint, duration_api_ms bigint, http_status smallint, request_id text, output_files jsonb, steps integer, rev integer,
        cache text, cached_from uuid, cache_key text, blob_from integer, blob_length integer)
), locked AS (
    SELECT u.id, u.state, u.run_count, u.cancel_requested_at, u.resume_session, u.session_cost_usd FROM work_units u JOIN f ON f.unit_id = u.id
    ORDER BY u.id FOR UPDATE OF u
), was AS (
    SELECT r.id, l.state = 'running' AND l.run_count = f.attempt AND r.status = 'running' AS mine,
        r.status = 'running' OR r.status = 'lost' AND (r.given_up OR f.status <> 'lost') AS open, r.status <> f.status AS differs,
        -- As far as the unit has it already: a lost run has been counted.
        coalesce(r.total_cost_usd, 0) AS counted, (r.status <> 'running' AND ` + unpriced("r") + `)::int AS unpriced,
        CASE WHEN f.next <> 'queued' THEN f.next
            -- A cancel that arrived while the run was failing or shutting down wins over another run.
            WHEN l.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN f.status = 'lost' AND ` + lostBefore("f.unit_id") + ` + 1 >= $3 THEN 'failed' ELSE 'queued' END AS next,
        l.resume_session = f.session_id AS goes_on, l.session_cost_usd
    FROM worker_runs r JOIN f ON f.run_id = r.id JOIN locked l ON l.id = f.unit_id
    ORDER BY r.unit_id FOR UPDATE OF r
), ended AS (
    SELECT f.*, was.mine, was.next AS becomes, was.counted, was.unpriced AS was_unpriced, was.goes_on,
        CASE WHEN f.session_total_usd IS NULL THEN f.total_cost_usd
            ELSE ` + sinceBefore("f.session_total_usd", `CASE WHEN f.session_resumed THEN coalesce(before.session_total_usd,
                CASE WHEN was.mine AND was.goes_on THEN was.session_cost_usd END, 0) ELSE 0 END`) + ` END AS usd,
        ` + unpriced("f") + `::int AS unpriced,
        after.id AS after_id, after.total_cost_usd AS after_counted, ` + sinceBefore("after.session_total_usd", "f.session_total_usd") + ` AS after_usd
    FROM f JOIN was ON was.id = f.run_id AND was.open
    LEFT JOIN LATERAL (SELECT session_total_usd FROM worker_runs r WHERE r.unit_id = f.unit_id AND r.session_id = f.session_id
        AND r.attempt < f.attempt AND r.session_total_usd IS NOT NULL AND f.session_total_usd IS NOT NULL ORDER BY r.attempt DESC LIMIT 1) AS before ON true
    LEFT JOIN LATERAL (SELECT * FROM worker_runs r WHERE r.unit_id = f.unit_id AND r.session_id = f.session_id
        AND r.attempt > f.attempt AND r.session_total_usd IS NOT NULL AND f.session_total_usd IS NOT NULL ORDER BY r.attempt LIMIT 1) AS after
        ON after.session_resumed
), moved AS (
    UPDATE work_units u SET state = e.becomes,
        failures = u.failures + e.failures, losses = u.losses + e.losses, waits = u.waits + e.waits,
        crashes = u.crashes + e.crashes, deaths = 0,
        not_before = CASE WHEN e.becomes = 'queued' THEN clock_timestamp() + e.delay * interval '1 second' ELSE u.not_before END,
        check_at = CASE WHEN e.becomes = 'queued' THEN clock_timestamp() + e.delay * interval '1 second' ELSE u.check_at END,
        dispatch = CASE WHEN e.becomes = 'queued' THEN u.dispatch + 1 ELSE u.dispatch END,
        finished_at = CASE WHEN e.becomes IN ('succeeded', 'failed', 'cancelled', 'timed_out') THEN clock_timestamp() END,
        final_run = CASE WHEN e.becomes <> 'queued' THEN e.run_id END,
        summary = CASE WHEN e.becomes <> 'queued' THEN e.summary END,
        error_class = CASE WHEN e.becomes = 'failed' AND e.next = 'queued' THEN 'crash' ELSE e.error_class END,
        error_message = CASE WHEN e.becomes = 'failed' AND e.next = 'queued'
            THEN format('%s runs in a row were lost, the last because %s', $3, e.error_message) ELSE e.error_message END,
        cache = CASE WHEN e.becomes <> 'queued' THEN e.cache END, cached_from = CASE WHEN e.becomes <> 'queued' THEN e.cached_from END,
        resume_session = CASE WHEN e.resumable THEN e.session_id END,
        session_cost_usd = CASE WHEN NOT e.resumable THEN 0 ELSE coalesce(e.session_total_usd, coalesce(e.total_cost_usd, 0) +
            CASE WHEN e.goes_on THEN u.session_cost_usd ELSE 0 END) END,
        cost_usd = u.cost_usd + coalesce(e.usd, 0), unpriced_runs = u.unpriced_runs + e.unpriced,
        denials = ` + sumOfDenials + `
    FROM ended e WHERE u.id = e.unit_id AND e.mine
), charged AS (
    -- It came back, so its worker process had not died.
    UPDATE work_units u SET deaths = greatest(u.deaths - 1, 0),
        cost_usd = greatest(u.cost_usd + coalesce(e.usd, 0) - e.counted + coalesce(e.after_usd - e.after_counted, 0), 0),
        session_cost_usd = CASE WHEN e.goes_on THEN greatest(u.session_cost_usd, coalesce(e.session_total_usd, 0)) ELSE u.session_cost_usd END,
        unpriced_runs = u.unpriced_runs + e.unpriced - e.was_unpriced,
        denials = ` + sumOfDenials + `
    FROM ended e WHERE u.id = e.unit_id AND NOT e.mine
), given_back AS (
    UPDATE worker_runs r SET total_cost_usd = e.after_usd FROM ended e WHERE r.id = e.after_id
), closed AS (
    UPDATE worker_runs r SET status = CASE WHEN e.mine THEN e.status ELSE 'fenced' END,
        result = e.result, error_class = e.error_class, error_message = e.error_message,
        rendered_prompt = e.rendered_prompt, model = coalesce(nullif(e.model, ''), r.model),
        session_id = coalesce(nullif(e.session_id, ''), r.session_id), num_turns = e.num_turns, tool_calls = e.tool_calls, denials = e.denials,
        input_tokens = e.input_tokens, output_tokens = e.output_tokens, cache_read_tokens = e.cache_read_tokens,
        cache_creation_tokens = e.cache_creation_tokens, total_cost_usd = e.usd,
        cost_incomplete = e.cost_incomplete, session_total_usd = e.session_total_usd, session_resumed = e.session_resumed,
        implausible = e.implausible, duration_ms = e.duration_ms, duration_api_ms = e.duration_api_ms,
        http_status = e.http_status, request_id = e.request_id,
        output_files = e.output_files, rev = CASE WHEN e.blob_length = 0 THEN r.rev WHEN e.rev > 0 OR e.steps = 0 THEN e.rev END, completed_at = clock_timestamp(),
        execution_time = extract(epoch FROM clock_timestamp() - r.started_at)
    FROM ended e WHERE r.id = e.run_id
        RETURNING r.id AS run_id, r.tenant, e.mine, e.status, e.output_files, e.cached_from, e.cache_key, e.steps, e.blob_from, e.blob_length
), kept AS (
    -- What is not noted any more was swept: it has no bytes. Files of a result
    -- that was taken over are the other run's, and may be noted for removal.
    DELETE FROM stray_blobs s USING closed, jsonb_to_recordset(closed.output_files)
        AS o(id uuid, name text, size bigint, media_type text, sha256 text)
    WHERE s.id = o.id AND closed.cached_from IS NULL RETURNING o.*, closed.run_id, closed.tenant
), left_behind AS (
    INSERT INTO files (id, tenant, run_id, filename, bytes, media_type, sha256, created_at)
    SELECT id, tenant, run_id, name, size, media_type, decode(sha256, 'hex'), clock_timestamp() FROM kept
), folded AS (
    INSERT INTO transcripts (run_id, steps, blob)
    SELECT run_id, steps, substr($2::bytea, blob_from, blob_length) FROM closed WHERE blob_length > 0
    ON CONFLICT (run_id) DO UPDATE SET steps = excluded.steps, blob = excluded.blob
), cached AS (
    INSERT INTO result_cache (tenant, key, run_id, created_at)
    SELECT DISTINCT ON (tenant, cache_key) tenant, decode(cache_key, 'hex'), run_id, clock_timestamp() FROM closed
    WHERE mine AND cache_key IS NOT NULL AND status = 'succeeded'
    ORDER BY tenant, cache_key -- whoever writes several does it in this order
    ON CONFLICT (tenant, key) DO UPDATE SET run_id = excluded.run_id, created_at = excluded.created_at
), swept AS (
    DELETE FROM transcript_chunks c USING closed WHERE c.run_id = closed.run_id AND closed.blob_length > 0
)
SELECT id, NOT mine AND (open OR differs) AS fenced FROM was`

// lostBefore counts the runs of a unit that were lost since one came to an
// end. The run that is being closed is not among them.
func lostBefore(unit string) string {
	return `(SELECT count(*) FROM worker_runs o WHERE o.unit_id = ` + unit + ` AND o.status IN ('lost', 'fenced') AND o.attempt >
        coalesce((SELECT max(e.attempt) FROM worker_runs e WHERE e.unit_id = o.unit_id AND e.status NOT IN ('lost', 'fenced', 'running')), 0))`
}

// sinceBefore is what came on top of a session's cost: a sum that is lower than
// the one before began anew. It is rounded, for the difference of two sums has noise in it.
func sinceBefore(total, before string) string {
	return `CASE WHEN ` + total + ` >= ` + before + ` THEN round((` + total + ` - ` + before + `)::numeric, 9)::double precision ELSE ` + total + ` END`
}

func (s *Runs) finishAll(ctx context.Context, rows []Finish) ([]Verdict, error) {
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
func (s *Runs) finishOnce(ctx context.Context, rows []Finish, verdicts map[uuid.UUID]Verdict) error {
	in := make([]finishIn, len(rows))
	blobs := bytes.NewBuffer([]byte{}) // never nil: that would be NULL
	for i, f := range rows {
		in[i] = f.row(blobs.Len() + 1)
		blobs.Write(f.Blob)
	}
	param, err := pg.Encode(in)
	if err != nil {
		return err
	}
	var found []struct {
		ID     uuid.UUID `db:"id"`
		Fenced bool      `db:"fenced"`
	}
	if err := s.db.Hot.SelectContext(pg.Prepare(ctx), &found, finishRuns, param, blobs.Bytes(), work.MaxLosses); err != nil {
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

// Plausible is the finish without figures that cannot be true: their names are in
// Implausible, and a cost among them is not known. Every finish is written so,
// wherever it comes from.
func (f Finish) Plausible() Finish {
	doubts := work.Doubts(slices.Clone(f.Implausible))
	f.NumTurns, f.ToolCalls = doubts.Turns("num_turns", f.NumTurns), doubts.Turns("tool_calls", f.ToolCalls)
	f.Usage = doubts.Usage(f.Usage)
	f.TotalCostUSD = doubts.Cost("total_cost_usd", f.TotalCostUSD)
	if f.SessionTotalUSD = doubts.SessionTotal("total_cost_usd", f.SessionTotalUSD); f.TotalCostUSD == nil {
		f.SessionTotalUSD = nil
	}
	f.DurationMS, f.DurationAPIMS = doubts.Milliseconds("duration_ms", f.DurationMS), doubts.Milliseconds("duration_api_ms", f.DurationAPIMS)
	f.HTTPStatus = doubts.HTTPStatus("http_status", f.HTTPStatus)
	if f.Implausible = doubts; doubts == nil {
		f.Implausible = []string{}
	}
	return f
}

// Bare is the finish of a run whose end the database has refused: it failed, for
// that reason, and has cost what it has. Nothing that may be to blame is left.
func (f Finish) Bare(why error) Finish {
	f = f.Plausible()
	return Finish{
		UnitID: f.UnitID, RunID: f.RunID, Attempt: f.Attempt, Status: work.RunFailed, Next: work.Failed, Failures: 1,
		TotalCostUSD: f.TotalCostUSD, CostIncomplete: f.CostIncomplete, SessionTotalUSD: f.SessionTotalUSD,
		SessionResumed: f.SessionResumed,
		SessionID:      f.SessionID, Usage: f.Usage, Implausible: f.Implausible,
		Error: work.Fail(work.ClassInfra, fmt.Sprintf("the run ended (%s), but Postgres refused its result: %v", f.Status, why)),
	}
}

func (f Finish) row(from int) finishIn {
	f = f.Plausible()
	in := finishIn{
		UnitID: f.UnitID, RunID: f.RunID, Attempt: f.Attempt, Status: string(f.Status), Next: string(f.Next),
		Delay: f.Delay.Seconds(), Failures: f.Failures, Losses: f.Losses, Waits: f.Waits, Crashes: f.Crashes,
		RenderedPrompt: work.Clean(f.RenderedPrompt), Model: work.Clean(f.Model), SessionID: work.Clean(f.SessionID),
		Resumable: f.Resumable,
		NumTurns:  f.NumTurns, ToolCalls: f.ToolCalls, Denials: f.Denials, InputTokens: f.Usage.InputTokens,
		OutputTokens: f.Usage.OutputTokens, CacheRead: f.Usage.CacheReadTokens,
		CacheCreation: f.Usage.CacheCreationTokens, TotalCostUSD: f.TotalCostUSD, CostIncomplete: f.CostIncomplete,
		SessionTotal: f.SessionTotalUSD, SessionResumed: f.SessionResumed, Implausible: f.Implausible,
		DurationMS: f.DurationMS, DurationAPIMS: f.DurationAPIMS, HTTPStatus: f.HTTPStatus, RequestID: work.Clean(f.RequestID),
		OutputFiles: f.OutputFiles,
		Steps:       f.Steps, Rev: f.Rev, From: from, Length: len(f.Blob),
	}
	if f.Cache != "" {
		in.Cache, in.CachedFrom = new(string(f.Cache)), f.CachedFrom
	}
	if f.CacheKey != nil {
		in.CacheKey = new(hex.EncodeToString(f.CacheKey))
	}
	if in.OutputFiles == nil {
		in.OutputFiles = []work.OutputFile{}
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
