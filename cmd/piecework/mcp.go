package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"piecework/internal/work"
)

// MCPCommand is `piecework mcp`.
type MCPCommand struct {
	Remote
	HTTP string `name:"http" help:"Serve streamable HTTP at this address of the machine itself, under /mcp, instead of speaking over stdin and stdout." placeholder:"HOST:PORT"`
}

const mcpInstructions = `Piecework runs work units: one prompt with its payload and files, on an agent or a model, with retries, budgets and a kept ` +
	`transcript. Submit one with submit_work_unit, many with submit_batch, and come back for them later: they go on without you. ` +
	`list_backends says what units can run on; mock calls no model and costs nothing. Long outputs come in parts.`

// Run is a server of the Model Context Protocol and a client of the API, until
// its caller leaves.
func (c *MCPCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	server := newToolServer(client, app.Version)
	if c.HTTP != "" {
		return c.serve(app, server)
	}
	err = server.Run(app.Ctx, &mcp.IOTransport{Reader: io.NopCloser(app.Stdin), Writer: keptOpen{app.Stdout}})
	if app.Ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil // whoever started it has had enough
	}
	return err
}

// keptOpen is a stream that is not ours to close.
type keptOpen struct{ io.Writer }

func (keptOpen) Close() error { return nil }

// serve speaks HTTP. Nothing asks who comes, so it does so on loopback alone.
func (c *MCPCommand) serve(app *App, server *mcp.Server) error {
	host, _, err := net.SplitHostPort(c.HTTP)
	if err != nil || !loopback(host) {
		return usagef("--http: %q is no HOST:PORT of this machine itself, such as 127.0.0.1:7071; nothing asks who comes, so others must not reach it", c.HTTP)
	}
	listener, err := new(net.ListenConfig).Listen(app.Ctx, "tcp", c.HTTP)
	if err != nil {
		return usagef("--http: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", sameSite(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})))
	web := &http.Server{Handler: http.MaxBytesHandler(mux, maxToolCall), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 5 * time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return app.Ctx }}
	failed := make(chan error, 1)
	go func() { failed <- web.Serve(listener) }()
	_, _ = fmt.Fprintf(app.Stdout, "ready http://%s/mcp\n", listener.Addr())
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-app.Ctx.Done():
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(app.Ctx), 5*time.Second)
	defer cancel()
	if err := web.Shutdown(bye); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// sameSite refuses browsers that were led here: by a page of another site, or
// under a name that the page's owner has pointed at this machine.
func sameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if !loopback(host) {
			http.Error(w, "this server answers to localhost only", http.StatusForbidden)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" {
			from, err := url.Parse(origin)
			if err != nil || from.Host != r.Host {
				http.Error(w, "a page of another site may not do this", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// maxToolCall bounds one call, in bytes.
const maxToolCall = 16 << 20

// Bounds of what a tool answers: it is read by a model, which pays for it.
const (
	maxToolText   = 32 << 10 // bytes of an answer
	maxToolOutput = 16 << 10 // of one unit's output, in get_work_unit
	maxToolPage   = 50
	maxToolWait   = 50 // seconds; callers give up on longer calls
)

// tools are the API as an agent meets it.
type tools struct{ client *client }

func newToolServer(c *client, version string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "piecework", Title: "Piecework", Version: version}, &mcp.ServerOptions{Instructions: mcpInstructions})
	t := &tools{c}
	const reads, acts, ends = "reads", "acts", "ends"
	addTool(server, "submit_work_unit", acts, "Submit one unit of work and get its id; with wait also its result if it is soon over.", t.submitUnit)
	addTool(server, "get_work_unit", reads, "Read a unit: its status, output, error and cost. With wait, hold the answer until it is over.", t.getUnit)
	addTool(server, "list_work_units", reads, "List units, newest first, without their outputs.", t.listUnits)
	addTool(server, "cancel_work_unit", ends, "Cancel a unit.", t.cancelUnit)
	addTool(server, "retry", acts, "Run a unit that is over again, or the units of a batch that did not succeed.", t.retry)
	addTool(server, "submit_batch", acts, "Submit many units together: as a list, or made of files, CSV rows, JSON values or lines. Use dry_run to see what would be made.", t.submitBatch)
	addTool(server, "get_batch", reads, "Read how far a batch is: counts, cost, a forecast after its test, why it is paused, and what to do next.", t.getBatch)
	addTool(server, "approve_batch", acts, "Let the rest of a batch run after its test.", t.approveBatch)
	addTool(server, "cancel_batch", ends, "Cancel a batch, or reject it after its test.", t.cancelBatch)
	addTool(server, "batch_results", reads, "Read results of a batch in the order of its units, some at a time, also while it runs.", t.batchResults)
	addTool(server, "list_backends", reads, "List what units can run on, and whether it works now.", t.listBackends)
	addTool(server, "explain", reads, "Say why a unit has not begun, and what to do.", t.explain)
	return server
}

// addTool makes a tool of a function that answers with a JSON document.
func addTool[In any](server *mcp.Server, name, kind, description string, call func(context.Context, In) (any, error)) {
	ends, closed := kind == "ends", false
	tool := &mcp.Tool{Name: name, Description: description, Annotations: &mcp.ToolAnnotations{ReadOnlyHint: kind == "reads", DestructiveHint: &ends, OpenWorldHint: &closed}}
	mcp.AddTool(server, tool, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
		answer, err := call(ctx, in)
		if err != nil {
			return nil, nil, err
		}
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(answer); err != nil {
			return nil, nil, fmt.Errorf("encode the answer: %w", err)
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: bounded(strings.TrimSuffix(text.String(), "\n"))}}}, nil, nil
	})
}

// bounded cuts what would be too long for a model to read.
func bounded(text string) string {
	cut, was := work.Cut(text, maxToolText)
	if was {
		cut += fmt.Sprintf("\n… cut: %d of %d bytes are shown", len(cut), len(text))
	}
	return cut
}

// unitArguments are what an agent says about a unit; the API checks them.
type unitArguments struct {
	Backend          string            `json:"backend" jsonschema:"what it runs on, such as claude, codex, anthropic, openai or mock (free, no model); see list_backends"`
	Prompt           string            `json:"prompt" jsonschema:"the task; {key} is replaced by that key of the payload"`
	Payload          map[string]any    `json:"payload,omitempty" jsonschema:"values that the prompt names"`
	Model            string            `json:"model,omitempty" jsonschema:"as the backend calls it"`
	SystemPrompt     string            `json:"system_prompt,omitempty"`
	Files            []string          `json:"files,omitempty" jsonschema:"ids of uploads, or name:path in a root of the server"`
	WorkingDirectory string            `json:"working_directory,omitempty" jsonschema:"a directory, name:path in a root of the server; each unit has its own when left out"`
	OutputSchema     map[string]any    `json:"output_schema,omitempty" jsonschema:"JSON Schema that the output must fit"`
	Accept           map[string]any    `json:"accept,omitempty" jsonschema:"what the result must meet: command, file_exists, output_matches or expression"`
	ProjectSettings  string            `json:"project_settings,omitempty" jsonschema:"read: the agent reads CLAUDE.md and the like of its directory; ignore: it does not"`
	MCPServers       []string          `json:"mcp_servers,omitempty" jsonschema:"MCP servers that the agent gets, by the operator's names"`
	MaxTurns         int               `json:"max_turns,omitempty" jsonschema:"most turns of a run"`
	MaxCostUSD       float64           `json:"max_cost_usd,omitempty" jsonschema:"most that a run may cost"`
	Timeout          string            `json:"timeout,omitempty" jsonschema:"longest a run may take, such as 90s or 1h30m"`
	Queue            string            `json:"queue,omitempty"`
	Labels           map[string]string `json:"labels,omitempty" jsonschema:"to find it by"`
}

type submitUnitArguments struct {
	unitArguments
	IdempotencyKey string `json:"idempotency_key,omitempty" jsonschema:"the same key and arguments make the same unit; give one if you may call again"`
	Wait           int    `json:"wait,omitempty" jsonschema:"seconds to wait for its end, 50 at most"`
}

// toolUnit is a unit as an agent meets it.
type toolUnit struct {
	ID          string        `json:"id"`
	CustomID    string        `json:"custom_id,omitempty"`
	Status      work.State    `json:"status"`
	Title       string        `json:"title,omitempty"`
	Backend     string        `json:"backend,omitempty"`
	Model       string        `json:"model,omitempty"`
	Output      *string       `json:"output,omitempty"`
	OutputBytes int           `json:"output_bytes,omitempty"`
	NextOffset  int           `json:"next_output_offset,omitempty"` // where the rest of the output begins
	Error       *work.Failure `json:"error,omitempty"`
	work.Cost
	Runs       int        `json:"runs"`
	CreatedAt  *time.Time `json:"created_at,omitempty"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
}

func (t *tools) submitUnit(ctx context.Context, in submitUnitArguments) (any, error) {
	if in.IdempotencyKey == "" {
		in.IdempotencyKey = uuid.NewString()
	}
	return t.oneUnit(ctx, request{method: http.MethodPost, path: "/work-units", query: waiting(in.Wait), body: in.unitArguments, idempotencyKey: in.IdempotencyKey}, 0)
}

func waiting(seconds int) url.Values {
	if seconds <= 0 {
		return nil
	}
	return url.Values{"wait": {strconv.Itoa(min(seconds, maxToolWait)) + "s"}}
}

func (t *tools) oneUnit(ctx context.Context, r request, offset int) (any, error) {
	u, err := t.client.unitCall(ctx, r)
	if err != nil {
		return nil, err
	}
	view := viewUnit(u)
	if u.Output != nil {
		view.Output, view.NextOffset = part(*u.Output, offset, maxToolOutput)
		view.OutputBytes = len(*u.Output)
	}
	return view, nil
}

func viewUnit(u *unit) toolUnit {
	return toolUnit{ID: u.ID.String(), CustomID: u.CustomID, Status: u.State, Title: u.Title, Backend: u.Backend, Model: u.Model, Error: u.Error,
		Cost: u.Cost, Runs: u.RunCount, CreatedAt: &u.CreatedAt, FinishedAt: u.FinishedAt}
}

// part is what of a text is shown from offset on, and where the rest begins: 0
// if there is none.
func part(text string, offset, limit int) (*string, int) {
	text = text[min(max(offset, 0), len(text)):]
	shown, was := work.Cut(text, limit)
	if !was {
		return &shown, 0
	}
	return &shown, max(offset, 0) + len(shown)
}

type getUnitArguments struct {
	ID           string `json:"id" jsonschema:"the unit's id"`
	Wait         int    `json:"wait,omitempty" jsonschema:"seconds to wait for its end, 50 at most; call again if it is not over"`
	OutputOffset int    `json:"output_offset,omitempty" jsonschema:"where in the output to begin, as next_output_offset said"`
}

func (t *tools) getUnit(ctx context.Context, in getUnitArguments) (any, error) {
	return t.oneUnit(ctx, request{method: http.MethodGet, path: unitPath(in.ID), query: waiting(in.Wait)}, in.OutputOffset)
}

type listUnitsArguments struct {
	Status  string `json:"status,omitempty" jsonschema:"only in these states, commas between: queued, running, waiting, succeeded, failed, cancelled, timed_out"`
	Backend string `json:"backend,omitempty"`
	Batch   string `json:"batch,omitempty" jsonschema:"only units of this batch"`
	Query   string `json:"q,omitempty" jsonschema:"part of the title"`
	Cursor  string `json:"cursor,omitempty" jsonschema:"the next of the page before"`
	Limit   int    `json:"limit,omitempty" jsonschema:"20 when left out, 50 at most"`
}

func (t *tools) listUnits(ctx context.Context, in listUnitsArguments) (any, error) {
	query := url.Values{"limit": {strconv.Itoa(pageSize(in.Limit))}}
	for name, value := range map[string]string{"status": in.Status, "backend": in.Backend, "batch": in.Batch, "q": in.Query, "after": in.Cursor} {
		if value != "" {
			query.Set(name, value)
		}
	}
	list, err := t.client.list(ctx, "/work-units", query, false)
	if err != nil {
		return nil, err
	}
	page := struct {
		Units []toolUnit `json:"units"`
		Next  *string    `json:"next"`
	}{[]toolUnit{}, list.Next}
	for _, item := range list.Items {
		u, err := parseUnit(item)
		if err != nil {
			return nil, err
		}
		view := viewUnit(u)
		view.Title, view.Error = excerpt(u.Title, 100), shortFailure(u.Error)
		page.Units = append(page.Units, view)
	}
	return page, nil
}

func pageSize(limit int) int {
	if limit <= 0 {
		return 20
	}
	return min(limit, maxToolPage)
}

// shortFailure keeps a page of failures readable.
func shortFailure(f *work.Failure) *work.Failure {
	if f == nil {
		return nil
	}
	return work.Fail(f.Class, excerpt(f.Message, 200))
}

type unitArgument struct {
	ID string `json:"id" jsonschema:"the unit's id"`
}

func (t *tools) cancelUnit(ctx context.Context, in unitArgument) (any, error) {
	return t.oneUnit(ctx, request{method: http.MethodPost, path: unitPath(in.ID, "cancel")}, 0)
}

type retryArguments struct {
	Unit  string `json:"unit,omitempty" jsonschema:"id of a unit; this or batch"`
	Batch string `json:"batch,omitempty" jsonschema:"id of a batch; this or unit"`
}

func (t *tools) retry(ctx context.Context, in retryArguments) (any, error) {
	switch {
	case (in.Unit == "") == (in.Batch == ""):
		return nil, errors.New("give either unit or batch")
	case in.Unit != "":
		return t.oneUnit(ctx, request{method: http.MethodPost, path: unitPath(in.Unit, "retry")}, 0)
	}
	return t.oneBatch(ctx, request{method: http.MethodPost, path: batchPath(in.Batch, "retry")})
}

type batchArguments struct {
	Title       string           `json:"title,omitempty" jsonschema:"for people"`
	Unit        map[string]any   `json:"unit,omitempty" jsonschema:"what is the same in all units, with the fields of submit_work_unit: backend, prompt, payload and so on"`
	Units       []map[string]any `json:"units,omitempty" jsonschema:"the units, with what is not in unit, such as payload, and a custom_id; this or source"`
	Source      map[string]any   `json:"source,omitempty" jsonschema:"where payloads come from: type (files, csv, json, jsonl), path (name:path in a root of the server, or for a file an upload's id), and glob, suffix, delimiter, items, custom_id, limit; files have file_path and file_name"`
	TestFirst   int              `json:"test_first,omitempty" jsonschema:"run so many, then wait for approve_batch"`
	Concurrency int              `json:"concurrency,omitempty" jsonschema:"units at once, at most"`
	MaxCostUSD  float64          `json:"max_cost_usd,omitempty" jsonschema:"most that all units together may cost"`
	StopWhen    map[string]any   `json:"stop_when,omitempty" jsonschema:"pause it when of the last window units more than failure_rate failed, more than refusal_rate were refused, or they cost more than mean_cost_usd"`
	Synthesis   map[string]any   `json:"synthesis,omitempty" jsonschema:"a unit that is given the results as a file when the others are over: {unit: {prompt: …}, despite_failures: true}"`
	OnInvalid   string           `json:"on_invalid,omitempty" jsonschema:"reject (the default) or skip items that no unit can be made of"`
	DryRun      bool             `json:"dry_run,omitempty" jsonschema:"make nothing, tell what would be made"`
}

type submitBatchArguments struct {
	batchArguments
	IdempotencyKey string `json:"idempotency_key,omitempty" jsonschema:"the same key and arguments make the same batch; give one if you may call again"`
}

// toolBatch is a batch as an agent meets it.
type toolBatch struct {
	ID        string              `json:"id"`
	Status    work.BatchStatus    `json:"status"`
	Title     string              `json:"title,omitempty"`
	Counts    work.BatchCounts    `json:"counts"`
	MaxCost   *float64            `json:"max_cost_usd,omitempty"`
	Paused    *work.BatchPause    `json:"paused,omitempty"`
	Why       string              `json:"why,omitempty"`
	Forecast  *forecast           `json:"forecast,omitempty"`
	Rejected  int                 `json:"rejected,omitempty"`
	Problems  []work.BatchProblem `json:"problems,omitempty"`
	Synthesis *uuid.UUID          `json:"synthesis_unit,omitempty"`
	Sample    *batchSample        `json:"sample,omitempty"`
	DryRun    bool                `json:"dry_run,omitempty"`
	Next      []string            `json:"next,omitempty"`
}

func viewBatch(b *batch) toolBatch {
	view := toolBatch{ID: b.ID.String(), Status: b.Status, Title: b.Title, Counts: b.Counts, MaxCost: b.MaxCostUSD, Paused: b.Paused, Why: b.Why, Forecast: b.Forecast,
		Rejected: b.Rejected, Problems: b.Problems[:min(len(b.Problems), maxProblemsShown)], Synthesis: b.SynthesisUnit, Sample: b.Sample, DryRun: b.DryRun}
	if !b.DryRun {
		view.Next = nextForBatch(b)
	}
	return view
}

func (t *tools) oneBatch(ctx context.Context, r request) (any, error) {
	b, err := t.client.batchCall(ctx, r)
	if err != nil {
		return nil, err
	}
	return viewBatch(b), nil
}

func (t *tools) submitBatch(ctx context.Context, in submitBatchArguments) (any, error) {
	if in.IdempotencyKey == "" && !in.DryRun {
		in.IdempotencyKey = uuid.NewString()
	}
	return t.oneBatch(ctx, request{method: http.MethodPost, path: "/batches", body: in.batchArguments, idempotencyKey: in.IdempotencyKey})
}

type getBatchArguments struct {
	ID   string `json:"id" jsonschema:"the batch's id"`
	Wait int    `json:"wait,omitempty" jsonschema:"seconds to wait until it is over or waits for a person, 50 at most; call again if it is not"`
}

func (t *tools) getBatch(ctx context.Context, in getBatchArguments) (any, error) {
	b, err := t.client.batch(ctx, in.ID)
	if err != nil || in.Wait <= 0 {
		if err != nil {
			return nil, err
		}
		return viewBatch(b), nil
	}
	wait, cancel := context.WithTimeout(ctx, time.Duration(min(in.Wait, maxToolWait))*time.Second)
	defer cancel()
	later, err := awaitBatch(wait, t.client, b, &batchProgress{w: io.Discard})
	switch {
	case err == nil:
		return viewBatch(later), nil
	case wait.Err() == nil || ctx.Err() != nil:
		return nil, err
	}
	return t.oneBatch(ctx, request{method: http.MethodGet, path: batchPath(in.ID)})
}

type approveArguments struct {
	ID          string   `json:"id" jsonschema:"the batch's id"`
	MaxCostUSD  *float64 `json:"max_cost_usd,omitempty" jsonschema:"most that all its units together may cost from now on"`
	Concurrency *int     `json:"concurrency,omitempty" jsonschema:"units at once, at most, from now on"`
}

func (t *tools) approveBatch(ctx context.Context, in approveArguments) (any, error) {
	return t.oneBatch(ctx, request{method: http.MethodPost, path: batchPath(in.ID, "approve"), body: BatchChanges{in.MaxCostUSD, in.Concurrency}.body()})
}

type cancelBatchArguments struct {
	ID  string `json:"id" jsonschema:"the batch's id"`
	Why string `json:"why,omitempty" jsonschema:"for those who wonder"`
}

func (t *tools) cancelBatch(ctx context.Context, in cancelBatchArguments) (any, error) {
	return t.oneBatch(ctx, request{method: http.MethodPost, path: batchPath(in.ID, "cancel"), body: map[string]string{"why": in.Why}})
}

type resultsArguments struct {
	ID     string `json:"id" jsonschema:"the batch's id"`
	Status string `json:"status,omitempty" jsonschema:"only in these states, commas between: succeeded, failed, cancelled, timed_out"`
	Cursor string `json:"cursor,omitempty" jsonschema:"the next of the call before"`
	Limit  int    `json:"limit,omitempty" jsonschema:"20 when left out, 50 at most; outputs are shared out over an answer, so fewer have longer ones"`
}

func (t *tools) batchResults(ctx context.Context, in resultsArguments) (any, error) {
	limit := pageSize(in.Limit)
	query := url.Values{"limit": {strconv.Itoa(limit + 1)}}
	for name, value := range map[string]string{"status": in.Status, "after": in.Cursor} {
		if value != "" {
			query.Set(name, value)
		}
	}
	lines, err := t.client.get(ctx, batchPath(in.ID, "results"), query)
	if err != nil {
		return nil, aboutBatch(err)
	}
	page := struct {
		Results []toolUnit `json:"results"`
		Next    string     `json:"next,omitempty"`
	}{Results: []toolUnit{}}
	for dec := json.NewDecoder(bytes.NewReader(lines)); dec.More(); {
		var r struct {
			toolUnit
			RunCount int `json:"run_count"`
		}
		if err := dec.Decode(&r); err != nil {
			return nil, fmt.Errorf("read the results: %w", err)
		}
		if len(page.Results) == limit {
			page.Next = page.Results[limit-1].ID
			break
		}
		view := r.toolUnit
		view.Runs, view.Error = r.RunCount, shortFailure(view.Error)
		page.Results = append(page.Results, view)
	}
	for i, r := range page.Results {
		if r.Output != nil {
			r.OutputBytes = len(*r.Output)
			r.Output, r.NextOffset = part(*r.Output, 0, max(maxToolText/2/len(page.Results)-300, 100)) // the rest is for the fields around it
			page.Results[i] = r
		}
	}
	return page, nil
}

func (t *tools) listBackends(ctx context.Context, _ struct{}) (any, error) {
	return t.document(ctx, "/backends")
}

func (t *tools) explain(ctx context.Context, in unitArgument) (any, error) {
	return t.document(ctx, unitPath(in.ID, "explain"))
}

func (t *tools) document(ctx context.Context, path string) (any, error) {
	document, err := t.client.get(ctx, path, nil)
	return json.RawMessage(document), err
}
