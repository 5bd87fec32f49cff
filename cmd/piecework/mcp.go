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
	mux.Handle("/mcp", sameSite(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true})))
	web := &http.Server{Handler: http.MaxBytesHandler(mux, maxToolCall), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		WriteTimeout:   5 * time.Minute,
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

// Bounds of what a tool answers: it is read by a model, which pays for it.
const (
	maxToolText   = 32 << 10 // bytes of an answer
	maxToolOutput = 16 << 10 // of one unit's output, in get_work_unit
	maxToolPage   = 50
	maxToolWait   = 50 // seconds; callers give up on longer calls
)

type batchArguments struct {
	Title       string           `json:"title,omitempty" jsonschema:"for people"`
	Unit        map[string]any   `json:"unit,omitempty" jsonschema:"what is the same in all units, with the fields of submit_work_unit: backend, prompt, payload and so on"`
	Units       []map[string]any `json:"units,omitempty" jsonschema:"the units, with what is not in unit, such as payload, and a custom_id; this or source"`
	Source      map[string]any   `json:"source,omitempty" jsonschema:"where payloads come from: type (files, csv, json, jsonl), path (name:path in a root of the server, or for a file an upload's id), and glob, suffix, delimiter, items, custom_id, limit; files have file_path and file_name"`
	TestFirst   int              `json:"test_first,omitempty" jsonschema:"run so many, then wait for approve_batch"`
	Concurrency int              `json:"concurrency,omitempty" jsonschema:"units at once, at most"`
	MaxCostUSD  float64          `json:"max_cost_usd,omitempty" jsonschema:"most that all units together may cost"`
	StopWhen    map[string]any   `json:"stop_when,omitempty" jsonschema:"pause it when of the last window units more than failure_rate failed, more than refusal_rate were refused, in more than denial_rate a tool was denied, or they cost more than mean_cost_usd"`
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
	view := toolBatch{ID: b.ID.String(), Status: b.Status, Title: b.Title, Counts: b.Counts, MaxCost: b.MaxCostUSD, Paused: b.Paused,
		Why: b.Why, Forecast: b.Forecast,
		Rejected: b.Rejected, Problems: b.Problems[:min(len(b.Problems), maxProblemsShown)], Synthesis: b.SynthesisUnit, Sample: b.Sample,
		DryRun: b.DryRun}
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
	return t.oneBatch(ctx, request{method: http.MethodPost, path: batchPath(in.ID, "approve"),
		body: BatchChanges{in.MaxCostUSD, in.Concurrency}.body()})
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
			r.Output, r.NextOffset = part(*r.Output, 0, max(maxToolText/2/len(page.Results)-300,
				100)) // the rest is for the fields around it
			page.Results[i] = r
		}
	}
	return page, nil
}
