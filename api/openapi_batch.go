package api

import (
	"cmp"
	"encoding/json"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"piecework/api/hooks"
	"piecework/api/live"
	"piecework/api/problem"
	"piecework/api/view"
	"piecework/internal/source"
	"piecework/internal/work"
	"piecework/jobs"
)

const linesDescription = `One JSON body, or, as application/x-ndjson, one unit a line: any number of lines, of which nothing is held in memory. ` +
	`A unit is what POST /work-units takes, with a custom_id beside it; without one it is the number of its line. A first line {"batch": …} has the fields of BatchOptions; with "line": 0 beside it, the lines after it are numbered from 1. ` +
	`Every line is looked at before the answer; with on_invalid reject, as when nothing is said, one that is wrong refuses them all. ` +
	`Repeated lines are told by the Idempotency-Key alone: bodies of lines are not compared.`

func describeBatches(doc *huma.OpenAPI, schemas map[string]*huma.Schema) {
	for _, name := range []string{"Batch", "BatchDetail", "SubmittedBatch"} {
		p := schemas[name].Properties
		p["status"].Enum = view.Enum(work.BatchStatuses)
		p["id"].Format = "uuid"
		for _, field := range []string{"source", "unit", "metadata", "synthesis"} {
			p[field].Type, p[field].AdditionalProperties = huma.TypeObject, true
		}
		p["paused"] = view.OrNull(p["paused"])
		p["stop_when"] = view.OrNull(p["stop_when"])
		p["input_file"].Format, p["synthesis_unit"].Format = "uuid", "uuid"
		p["problems"].Nullable = false
		for field, text := range map[string]string{
			"rejected": "Items that no unit could be made of", "problems": "The first of them", "counts": "total is always the sum of the others",
			"why": "It failed, was rejected or has expired", "unit": "What is the same in all its units", "source": "Where its units come from",
			"paused": "null: it goes on", "enumerated_at": "All its units were there",
		} {
			p[field].Description = text
		}
	}
	for field, text := range map[string]string{"expired": "Timed out",
		"denied":                "Units in which a tool was denied, whatever became of them; absent when there are none",
		"usage":                 "Of the units' final runs, once the batch is over",
		"prompt_cache_hit_rate": "With usage: how much of the input came from the provider's prompt cache, cache_read_tokens in cache_read_tokens + cache_creation_tokens + input_tokens, from 0 to 1",
	} {
		schemas["BatchCounts"].Properties[field].Description = text
	}
	cost := schemas["Forecast"].Properties["cost_usd"]
	text := cost.Description
	cost.Description = ""
	schemas["Forecast"].Properties["cost_usd"] = view.OrNull(cost)
	schemas["Forecast"].Properties["cost_usd"].Description = text
	schemas["BatchList"].Properties["next"] = view.NextCursor()
	submit := doc.Paths["/batches"].Post
	submit.Description = linesDescription
	submit.RequestBody.Content["application/x-ndjson"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString},
		Example: `{"batch":{"title":"contracts","unit":{"backend":"mock","prompt":"Summarise {text}"}}}` + "\n" + `{"custom_id":"a","payload":{"text":"One"}}` + "\n"}
	schema := func(t reflect.Type) *huma.Schema { return doc.Components.Schemas.Schema(t, true, "") }
	schema(reflect.TypeFor[jobs.BatchOptions]()) // of a first line of lines
	for path, content := range map[string]map[string]*huma.MediaType{
		"/batches/{id}/results": {"application/jsonl": {Schema: schema(reflect.TypeFor[jobs.Result]())},
			"text/csv": {Schema: &huma.Schema{Type: huma.TypeString}}},
		"/batches/{id}/manifest": {"application/json": {Schema: schema(reflect.TypeFor[Manifest]())}},
	} {
		doc.Paths[path].Get.Responses["200"] = &huma.Response{Description: "Units in the order in which they were submitted, in JSONL one a line", Content: content}
	}
	r := schemas["Result"]
	r.AdditionalProperties = nil
	r.Properties["status"].Enum, r.Properties["error"] = view.Enum(work.FinalStates), view.OrNull(r.Properties["error"])
	schemas["Manifest"].AdditionalProperties, schemas["ManifestUnit"].AdditionalProperties = nil, nil
	schemas["Manifest"].Properties["input"] = view.OrNull(schemas["Manifest"].Properties["input"])
	b := exampleBatch()
	begun, listed := b.CreatedAt, *b.EnumeratedAt
	options := map[string]any{"title": b.Title, "unit": b.Unit, "test_first": 10, "max_cost_usd": 5}
	for name, value := range map[string]any{
		"Batch": b, "BatchDetail": BatchView{Batch: b}, "SubmittedBatch": submittedBatch{BatchView: BatchView{Batch: b}},
		"BatchList": map[string]any{"items": []work.Batch{b}, "next": nil}, "BatchOptions": options,
		"NewBatch": map[string]any{"title": b.Title, "unit": b.Unit, "test_first": 10, "source": map[string]any{
			"type": source.TypeFiles, "path": "docs:contracts", "suffix": []string{".pdf"}}},
		"BatchChanges": map[string]any{"max_cost_usd": 20}, "BatchReason": map[string]any{"why": "the prompt is wrong"},
		"Manifest": Manifest{Batch: b.ID, Status: work.BatchCompleted, Counts: b.Counts, Units: []manifestUnit{}},
		"Result": jobs.Result{CustomID: "a.pdf", ID: uuid.MustParse(exampleID), Status: work.Succeeded, Output: new("A contract about …"), Backend: "mock",
			RunCount: 1, StartedAt: &begun, FinishedAt: &listed},
		"RetryBatch": map[string]any{"status": []string{"failed"}},
	} {
		schemas[name].Examples = []any{value}
	}
}

func exampleBatch() work.Batch {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	listed := begun.Add(time.Second)
	return work.Batch{ID: uuid.MustParse("0198f0c2-9a01-7c3a-9d55-2f6a1c0e4b77"), Title: "contracts", Status: work.BatchInProgress, Protocol: work.ProtocolNative,
		Source: json.RawMessage(`{"type":"files","path":"docs:contracts","suffix":[".pdf"],"on_invalid":"reject"}`),
		Unit:   json.RawMessage(`{"backend":"mock","prompt":"Summarise {file_name}"}`), Metadata: json.RawMessage(`{}`),
		Counts:    work.BatchCounts{Total: 120, Queued: 70, Running: 8, Succeeded: 41, Failed: 1, Cost: work.NewCost(3.2, 0)},
		CreatedAt: begun, EnumeratedAt: &listed}
}

// schemaName is what a Go type is called in the description.
func schemaName(t reflect.Type, hint string) string {
	if name := cmp.Or(live.SchemaName(t), hooks.SchemaName(t)); name != "" {
		return name
	}
	switch t {
	case reflect.TypeFor[problem.Field]():
		return "ProblemError"
	case reflect.TypeFor[unitView]():
		return "Unit"
	case reflect.TypeFor[view.UnitItem]():
		return "UnitSummary"
	case reflect.TypeFor[view.RunItem]():
		return "RunSummary"
	case reflect.TypeFor[jobs.UnitBody](), reflect.TypeFor[*jobs.UnitBody]():
		return "NewUnit"
	case reflect.TypeFor[retryBody](), reflect.TypeFor[*retryBody]():
		return "Changes"
	case reflect.TypeFor[jobs.ScheduleBody]():
		return "NewSchedule"
	case reflect.TypeFor[batchBody]():
		return "NewBatch"
	case reflect.TypeFor[BatchView]():
		return "BatchDetail"
	case reflect.TypeFor[jobs.StopRules](), reflect.TypeFor[*jobs.StopRules]():
		return "StopRules"
	case reflect.TypeFor[retryBatchBody](), reflect.TypeFor[*retryBatchBody]():
		return "RetryBatch"
	case reflect.TypeFor[jobs.TriggerBody]():
		return "NewTrigger"
	case reflect.TypeFor[jobs.TriggerBatch]():
		return "TriggerBatch"
	case reflect.TypeFor[work.Spec]():
		return "Spec"
	}
	return huma.DefaultSchemaNamer(t, hint)
}
