package mock

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func mockRequest(t *testing.T, payload string) backend.Request {
	req := backendtest.NewRequest(t, "Summarise")
	req.Payload = json.RawMessage(payload)
	return req
}

func TestMockTellsTheTruth(t *testing.T) {
	req := mockRequest(t, `{"text":"Rain fell. It was late.\nWe went home.","list":[1,2,3],"n":7,"o":{"b":1,"a":2}}`)
	backendtest.Attach(t, &req, "table.csv", []byte("name,age\nada,36\n\"b, c\",40\n"))
	backendtest.Attach(t, &req, "main.go", []byte("package main\n\nfunc main() {\n}\n\nfunc other() {}\n"))
	backendtest.Attach(t, &req, "data.json", []byte(`{"zeta":1,"alpha":2}`))
	backendtest.Attach(t, &req, "paper.pdf", []byte("%PDF-1.7\n<< /Type /Pages /Kids [1 2] >>\n<< /Type /Page >>\n<< /Type/Page/Parent 1 >>\n"))
	backendtest.Attach(t, &req, "noise.bin", []byte{0, 1, 2})
	got := backendtest.Execute(t.Context(), t, Backend{}, req)
	if !got.Success || !strings.HasPrefix(got.Output, "mock (no model was called): ") {
		t.Fatalf("%v %q", got.Error, got.Output)
	}
	for _, fact := range []string{
		`payload.text: 8 words, 2 lines, 37 characters, begins "Rain fell."`,
		"payload.list: a list of 3 items", "payload.n: the value 7", "payload.o: an object with 2 keys: a, b",
		"table.csv: table, 2 rows below the header, 2 columns: name, age", "main.go: source code, 6 lines, 2 functions",
		"data.json: JSON, an object with 2 keys: alpha, zeta", "paper.pdf: PDF 1.7, 2 pages, ", "noise.bin: binary, 3 bytes",
	} {
		if !strings.Contains(got.Output, fact) {
			t.Errorf("the output lacks %q:\n%s", fact, got.Output)
		}
	}
	if cost := got.Metadata.TotalCostUSD; cost == nil || *cost != 0 || got.Metadata.SessionID != req.SessionID {
		t.Errorf("metadata %+v", got.Metadata)
	}
	kinds := ""
	for _, s := range got.Steps {
		kinds += s.Type + " "
	}
	if kinds != "system_text action tool_result action " {
		t.Errorf("steps: %s", kinds)
	}
	again := backendtest.Execute(t.Context(), t, Backend{}, req)
	if again.Output != got.Output {
		t.Error("the same request has two answers")
	}
}

func TestMockScript(t *testing.T) {
	for _, test := range []struct {
		name, script string
		change       func(*backend.Request)
		class        work.Class
		output       string
		words        string
		turns        int
	}{
		{name: "output", script: `{"output":"yes"}`, output: "yes", turns: 1},
		{name: "length", script: `{"output":"yes","output_bytes":10}`, output: "yes filler", turns: 1},
		{name: "cut", script: `{"output":"yes","output_bytes":2}`, output: "ye", turns: 1},
		{name: "fail", script: `{"fail":"billing","message":"no money"}`, class: work.ClassBilling, words: "no money", turns: 1},
		{name: "fail once", script: `{"fail":"infra","fail_times":1}`, class: work.ClassInfra, turns: 1},
		{name: "then succeed", script: `{"fail":"infra","fail_times":1,"output":"yes"}`, output: "yes", turns: 1,
			change: func(r *backend.Request) { r.Attempt = 2 }},
		{name: "turns", script: `{"steps":3,"output":"yes"}`, output: "yes", turns: 3, change: func(r *backend.Request) { r.MaxTurns = 3 }},
		{name: "too many turns", script: `{"steps":3}`, class: work.ClassMaxTurns, turns: 2, change: func(r *backend.Request) { r.MaxTurns = 2 }},
		{name: "too dear", script: `{"cost_usd":0.2}`, class: work.ClassMaxCost, turns: 1, change: func(r *backend.Request) { r.MaxCostUSD = new(0.1) }},
		{name: "unknown key", script: `{"slep":"1s"}`, class: work.ClassInvalidRequest, words: "slep"},
		{name: "unknown class", script: `{"fail":"bad luck"}`, class: work.ClassInvalidRequest, words: "bad luck"},
		{name: "negative", script: `{"steps":-1}`, class: work.ClassInvalidRequest, words: "steps"},
		{name: "schema", script: `{"output":"{\"a\":1}"}`, output: `{"a":1}`, turns: 1,
			change: func(r *backend.Request) { r.OutputSchema = json.RawMessage(`{"required":["a"]}`) }},
		{name: "no fit", script: `{"output":"{}"}`, class: work.ClassSchemaInvalid, turns: 1,
			change: func(r *backend.Request) { r.OutputSchema = json.RawMessage(`{"required":["a"]}`) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := mockRequest(t, `{"mock":`+test.script+`}`)
			if test.change != nil {
				test.change(&req)
			}
			got := backendtest.Execute(t.Context(), t, Backend{}, req)
			if test.class != "" {
				got.WantFailure(t, test.class, test.words)
			} else {
				got.WantSuccess(t, test.output)
			}
			if got.Metadata.NumTurns != test.turns {
				t.Errorf("%d turns, want %d", got.Metadata.NumTurns, test.turns)
			}
		})
	}
}

func TestMockSleepObeysItsCaller(t *testing.T) {
	for _, cause := range []error{work.ErrTimeout, work.ErrCancelled} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
		got := backendtest.Execute(ctx, t, Backend{}, mockRequest(t, `{"mock":{"sleep":"1h","steps":2}}`))
		cancel()
		if timeout := errors.Is(cause, work.ErrTimeout); got.Success || (got.Error != nil) != timeout || timeout &&
			got.Error.Class != work.ClassTimeout {
			t.Errorf("%v: success %v, error %v", cause, got.Success, got.Error)
		}
		if len(got.Steps) < 3 || got.Steps[1].Type != transcript.Action {
			t.Errorf("the transcript is lost: %+v", got.Steps)
		}
	}
	got := backendtest.Execute(t.Context(), t, Backend{}, mockRequest(t, `{"mock":{"sleep":"30ms","steps":3}}`))
	if !got.Success || got.Took < 30*time.Millisecond {
		t.Errorf("success %v after %v", got.Success, got.Took)
	}
}

func TestMockWithoutAFile(t *testing.T) {
	req := mockRequest(t, `{}`)
	req.Files = []backend.File{{Name: "gone.txt", Path: "/nonexistent/gone.txt"}}
	backendtest.Execute(t.Context(), t, Backend{}, req).WantFailure(t, work.ClassInvalidRequest, "gone.txt")
}
