package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/testkit"
)

// document is the description as a program reads it.
func (f *front) document() map[string]any {
	f.t.Helper()
	return f.get("/openapi.json").is(200).fields()
}

func TestOpenAPIGolden(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	doc := f.document()
	doc["info"].(map[string]any)["version"] = "VERSION"
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/openapi.json", text.Bytes())
}

// undocumented are the routes that are no native ones, with what they are.
var undocumented = map[string]string{
	"GET /":                 "page",
	"GET /live":             "what a page follows",
	"GET /overview":         "page",
	"GET /worker-processes": "page",
	"GET /webhooks":         "page",
	"POST /webhooks/deliveries/:id/redeliver": "form of pages",
	"GET /cards":                          "part of a page",
	"GET /units/:id":                      "page",
	"GET /units/:id/steps":                "part of a page",
	"GET /compare":                        "page",
	"GET /batch-list":                     "page",
	"GET /batch-list/:id":                 "page",
	"GET /batch-list/:id/approve":         "page that asks",
	"POST /batch-list/:id/approve":        "its form",
	"GET /batch-list/:id/cancel":          "page that asks",
	"POST /batch-list/:id/cancel":         "its form",
	"GET /batch-list/:id/pause":           "page that asks",
	"POST /batch-list/:id/pause":          "its form",
	"GET /batch-list/:id/resume":          "page that asks",
	"POST /batch-list/:id/resume":         "its form",
	"GET /batch-list/:id/retry":           "page that asks",
	"POST /batch-list/:id/retry":          "its form",
	"GET /units/:id/cancel":               "page that asks",
	"POST /units/:id/cancel":              "its form",
	"GET /units/:id/retry":                "page that asks",
	"POST /units/:id/retry":               "its form",
	"GET /units/retry":                    "page that asks",
	"POST /units/retry":                   "its form",
	"GET /operate/queues/:name/pause":     "page that asks",
	"POST /operate/queues/:name/pause":    "its form",
	"POST /operate/queues/:name/resume":   "form of pages",
	"GET /operate/backends/:name/pause":   "page that asks",
	"POST /operate/backends/:name/pause":  "its form",
	"POST /operate/backends/:name/resume": "form of pages",
	"GET /static/*":                       "what pages load",
	"GET /stories":                        "page",
	"GET /stories/:name":                  "page",
	"GET /openapi.json":                   "the document itself",
	"GET /docs":                           "page that shows the document",
	"GET /docs/*":                         "what that page loads",
	"GET /asynqmon":                       "Asynqmon",
	"GET /asynqmon/*":                     "Asynqmon",
	"GET /metrics":                        "Prometheus",
	"POST /triggers/:name":                "webhooks of others, each in its own form",

	"POST /v1/files":                       "OpenAI's",
	"GET /v1/files":                        "OpenAI's",
	"GET /v1/files/:id":                    "OpenAI's",
	"GET /v1/files/:id/content":            "OpenAI's",
	"DELETE /v1/files/:id":                 "OpenAI's",
	"POST /v1/batches":                     "OpenAI's",
	"GET /v1/batches":                      "OpenAI's",
	"GET /v1/batches/:id":                  "OpenAI's",
	"POST /v1/batches/:id/cancel":          "OpenAI's",
	"POST /v1/messages/batches":            "Anthropic's",
	"GET /v1/messages/batches":             "Anthropic's",
	"GET /v1/messages/batches/:id":         "Anthropic's",
	"GET /v1/messages/batches/:id/results": "Anthropic's",
	"POST /v1/messages/batches/:id/cancel": "Anthropic's",
	"DELETE /v1/messages/batches/:id":      "Anthropic's",
}

func TestEveryRouteIsDocumented(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	paths := f.document()["paths"].(map[string]any)
	seen := map[string]bool{}
	for _, r := range f.echo.Routes() {
		name := r.Method + " " + r.Path
		seen[name] = true
		path := regexp.MustCompile(`:(\w+)`).ReplaceAllString(r.Path, "{$1}")
		item, _ := paths[path].(map[string]any)
		_, documented := item[strings.ToLower(r.Method)]
		if documented == (undocumented[name] != "") {
			t.Errorf("%s: documented %t, exception %q", name, documented, undocumented[name])
		}
	}
	for name := range undocumented {
		if !seen[name] {
			t.Errorf("%s is no route any more", name)
		}
	}
}

func TestEveryOperationSaysWhatItNeedsAndAnswers(t *testing.T) {
	t.Parallel()
	doc := newFront(t).document()
	if doc["openapi"] != "3.1.0" {
		t.Errorf("version %v", doc["openapi"])
	}
	ids := map[string]bool{}
	for path, item := range doc["paths"].(map[string]any) {
		for method, raw := range item.(map[string]any) {
			o := raw.(map[string]any)
			name := method + " " + path
			id := o["operationId"].(string)
			if ids[id] || o["summary"] == "" {
				t.Errorf("%s: id %q comes twice, or no summary", name, id)
			}
			ids[id] = true
			checkPathParameters(t, name, path, o)
			for status, raw := range o["responses"].(map[string]any) {
				checkResponse(t, name+" "+status, status, raw.(map[string]any))
			}
		}
	}
}

func checkPathParameters(t *testing.T, name, path string, o map[string]any) {
	t.Helper()
	var named []string
	params, _ := o["parameters"].([]any)
	for _, raw := range params {
		if p := raw.(map[string]any); p["in"] == "path" {
			named = append(named, "{"+p["name"].(string)+"}")
		}
	}
	if inPath := regexp.MustCompile(`{\w+}`).FindAllString(path, -1); !slices.Equal(named, inPath) {
		t.Errorf("%s: parameters %v", name, named)
	}
}

func checkResponse(t *testing.T, name, status string, r map[string]any) {
	t.Helper()
	content, _ := r["content"].(map[string]any)
	if status == "204" {
		return // it has nothing to say
	}
	if r["description"] == "" || len(content) == 0 {
		t.Errorf("%s: %v", name, r)
	}
	if content["text/event-stream"] != nil {
		return // the description names the schemas of the events
	}
	want := "application/json"
	if content["application/octet-stream"] != nil {
		want = "application/octet-stream"
	}
	if content["text/csv"] != nil {
		want = "application/jsonl" // of which the schema is that of a line
	}
	if status >= "400" && !strings.Contains(name, "/readyz 503") {
		want = "application/problem+json"
	}
	media, _ := content[want].(map[string]any)
	schema, _ := media["schema"].(map[string]any)
	if schema["$ref"] == nil && schema["items"] == nil && schema["format"] != "binary" {
		t.Errorf("%s: no schema for %s", name, want)
	}
	if want == "application/problem+json" && schema["$ref"] != "#/components/schemas/Problem" {
		t.Errorf("%s: %v", name, schema)
	}
}

// schemas compiles the description's schemas as what they are: JSON Schema.
func (f *front) schemas() (*jsonschema.Compiler, map[string]any) {
	f.t.Helper()
	text := f.get("/openapi.json").is(200).body
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		f.t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("openapi.json", doc); err != nil {
		f.t.Fatal(err)
	}
	return c, doc.(map[string]any)["components"].(map[string]any)["schemas"].(map[string]any)
}

// held tells what in text does not fit the named schema.
func (f *front) misfit(name string, text []byte) error {
	f.t.Helper()
	c, _ := f.schemas()
	schema, err := c.Compile("openapi.json#/components/schemas/" + name)
	if err != nil {
		f.t.Fatalf("schema %s: %v", name, err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		f.t.Fatal(err)
	}
	return schema.Validate(value)
}

func TestExamplesFitTheirSchemas(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	c, schemas := f.schemas()
	without := []string{"BackendProcess", "BackendView", "BatchCounts", "BatchPause", "BatchProblem", "Check", "Content", "Expectation",
		"Failure", "Forecast", "Interval", "Latency", "ManifestUnit", "Offer", "OperatorPause", "Outcome", "OutputFile", "Pause",
		"ProblemError", "Process", "QueueView", "Reason", "Sample", "Secret", "Source", "Spec", "Spent", "StopRules", "StopWhen",
		"Synthesis", "TriggerBatch", "TriggerDelivery", "Usage"} // parts of others
	for name, raw := range schemas {
		if !regexp.MustCompile(`^[A-Z][a-z]+([A-Z][a-z]+)?$`).MatchString(name) {
			t.Errorf("schema %s: the name tells no reader anything", name)
		}
		schema, err := c.Compile("openapi.json#/components/schemas/" + name)
		if err != nil {
			t.Errorf("schema %s: %v", name, err)
			continue
		}
		examples, _ := raw.(map[string]any)["examples"].([]any)
		if (len(examples) == 0) != slices.Contains(without, name) {
			t.Errorf("schema %s has %d examples", name, len(examples))
		}
		for _, example := range examples {
			if err := schema.Validate(example); err != nil {
				t.Errorf("example of %s: %v", name, err)
			}
		}
	}
}

func TestAnswersFitTheirSchemas(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	queued := f.submit(mock(`,"labels":{"a":"b"},"max_cost_usd":1.5,"deadline":"2090-01-01T00:00:00Z","delay":60`))
	done := f.submit(mock(""))
	run := f.run(done, "done", threeSteps...).RunID.String()
	f.claim(f.submit(mock("")))
	for path, schema := range map[string]string{
		"/work-units/" + queued.String(): "Unit", "/work-units/" + done.String(): "Unit", "/work-units": "UnitList", "/work-units?limit=1": "UnitList",
		"/runs": "RunList", "/runs/" + run: "Run", "/readyz": "Readiness", "/backends": "Backends", "/queues": "Queues",
		"/work-units/" + queued.String() + "/explain": "Explanation", "/work-units/" + done.String() + "/explain": "Explanation",
		"/healthz": "Health", "/nope": "Problem", "/runs?limit=x": "Problem",
	} {
		if err := f.misfit(schema, f.get(path).body); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	var steps []json.RawMessage
	f.get("/runs/" + run + "/transcript").into(&steps)
	for i, s := range steps {
		if err := f.misfit("Step", s); err != nil {
			t.Errorf("step %d: %v", i+1, err)
		}
	}
}

// What the description promises of a body is what the door asks for.
func TestBodiesOfExamplesAreAccepted(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	_, schemas := f.schemas()
	body, err := json.Marshal(schemas["NewUnit"].(map[string]any)["examples"].([]any)[0])
	if err != nil {
		t.Fatal(err)
	}
	id := f.submit(string(body))
	f.post(fmt.Sprintf("/work-units/%s/cancel", id), "").is(202)
	if body, err = json.Marshal(schemas["Changes"].(map[string]any)["examples"].([]any)[0]); err != nil {
		t.Fatal(err)
	}
	f.post(fmt.Sprintf("/work-units/%s/retry", id), string(body)).is(202)
}
