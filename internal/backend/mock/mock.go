// Package mock is a backend without a model, for demos and tests.
//
//	mock.go   runs what payload.mock says
//	call.go   answers in the shape of each API
//	look.go   what can be told of payload and files without a model
package mock

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/roots"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Backend answers without a model: it counts what is in the payload and the
// files, and says so. The same request always gets the same answer.
type Backend struct{}

// Name is the backend's word.
func (Backend) Name() string { return "mock" }

// Available is always true: nothing is needed.
func (Backend) Available(context.Context) error { return nil }

const prefix = "mock (no model was called): "

// script is payload.mock: what a demo or a test wants to happen.
type script struct {
	Sleep       work.Seconds `json:"sleep"`        // spread over the steps
	Steps       *int         `json:"steps"`        // tool calls, one per turn
	Fail        work.Class   `json:"fail"`         // end with this failure …
	FailTimes   int          `json:"fail_times"`   // … on the first so many attempts; 0: always
	Message     string       `json:"message"`      // of the failure
	Output      string       `json:"output"`       // instead of the summary
	Repaired    string       `json:"repaired"`     // instead of output, when that was not accepted
	OutputBytes int          `json:"output_bytes"` // cut or filled up to this length
	CostUSD     float64      `json:"cost_usd"`     // as if it had cost this

	Files map[string]string `json:"files"` // names and texts to leave in the run's directory
}

const (
	maxSteps  = 10_000
	maxOutput = 64 << 20
)

// readScript takes payload.mock out of the payload.
func readScript(payload json.RawMessage) (script, map[string]json.RawMessage, error) {
	var s script
	var values map[string]json.RawMessage
	if len(payload) > 0 {
		if err := json.Unmarshal(payload, &values); err != nil {
			return s, nil, fmt.Errorf("payload is not a JSON object: %w", err)
		}
	}
	raw, asked := values["mock"]
	delete(values, "mock")
	if !asked {
		return s, values, nil
	}
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&s); err != nil {
		return s, nil, fmt.Errorf("payload.mock: %w", err)
	}
	return s, values, s.check()
}

func (s script) check() error {
	switch {
	case s.Fail != "" && !slices.Contains(work.Classes(), s.Fail):
		return fmt.Errorf("payload.mock.fail: %q is no class of failure: take one of %v", s.Fail, work.Classes())
	case s.Steps != nil && (*s.Steps < 0 || *s.Steps > maxSteps):
		return fmt.Errorf("payload.mock.steps: %d is not between 0 and %d", *s.Steps, maxSteps)
	case s.OutputBytes < 0 || s.OutputBytes > maxOutput:
		return fmt.Errorf("payload.mock.output_bytes: %d is not between 0 and %d", s.OutputBytes, maxOutput)
	case s.Sleep < 0 || s.FailTimes < 0 || s.CostUSD < 0:
		return errors.New("payload.mock: sleep, fail_times and cost_usd cannot be negative")
	}
	return nil
}

func (s script) turns() int {
	if s.Steps == nil {
		return 1
	}
	return *s.Steps
}

func (s script) fails(attempt int) bool {
	return s.Fail != "" && (s.FailTimes == 0 || attempt <= s.FailTimes)
}

// Execute looks at what the unit brought and answers with what it saw.
func (Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	defer steps.Close()
	if req.Call != nil {
		return runCall(ctx, req, steps), nil
	}
	started := time.Now()
	result := backend.Result{Metadata: backend.Metadata{SessionID: cmp.Or(req.SessionID, uuid.NewString()), Model: "mock"}}
	s, values, err := readScript(req.Payload)
	if err != nil {
		result.Error = work.Fail(work.ClassInvalidRequest, err.Error())
		backend.Sanitize(&result, steps)
		return result, nil
	}
	result.Metadata.TotalCostUSD = &s.CostUSD
	steps.Add(transcript.Step{Type: transcript.SystemText, Text: fmt.Sprintf(
		"The mock backend calls no model and costs nothing. It reads the payload and %d attached files, and counts.", len(req.Files))})

	seen, err := look(req, values)
	if err != nil {
		result.Error = work.Fail(work.ClassInvalidRequest, err.Error())
	} else {
		result.Error = s.play(ctx, req, seen, &result, steps)
	}
	result.Success = result.Error == nil && ctx.Err() == nil
	result.Metadata.DurationMS = time.Since(started).Milliseconds()
	backend.Sanitize(&result, steps)
	return result, nil
}

// play acts the script out, one turn per tool call and one for the answer.
func (s script) play(
	ctx context.Context, req backend.Request, seen []sight, result *backend.Result, steps *transcript.Writer,
) *work.Failure {
	turns := s.turns()
	pause := s.Sleep.Duration() / time.Duration(max(1, turns))
	for turn := range turns {
		if req.MaxTurns > 0 && turn == req.MaxTurns {
			return backend.TooManyTurns(req)
		}
		result.Metadata.NumTurns = turn + 1
		s.turn(turn, seen, steps)
		if !sleep(ctx, pause) {
			return backend.Interrupted(context.Cause(ctx))
		}
	}
	if turns == 0 && !sleep(ctx, pause) {
		return backend.Interrupted(context.Cause(ctx))
	}
	if req.MaxCostUSD != nil && s.CostUSD > *req.MaxCostUSD {
		return work.Fail(work.ClassMaxCost,
			fmt.Sprintf("max_cost_usd was reached: spent $%g of $%g", s.CostUSD, *req.MaxCostUSD))
	}
	if s.fails(req.Attempt) {
		return work.Fail(s.Fail, cmp.Or(s.Message, "mock was asked to fail"))
	}
	if err := s.leave(req); err != nil {
		return work.Fail(work.ClassInvalidRequest, "payload.mock.files: "+err.Error())
	}
	if s.Repaired != "" && req.Repair != nil {
		s.Output = s.Repaired
	}
	result.Output = s.answer(seen)
	steps.Add(transcript.Step{Type: transcript.Action, Content: []transcript.Content{
		{Type: transcript.Text, Text: result.Output},
	}})
	return checkOutput(req, result.Output)
}

// leave writes files into the run's directory, and nowhere else.
func (s script) leave(req backend.Request) error {
	if len(s.Files) == 0 {
		return nil
	}
	root, err := req.OpenDir()
	if err != nil {
		return err
	}
	defer root.Close()
	for name, text := range s.Files {
		if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := roots.WriteFile(root, name, []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// turn writes one tool call and its result. The tool is real as far as it
// goes: its result is what it found out about one thing.
func (s script) turn(number int, seen []sight, steps *transcript.Writer) {
	at := sight{name: "nothing", facts: "the payload is empty and no file is attached"}
	if len(seen) > 0 {
		at = seen[number%len(seen)]
	}
	text := fmt.Sprintf("mock: looking at %s.", at.name)
	if number == 0 {
		text = fmt.Sprintf("mock: there are %d things to look at. First %s.", len(seen), at.name)
	}
	args, _ := json.Marshal(map[string]string{"name": at.name})
	id := fmt.Sprintf("mock_call_%d", number+1)
	steps.Add(transcript.Step{Type: transcript.Action, Content: []transcript.Content{
		{Type: transcript.Text, Text: text},
		{Type: transcript.ToolCall, ID: id, Name: "count", Args: string(args)},
	}})
	steps.Add(transcript.Step{Type: transcript.ToolResult, CallID: id, Text: at.facts})
}

func (s script) answer(seen []sight) string {
	output := s.Output
	if output == "" {
		output = prefix + summary(seen)
	}
	if s.OutputBytes == 0 {
		return output
	}
	const filler = " filler"
	if missing := s.OutputBytes - len(output); missing > 0 {
		output += strings.Repeat(filler, missing/len(filler)+1)
	}
	output, _ = work.Cut(output, s.OutputBytes)
	return output
}

// checkOutput holds the mock to output_schema like any other backend.
func checkOutput(req backend.Request, output string) *work.Failure {
	if len(req.OutputSchema) == 0 {
		return nil
	}
	schema, failure := backend.CompileSchema(req.OutputSchema)
	if failure != nil {
		return failure
	}
	if failure = backend.CheckOutput(schema, output); failure != nil {
		failure.Message += " (mock makes up no answer: put one that fits into payload.mock.output)"
	}
	return failure
}

// sleep waits, and tells whether it could do so to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
