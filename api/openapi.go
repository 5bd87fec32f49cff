package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/hooks"
	"piecework/api/live"
	"piecework/api/ops"
	"piecework/api/problem"
	"piecework/api/view"
	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// OpenAPI returns the description of the native routes as JSON.
func (a *API) OpenAPI() ([]byte, error) { return a.huma.OpenAPI().MarshalJSON() }

func (a *API) openapi(c echo.Context) error {
	doc, err := a.OpenAPI()
	if err != nil {
		return fmt.Errorf("encode the API's description: %w", err)
	}
	return c.Blob(http.StatusOK, "application/json", doc)
}

// describe adds to the description what the Go types cannot say: what may be
// null, the words a field may hold, other content types, examples.
// requestBodies are the schemas that callers are held to.
var requestBodies = []string{"NewTrigger", "TriggerBatch", "NewUnit", "NewSchedule", "NewPause", "Changes", "NewBatch", "BatchOptions",
	"Source", "StopRules", "Synthesis",
	"BatchChanges", "BatchReason", "RetryBatch", "NewEndpoint", "EndpointChange", "Rotation"}

func (a *API) describe() {
	doc := a.huma.OpenAPI()
	live.DescribeStreams(doc)
	schemas := doc.Components.Schemas.Map()
	steps := doc.Components.Schemas.Schema(reflect.TypeFor[[]transcript.Step](), true, "")
	steps.Nullable = false
	for name, s := range schemas {
		if !slices.Contains(requestBodies, name) {
			s.AdditionalProperties = nil // later versions add fields
		}
	}
	describeUnits(schemas)
	describeRuns(schemas)
	live.DescribeEvents(schemas)
	describeFiles(doc, schemas)
	describeBatches(doc, schemas)
	hooks.DescribeTriggers(schemas)
	hooks.DescribeEndpoints(schemas)
	describeRest(schemas)
	describeMoney(schemas) // also of schemas that the others have added
	addExamples(schemas)
	for _, item := range doc.Paths {
		for _, operation := range []*huma.Operation{item.Get, item.Post, item.Put, item.Delete} {
			describeOperation(operation)
		}
	}
	submit := doc.Paths["/work-units"].Post
	done := *submit.Responses["202"]
	done.Description = "Final within the wait"
	submit.Responses["200"] = &done
	submit.Responses["202"].Description = "Accepted: committed, and not final yet"
	ready := doc.Paths["/readyz"].Get
	ready.Responses["503"] = &huma.Response{Description: "Units are refused", Content: ready.Responses["200"].Content}
	doc.Paths["/runs/{id}/transcript"].Get.Responses["200"] = transcriptResponse(steps)
}

func describeOperation(o *huma.Operation) {
	if o == nil {
		return
	}
	for _, p := range o.Parameters {
		if p.In == "path" && p.Name == "id" {
			// Not the schema that requests are held to: an id of another form is
			// one that is not there, 404.
			p.Schema = &huma.Schema{Type: huma.TypeString, Format: "uuid", Examples: []any{exampleID}}
		}
	}
	if busy := o.Responses["503"]; busy != nil {
		busy.Headers = map[string]*huma.Param{"Retry-After": {
			Description: "Seconds", Schema: &huma.Schema{Type: huma.TypeInteger},
		}}
	}
	for _, r := range o.Responses {
		if r.Headers == nil {
			r.Headers = map[string]*huma.Param{}
		}
		r.Headers[echo.HeaderXRequestID] = &huma.Param{Schema: &huma.Schema{Type: huma.TypeString}}
	}
}

// describeMoney makes a number or null of amounts, whose Go type the schema
// cannot look into.
func describeMoney(schemas map[string]*huma.Schema) {
	for _, s := range schemas {
		for field, p := range s.Properties {
			if p.Ref == "#/components/schemas/USD" {
				s.Properties[field] = &huma.Schema{Type: huma.TypeNumber, Format: "double", Nullable: true,
					Description: "US dollars, as far as known; null when nothing is. It is the whole when unpriced_runs is 0"}
			}
		}
	}
	delete(schemas, "USD")
}

func describeUnits(schemas map[string]*huma.Schema) {
	for _, name := range []string{"Unit", "UnitSummary"} {
		p := schemas[name].Properties
		p["id"].Format = "uuid"
		p["status"].Enum = view.Enum(work.States)
		p["error"] = view.OrNull(p["error"])
		p["cache"].Enum = view.Enum([]work.Cache{work.CacheHit, work.CacheMiss})
		p["cached_from"].Format = "uuid"
		p["labels"].Type, p["labels"].AdditionalProperties = huma.TypeObject, &huma.Schema{Type: huma.TypeString}
		for field, text := range map[string]string{
			"title": "The start of the rendered prompt", "summary": "The start of the output",
			"denials": "Tool calls that were denied, in all its runs; null when none of them counted",
			"timeout": "Seconds", "idle_timeout": "Seconds", "startup_timeout": "Seconds; the backend's own when absent",
			"cache_ttl":   "Seconds: how old a result may be that is taken over from an earlier run; absent when none may be",
			"cache":       "hit: the result is an earlier run's and cost nothing; miss: there was none to take over; absent until the unit has ended, and when it did not look",
			"cached_from": "The run whose result this is; it may be gone by now",
			"failures":    "Runs that failed and count against max_retries", "losses": "Runs whose worker process died or was stopped",
			"waits": "Runs that met a rate limit", "crashes": "Runs in which the backend's own process died",
		} {
			p[field].Description = text
		}
	}
	p := schemas["Unit"].Properties
	p["payload"].Type, p["payload"].AdditionalProperties = huma.TypeObject, true
	p["output_schema"].Type, p["output_schema"].AdditionalProperties = huma.TypeObject, true
	p["accept"].Type, p["accept"].AdditionalProperties = huma.TypeObject, true
	p["accept"].Description = "What the result must meet"
	p["request"].Type, p["request"].AdditionalProperties = huma.TypeObject, true
	p["request"].Description = "One call of the backend's API, in place of a prompt"
	p["output"].Description = "Whole; partial when the unit did not succeed"
	schemas["UnitList"].Properties["next"] = view.NextCursor()
}

func describeRuns(schemas map[string]*huma.Schema) {
	for _, name := range []string{"Run", "RunSummary"} {
		p := schemas[name].Properties
		p["id"].Format, p["unit_id"].Format, p["worker_process"].Format = "uuid", "uuid", "uuid"
		p["worker_process"].Nullable, p["output_files"].Nullable = true, false
		p["status"].Enum = view.Enum(work.RunStatuses)
		p["error"] = view.OrNull(p["error"])
		for field, text := range map[string]string{
			"attempt": "Counts a unit's runs from 1", "task": "The unit's title", "worker_type": "The backend",
			"live_status": "What it does now, or did last", "execution_time": "Seconds from claim to end",
			"duration_ms": "As the backend measured it", "duration_api_ms": "Spent waiting for the model",
			"cost_incomplete": "The run ended before its whole cost was known",
			"implausible":     "Figures that the backend told and that cannot be true: they are left out", "has_transcript": "There are steps to read",
			"transcript_removed_at": "When they were removed because they were old; null: they were not",
		} {
			p[field].Description = text
		}
	}
	schemas["RunList"].Properties["next"] = view.NextCursor()
}

func describeFiles(doc *huma.OpenAPI, schemas map[string]*huma.Schema) {
	p := schemas["File"].Properties
	p["id"].Format = "uuid"
	p["run_id"].Format, p["run_id"].Nullable = "uuid", true
	for field, text := range map[string]string{
		"run_id": "The run that left it behind; null for an upload", "media_type": "As the caller said, or as name and first bytes tell",
		"sha256": "Of the bytes, in hexadecimal", "filename": "Of an output file the path inside the run's directory",
	} {
		p[field].Description = text
	}
	p = schemas["OutputFile"].Properties
	p["id"].Format, p["id"].Nullable = "uuid", true
	p["id"].Description, p["reason"].Description = "For /files/{id}/content; null when it was not stored", "Why it was not stored"
	p["name"].Description, p["size"].Description = "Path inside the run's directory", "Bytes"
	schemas["FileList"].Properties["next"] = view.NextCursor()

	binary := &huma.Schema{Type: huma.TypeString, Format: "binary"}
	doc.Paths["/files"].Post.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"multipart/form-data": {Schema: &huma.Schema{
			Type: huma.TypeObject, Required: []string{"file"}, AdditionalProperties: false,
			Properties: map[string]*huma.Schema{"file": binary},
		}},
	}}
	content := doc.Paths["/files/{id}/content"].Get
	whole := &huma.Response{
		Description: "The bytes, always as an attachment", Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: binary}},
		Headers: map[string]*huma.Param{"Content-Disposition": {Schema: &huma.Schema{Type: huma.TypeString}}},
	}
	part := *whole
	part.Description, part.Headers = "The part of it that Range asked for", maps.Clone(whole.Headers)
	content.Responses["200"], content.Responses["206"] = whole, &part
}

func describeRest(schemas map[string]*huma.Schema) {
	spec := schemas["Spec"].Properties
	spec["labels"].Type, spec["labels"].AdditionalProperties = huma.TypeObject, &huma.Schema{Type: huma.TypeString}
	for _, field := range []string{"payload", "output_schema", "accept", "request"} {
		spec[field].Type, spec[field].AdditionalProperties = huma.TypeObject, true
	}
	schemas["Schedule"].Properties["catch_up"].Enum = schemas["NewSchedule"].Properties["catch_up"].Enum
	last := schemas["Schedule"].Properties["last_unit"]
	last.Format, last.Nullable = "uuid", true
	schemas["Failure"].Properties["class"].Enum = view.Enum(work.Classes())
	schemas["Pause"].Properties["class"].Enum = view.Enum(work.Classes())
	schemas["BackendView"].Properties["capabilities"].Items.Enum = view.Enum(work.Capabilities)
	for _, name := range []string{"BackendView", "QueueView", "PauseState"} {
		p := schemas[name].Properties
		p["paused"] = view.OrNull(p["paused"])
	}
	schemas["Outcome"].Properties["status"].Enum = view.Enum(work.RunStatuses)
	schemas["Outcome"].Properties["class"].Enum = view.Enum(work.Classes())
	process := schemas["Process"].Properties
	process["id"].Format, process["queues"].Nullable, process["backends"].Nullable = "uuid", false, false
	schemas["Offer"].Properties["capabilities"].Items.Enum = view.Enum(work.Capabilities)
	schemas["Problem"].Properties["errors"].Nullable = false
	schemas["Step"].Properties["content"].Nullable = false
}

func transcriptResponse(steps *huma.Schema) *huma.Response {
	text := &huma.Schema{Type: huma.TypeString}
	return &huma.Response{
		Description: "The steps in order. JSON comes gzipped, as it is stored, to whoever accepts that",
		Content: map[string]*huma.MediaType{
			"application/json":  {Schema: steps},
			"application/jsonl": {Schema: text, Example: `{"number":1,"time":"2026-01-02T03:04:05Z","type":"system_text","text":"…"}` + "\n"},
			"text/plain":        {Schema: text, Example: "── 1 03:04:05 system_text\n…\n"},
		},
		Headers: map[string]*huma.Param{echo.HeaderXRequestID: {Schema: text}},
	}
}

const exampleID = "0198f0c2-7b1e-7c3a-9d55-2f6a1c0e4b77"

func addExamples(schemas map[string]*huma.Schema) {
	unit, run := exampleUnit()
	whole := newUnitView(unit, []work.Run{run})
	short := unit
	short.Output = nil
	example := problem.New(http.StatusUnprocessableEntity, "must lie between 0.001 and 86400 seconds",
		problem.Field{Pointer: "#/timeout", Detail: "must lie between 0.001 and 86400 seconds"})
	example.RequestID = "6f1c5f0e-3d0a-4f0e-9a53-0d8f5f1b2c3d"
	next := run.StartedAt.Add(time.Hour)
	schedule := work.Schedule{Name: "daily-report", Cron: "0 6 * * 1-5", Timezone: "Europe/Berlin", CatchUp: work.CatchUpOne,
		Title: unit.Title, Unit: unit.Spec, NextAt: next, CreatedAt: run.StartedAt}
	trigger := work.Trigger{Name: "reviews", Scheme: work.Scheme{Preset: "github"}, Secrets: []work.Secret{{Fingerprint: "5f1d2a90"}},
		Events: []string{"pull_request"}, Filter: `body.action == "opened"`, Mapping: map[string]string{"title": "body.pull_request.title"},
		MaxBodyBytes: work.DefaultTriggerBody,
		Unit:         &unit.Spec, CreatedAt: run.StartedAt, UpdatedAt: run.StartedAt}
	delivery := work.TriggerDelivery{ID: unit.ID, Trigger: trigger.Name, Delivery: "72d3162e-cc78-11e3-81ab-4c9367dc0958", Event: "pull_request",
		Outcome: work.DeliveryAccepted, UnitID: &unit.ID, ReceivedAt: run.StartedAt}
	for name, value := range map[string]any{
		"Trigger": trigger, "TriggerList": map[string]any{"items": []work.Trigger{trigger}},
		"NewTrigger": map[string]any{"preset": "github", "secrets": []string{"one of at least 24 characters"}, "events": trigger.Events,
			"filter": trigger.Filter, "mapping": trigger.Mapping, "unit": map[string]any{"backend": "mock", "prompt": "Review {title}"}},
		"TriggerDeliveries": map[string]any{"items": []work.TriggerDelivery{delivery}, "next": nil},
		"Schedule":          schedule, "ScheduleList": map[string]any{"items": []work.Schedule{schedule}},
		"NewSchedule": map[string]any{"cron": schedule.Cron, "timezone": schedule.Timezone,
			"unit": map[string]any{"backend": "mock", "prompt": "Summarise yesterday"}},
		"Unit": whole, "UnitSummary": view.UnitItem{Unit: short}, "Run": run, "RunSummary": view.RunItem{Run: run},
		"UnitList":  map[string]any{"items": []view.UnitItem{{Unit: short}}, "next": nil},
		"RunList":   map[string]any{"items": []view.RunItem{{Run: run}}, "next": nil},
		"Problem":   example,
		"NewUnit":   map[string]any{"backend": "mock", "prompt": "Summarise {text}", "payload": map[string]any{"text": "A long text"}},
		"File":      exampleFile(run),
		"FileList":  map[string]any{"items": []work.File{exampleFile(run)}, "next": nil},
		"Changes":   map[string]any{"max_turns": 40},
		"UnitUsage": unitUsage{work.Usage{InputTokens: 40, OutputTokens: 90, CacheReadTokens: 160}, 0.8},
		"Step":      exampleStep(run.StartedAt),
		"Explanation": ops.Explanation{ID: unit.ID, Status: work.Queued, Ahead: new(3), Reasons: []ops.Reason{
			{Code: "backend_unavailable", Detail: "claude is not here: install it, or set PIECEWORK_CLAUDE_PATH to the program"}}},
		"Backends": map[string]any{"items": []ops.BackendView{{Name: "mock", Status: "available", Capabilities: backend.Capabilities("mock"),
			Slots: 8, Processes: []ops.BackendProcess{{ID: run.WorkerProcess.String(), Hostname: "host", Available: true}}}}},
		"Queues": map[string]any{"items": []ops.QueueView{{Name: "default", Queued: 12, Due: 3, OldestWait: new(work.Seconds(4.5)),
			Running: 8, Processes: 1,
			Paused: &ops.OperatorPause{Since: run.StartedAt, By: "ann", Why: "the provider has an outage"}}}},
		"NewPause":   ops.NewPause{By: "ann", Why: "the provider has an outage"},
		"PauseState": ops.PauseState{Name: "default", Paused: &ops.OperatorPause{Since: run.StartedAt, By: "ann", Why: "the provider has an outage"}},
		"BulkResult": bulkResult{DryRun: true, Count: 1, Cost: work.NewCost(0.25, 0), Items: []view.UnitItem{{Unit: short}}},
		"Cost":       work.NewCost(0.42, 1),
		"ModelLimit": work.ModelLimit{Model: "claude-opus-5", Message: "429: too many requests", Until: &next},
		"Health":     map[string]any{"status": "ok"},
		"Pruned":     map[string]any{"dry_run": true, "units": 1200, "batches": 3, "files": 40, "bytes": 123456, "more": false},
		"Stats":      exampleStats(run.StartedAt),
		"Readiness": map[string]any{"status": "ready", "checks": map[string]ops.Check{
			"postgres": {OK: true, Detail: "reachable, schema up to date"}, "redis": {OK: true, Detail: "takes writes (single server)"},
			"workers": {OK: true, Detail: "1 worker processes with 8 slots"}, "backends": {OK: true, Detail: "mock"},
		}},
	} {
		schemas[name].Examples = []any{value}
	}
	for _, examples := range []map[string]any{hooks.Examples(unit), live.Examples(short, run, exampleStep(run.StartedAt))} {
		for name, value := range examples {
			schemas[name].Examples = []any{value}
		}
	}
}

func exampleStats(from time.Time) ops.Stats {
	finished, spent := map[work.State]int64{work.Succeeded: 11, work.Failed: 1}, work.Spent{Runs: 13, Cost: work.NewCost(0.42, 0)}
	return ops.Stats{
		Figures: work.Figures{
			Window: "24h", From: from, To: from.Add(time.Hour), Bucket: 3600, Accepted: 12, Finished: finished, Cost: spent,
			Series: []work.Interval{{From: from, Accepted: 12, Finished: finished, Cost: spent}},
			Runs: []work.Outcome{{Status: work.RunSucceeded, Count: 11, Cost: work.NewCost(0.4, 0)},
				{Status: work.RunFailed, Class: work.ClassRefusal, Count: 1, Cost: work.NewCost(0.02, 0)}},
			Models:   []work.Spent{{Name: "mock", Runs: 13, Cost: work.NewCost(0.42, 0)}},
			Backends: []work.Spent{{Name: "mock", Runs: 13, Cost: work.NewCost(0.42, 0)}}, Workers: []work.Spent{},
			Run: []work.Latency{},
		},
		Queues: []ops.QueueView{}, Processes: []work.Process{}, Checks: map[string]ops.Check{"redis": {OK: true, Detail: "takes writes (single server)"}},
	}
}

func exampleFile(run work.Run) work.File {
	return work.File{
		ID: uuid.MustParse("0198f0c2-7b44-7a02-b1f1-3d5e6f708192"), RunID: &run.ID, Name: "report.md", Size: 1204,
		MediaType: "text/markdown; charset=utf-8", CreatedAt: *run.CompletedAt,
		SHA256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
	}
}

func exampleStep(at time.Time) transcript.Step {
	return transcript.Step{Number: 2, Rev: 3, Time: at, Type: transcript.Action, Content: []transcript.Content{
		{Type: transcript.Text, Text: "I count the words."},
		{Type: transcript.ToolCall, ID: "call_1", Name: "count", Args: `{"name":"text"}`},
	}}
}

func exampleUnit() (work.Unit, work.Run) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ended := begun.Add(1500 * time.Millisecond)
	output, prompt, cost := "A long text: 3 words.", "Summarise A long text", 0.0
	process := uuid.MustParse("0198f0c2-0000-7c3a-9d55-2f6a1c0e4b77")
	unit := work.Unit{
		ID: uuid.MustParse(exampleID), Title: prompt, State: work.Succeeded, RunCount: 1, Denials: new(0), Summary: &output,
		Output:    &output,
		CreatedAt: begun, StartedAt: &begun, FinishedAt: &ended,
		Spec: work.Spec{
			Backend: "mock", Prompt: "Summarise {text}", Payload: json.RawMessage(`{"text":"A long text"}`),
			Labels: json.RawMessage(`{"team":"legal"}`), Timeout: work.DefaultTimeout, IdleTimeout: work.DefaultIdle,
			MissingKey: "fail", SessionPolicy: work.Resume, OnDenied: work.OnDeniedFail, Queue: work.DefaultQueue, Priority: work.DefaultPriority,
		},
	}
	run := work.Run{
		ID: uuid.MustParse("0198f0c2-7b20-7d11-8a30-5a0b9c8d7e6f"), UnitID: unit.ID, Attempt: 1, Title: prompt,
		WorkerType: "mock", WorkerProcess: &process, Status: work.RunSucceeded, Result: &output, RenderedPrompt: &prompt,
		NumTurns: 2, ToolCalls: 1, Denials: new(0), TotalCostUSD: &cost, DurationMS: 1480, ExecutionTime: 1.5,
		OutputFiles:   []work.OutputFile{},
		HasTranscript: true, StartedAt: begun, CompletedAt: &ended,
	}
	return unit, run
}
