package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"piecework/internal/work"
)

// maxToolCall bounds one call, in bytes.
const maxToolCall = 16 << 20

// tools are the API as an agent meets it.
type tools struct{ client *client }

func newToolServer(c *client, version string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "piecework", Title: "Piecework", Version: version},
		&mcp.ServerOptions{Instructions: mcpInstructions})
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
	tool := &mcp.Tool{Name: name, Description: description, Annotations: &mcp.ToolAnnotations{ReadOnlyHint: kind == "reads",
		DestructiveHint: &ends, OpenWorldHint: &closed}}
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
	OnDenied         string            `json:"on_denied,omitempty" jsonschema:"when the agent answers after a tool was denied: fail (the default) or note"`
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
	Denials     *int          `json:"denials,omitempty"`
	work.Cost
	Runs       int        `json:"runs"`
	CreatedAt  *time.Time `json:"created_at,omitempty"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
}

func (t *tools) submitUnit(ctx context.Context, in submitUnitArguments) (any, error) {
	if in.IdempotencyKey == "" {
		in.IdempotencyKey = uuid.NewString()
	}
	return t.oneUnit(ctx, request{method: http.MethodPost, path: "/work-units", query: waiting(in.Wait), body: in.unitArguments,
		idempotencyKey: in.IdempotencyKey}, 0)
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
	return toolUnit{ID: u.ID.String(), CustomID: u.CustomID, Status: u.State, Title: u.Title, Backend: u.Backend, Model: u.Model,
		Error: u.Error, Denials: u.Denials,
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
