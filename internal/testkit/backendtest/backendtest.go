// Package backendtest runs backends in tests: requests, fake agents, recordings.
package backendtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/process"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

const OnePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

func Attach(t *testing.T, req *backend.Request, name string, data []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	req.Files = append(req.Files, backend.File{Name: name, Path: path, Size: int64(len(data))})
}

// Supervisor is what the agents are started with, as in the program.
var Supervisor process.Supervisor

// Start is what the TestMain of a package begins with whose tests run agents.
func Start() {
	Supervisor = process.Main(os.Args, os.Environ())
	fakecli.Main()
}

// RunLimit is how long a run that is to end may take: for ever, on any machine
// that works.
const RunLimit = 2 * time.Minute

// Run is one run of a backend in a test.
type Run struct {
	backend.Result
	err   error
	Took  time.Duration
	Steps []transcript.Step
}

func NewRequest(t *testing.T, prompt string) backend.Request {
	t.Helper()
	home := t.TempDir()
	dir := filepath.Join(home, "work")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return backend.Request{
		UnitID: uuid.New(), RunID: uuid.New(), Attempt: 1, Prompt: prompt, Home: home, Dir: dir,
		SessionID: uuid.NewString(), IdleTimeout: time.Hour,
	}
}

// Execute runs a request and sees that nothing of it is left. A run that does not
// end fails as one that was out of time.
func Execute(ctx context.Context, t *testing.T, b backend.Backend, req backend.Request) Run {
	t.Helper()
	steps := transcript.NewWriter(nil, transcript.Redactor([]string{"sk-secret-value"}))
	ctx, cancel := context.WithTimeout(ctx, RunLimit)
	defer cancel()
	started := time.Now()
	result, err := b.Execute(ctx, req, steps)
	got := Run{Result: result, err: err, Took: time.Since(started), Steps: steps.Steps()}
	if err != nil {
		t.Errorf("Execute: %v", err)
	}
	WantNoProcess(t, req)
	return got
}

func WantNoProcess(t *testing.T, req backend.Request) {
	t.Helper()
	if pids := Processes(req); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
}

func Processes(req backend.Request) []int {
	return process.Marked(func(mark string) bool { return strings.HasPrefix(mark, req.RunID.String()+"@") })
}

// fakePrices has what the fake agents' model costs: a call of 100 tokens in and
// 10 out, 40 of the 100 from a cache or not, costs 130 micro-dollars.
const fakePrices = `[{"model": "fake-model", "input": 1, "cache_read": 1, "output": 3},
	{"model": "priced", "input": 1, "cache_read": 1, "output": 3}]`

// FakeOptions runs a fake agent with little patience.
func FakeOptions(path string) cli.Options {
	prices, err := backend.ReadPrices([]byte(fakePrices))
	if err != nil {
		panic(err)
	}
	return cli.Options{
		Path: path, Supervisor: Supervisor, Prices: prices, Grace: 300 * time.Millisecond,
		StopPolicy: process.StopPolicy{Interrupt: 500 * time.Millisecond, Terminate: 300 * time.Millisecond},
	}
}

// Script makes a prompt of the fake agent's verbs.
func Script(lines ...string) string { return "@@ " + strings.Join(lines, "\n@@ ") }

func (got Run) WantSuccess(t *testing.T, output string) {
	t.Helper()
	if !got.Success || got.Error != nil || got.Output != output {
		t.Errorf("success %v, error %v, output %.200q; want success with %q", got.Success, got.Error, got.Output, output)
	}
}

func (got Run) WantFailure(t *testing.T, class work.Class, words ...string) {
	t.Helper()
	if got.Success || got.Error == nil || got.Error.Class != class {
		t.Fatalf("success %v, error %v; want a failure of class %s", got.Success, got.Error, class)
	}
	for _, word := range words {
		if !strings.Contains(got.Error.Message, word) {
			t.Errorf("message %q lacks %q", got.Error.Message, word)
		}
	}
}

func (got Run) Texts(kind string) (texts []string) {
	for _, s := range got.Steps {
		if s.Type == kind && kind != transcript.Action {
			texts = append(texts, s.Text)
		}
		for _, c := range s.Content {
			if kind == transcript.Action && c.Type == transcript.Text {
				texts = append(texts, c.Text)
			}
		}
	}
	return texts
}

func (got Run) WantStep(t *testing.T, kind, part string) {
	t.Helper()
	if !slices.ContainsFunc(got.Texts(kind), func(s string) bool { return strings.Contains(s, part) }) {
		t.Errorf("no %s step has %q: %.500q", kind, part, got.Texts(kind))
	}
}

func Args(t *testing.T, got Run) []string {
	t.Helper()
	var args []string
	if err := json.Unmarshal([]byte(got.Texts(transcript.Action)[0]), &args); err != nil {
		t.Fatal(err)
	}
	return args
}

// Said tells whether the agent has said just this.
func (got Run) Said(text string) bool { return slices.Contains(got.Texts(transcript.Action), text) }

func NewCall(t *testing.T, endpoint, body string) backend.Request {
	t.Helper()
	req := NewRequest(t, "")
	req.Call = &work.Call{Endpoint: endpoint, Body: json.RawMessage(body)}
	return req
}

const CitySchema = `{"type":"object","properties":{"city":{"type":"string"},"people":{"type":"integer"}},"required":["city","people"]}`

func (got Run) WantUsage(t *testing.T, want work.Usage, cost *float64, incomplete bool) {
	t.Helper()
	if got.Metadata.Usage != want || got.CostIncomplete != incomplete {
		t.Errorf("usage %+v, incomplete %v; want %+v, %v", got.Metadata.Usage, got.CostIncomplete, want, incomplete)
	}
	have := got.Metadata.TotalCostUSD
	if (have == nil) != (cost == nil) || have != nil && *have != *cost {
		t.Errorf("cost %s, want %s", dollars(have), dollars(cost))
	}
}

func dollars(cost *float64) string {
	if cost == nil {
		return "unknown"
	}
	return fmt.Sprint(*cost)
}
