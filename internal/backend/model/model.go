// Package model runs units on HTTP model APIs. Each API has an adapter in a package
// below: its requests, its events, its batches. Adapters import this package and
// never each other.
//
//	options.go       what an operator sets; connections for thousands of streams
//	model.go         runs one unit: calls, cost, result
//	cost.go          what a unit has cost, and what it may still cost
//	call.go          a unit that is one call, as its caller wrote it
//	answer.go        an answer as it streams in, and the steps it becomes
//	events.go        server-sent events
//	error.go         the APIs' errors by class, and when a limit ends
//	files.go         files as parts of a message
//	schema.go        output_schema as the APIs can enforce it
//	batch.go         calls through batches: a line of each, what came back
//	watchdog.go      ends a call that is silent for too long
package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// API is what differs between the HTTP model APIs, and how one is configured.
type API struct {
	*Options
	Name         string
	Variable     string // of the environment, without _API_KEY and _BASE_URL
	DefaultURL   string
	DefaultModel string
	MaxTokens    int64 // of one answer; 0: the API has a limit of its own
	Files        FileLimits
	// Probe asks the API for something that costs nothing.
	Probe func(context.Context) (*http.Response, error)
	// Send sends the conversation and returns the answer unread. The response
	// is there as well when its status makes it an error.
	Send func(context.Context, *Conversation) (*http.Response, error)
	// ReadEvent puts what an event of the stream says into the answer.
	ReadEvent func(res *http.Response, a *Answer, data []byte) error
	// ReadBody does so with an answer that came in one piece.
	ReadBody func(body []byte, a *Answer) error
	// Body is what Send sends, but without asking for a stream, and Endpoint
	// where to.
	Body     func(*Conversation) ([]byte, error)
	Endpoint string
	// Post sends a call as its caller wrote it, but never asks for a stream.
	Post func(context.Context, *work.Call) (*http.Response, error)
}

// Conversation is what is sent: the unit's own message, and what came after it.
type Conversation struct {
	Model, System string
	Parts         []Part // files, the prompt last
	Schema        map[string]any
	MaxTokens     int64
	Repair        *Repair
}

// Repair is an answer that was not what the schema asks, and what is wrong.
type Repair struct{ Answer, Complaint string }

// unit is one unit on its way through a model API. It has one turn, and
// one more when the answer has to be repaired.
type unit struct {
	api          *API
	req          *backend.Request
	steps        *transcript.Writer
	conversation Conversation
	schema       *jsonschema.Schema
	begun        time.Time

	turns      int
	waited     time.Duration
	model      string // as the API calls it
	usage      work.Usage
	cost       *float64
	unknown    bool     // a call was made whose cost cannot be told
	untrue     *float64 // a cost that a server told and that cannot be true
	incomplete bool
	capped     bool // max_cost_usd shortens the answer
}

// outcome is what one call came to.
type outcome struct {
	text    string
	failure *work.Failure
	stopped bool // the caller ended the run, and knows why
}

// runPrompt runs one unit. What waits for the model has a small frame and keeps
// what is bulky on the heap: thousands of stacks wait at once.
func runPrompt(ctx context.Context, api *API, req *backend.Request, steps *transcript.Writer) *backend.Result {
	u := &unit{api: api, req: req, steps: steps, begun: time.Now(), model: cmp.Or(req.Model, api.model())}
	req.Payload = nil // it is in the prompt
	return u.result(u.execute(ctx))
}

func (u *unit) result(r outcome) *backend.Result {
	result := &backend.Result{
		Success: r.failure == nil && !r.stopped, Output: r.text, Error: r.failure,
		Metadata: u.metadata(), CostIncomplete: u.incomplete,
	}
	backend.Sanitize(result, u.steps)
	u.steps.Close()
	return result
}

func (u *unit) metadata() backend.Metadata {
	m := backend.Metadata{
		Model: u.model, NumTurns: u.turns, Usage: u.usage,
		DurationMS: time.Since(u.begun).Milliseconds(), DurationAPIMS: u.waited.Milliseconds(),
	}
	if !u.unknown {
		m.TotalCostUSD = u.cost
	}
	if u.untrue != nil {
		m.TotalCostUSD = u.untrue // whoever keeps it leaves it out, and says so
	}
	if u.turns == 0 && !u.incomplete {
		m.TotalCostUSD = new(0.0) // no call was answered, and none was given up
	}
	return m
}

func (u *unit) execute(ctx context.Context) outcome {
	if failure := u.prepare(); failure != nil {
		return outcome{failure: failure}
	}
	first := u.call(ctx)
	if first.failure != nil || first.stopped || u.schema == nil {
		return first
	}
	first.text = backend.Unfence(first.text)
	first.failure = backend.CheckOutput(u.schema, first.text)
	if first.failure == nil || u.req.MaxTurns == 1 || u.req.MaxCostUSD != nil && u.unknown {
		return first
	}
	return u.repair(ctx, first)
}

// repair gives the model the validator's words and one more turn.
func (u *unit) repair(ctx context.Context, first outcome) outcome {
	complaint := first.failure.Message + "\nAnswer again, with nothing but JSON that fits the schema."
	u.conversation.Repair = &Repair{Answer: cmp.Or(first.text, "(nothing)"), Complaint: complaint}
	u.steps.Add(transcript.Step{Type: transcript.UserText, Text: complaint})
	second := u.call(ctx)
	if second.text == "" {
		second.text = first.text
	}
	if second.failure == nil && !second.stopped {
		second.text = backend.Unfence(second.text)
		second.failure = backend.CheckOutput(u.schema, second.text)
	}
	return second
}

// prepare makes what will be sent. What cannot be sent is found here, before
// it costs anything.
func (u *unit) prepare() *work.Failure {
	u.conversation = Conversation{Model: u.model, System: u.req.SystemPrompt, MaxTokens: u.api.MaxTokens}
	if u.model == "" {
		return work.Fail(work.ClassInvalidRequest, "no model is named: give the unit one, or the "+u.api.Name+" backend a default")
	}
	if len(u.req.OutputSchema) > 0 {
		schema, failure := backend.CompileSchema(u.req.OutputSchema)
		if failure != nil {
			return failure
		}
		u.schema, u.conversation.Schema = schema, strictSchema(u.req.OutputSchema)
		u.conversation.System = joined(u.conversation.System, backend.SchemaPrompt(u.req.OutputSchema))
	}
	if r := u.req.Repair; r != nil {
		u.conversation.Repair = &Repair{Answer: cmp.Or(r.Answer, "(nothing)"), Complaint: r.Words}
	}
	parts, failure := readParts(u.api.Name, u.req.Files, u.api.Files)
	u.conversation.Parts = append(parts, Part{Kind: textPart, Text: u.req.Prompt})
	return failure
}

func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + "\n\n" + b
}

// call sends the conversation once and reads the whole answer. An answer that is
// there already is paid for.
func (u *unit) call(ctx context.Context) outcome {
	if failure := u.afford(); failure != nil && u.req.Answer == nil {
		return outcome{failure: failure}
	}
	sent := time.Now()
	a := &Answer{steps: u.steps}
	idle := cmp.Or(u.req.IdleTimeout, work.DefaultIdle.Duration())
	watched, v := newWatchdog(ctx, cmp.Or(u.req.StartupTimeout, idle), idle)
	err := u.receive(watched, v, a)
	cause := context.Cause(watched)
	if err != nil && cause != nil {
		err = cause
	}
	v.stopWatching()
	a.finish()
	a.denyCalls("(not run: the " + u.api.Name + " backend offers no tools)")
	u.waited += time.Since(sent)
	u.account(a, sent, cause != nil)
	r := outcome{text: a.text()}
	switch {
	case err == nil:
		r.failure = u.stopFailure(a)
	case ctx.Err() != nil:
		r.failure, r.stopped = backend.Interrupted(context.Cause(ctx)), true
	default:
		r.failure = u.failure(err, a)
	}
	return r
}

var ErrCut = errors.New("the stream ended before the answer did")

func (u *unit) receive(ctx context.Context, v *watchdog, a *Answer) error {
	if given := u.req.Answer; given != nil {
		u.req.Answer = nil // to this call, and to no other
		return u.accept(given, a)
	}
	res, err := u.api.Send(ctx, &u.conversation)
	if res == nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	a.requestID = requestID(res.Header)
	if res.StatusCode/100 != 2 {
		return readAPIError(res)
	}
	if err != nil {
		return err
	}
	a.answered = true
	if u.schema == nil {
		u.conversation.Parts = nil // nothing will be sent again
	}
	v.reset()
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "text/event-stream" {
		return notAStream(res)
	}
	res.Body = watchedBody{res.Body, v}
	if err := eachEvent(res, a, func(data []byte) error { return u.api.ReadEvent(res, a, data) }); err != nil {
		return err
	}
	if !a.Ended {
		return ErrCut
	}
	return nil
}

// notAStream says what came instead; some servers tell of errors this way.
func notAStream(res *http.Response) error {
	failed := readAPIError(res)
	if failed.kind != "" || failed.Code != "" {
		return failed
	}
	return fmt.Errorf("the answer is no stream but %q: %s", res.Header.Get("Content-Type"), failed.Message)
}

// stopFailure says what it means that the model stopped where it did.
//
// A cut answer is a failure: taken for a whole one it would do more harm. The
// input did fit, and the same request would be cut again, so it is the request
// that has to change.
func (u *unit) stopFailure(a *Answer) *work.Failure {
	if a.Refusal.Len() > 0 {
		return work.Fail(work.ClassRefusal, "the model declined: "+a.Refusal.String())
	}
	if a.StopReason == stopDone && len(a.Calls) > 0 { // some servers have no word of their own for it
		a.StopReason = StopTool
	}
	switch a.StopReason {
	case StopLength:
		if u.capped {
			return work.Fail(work.ClassMaxCost, fmt.Sprintf(
				"max_cost_usd ($%g) was reached: the answer was cut after %d tokens", *u.req.MaxCostUSD, a.Usage.OutputTokens))
		}
		return work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
			"the answer was cut at the limit of %d output tokens; what there is of it is kept: ask for less, or raise the limit",
			a.Usage.OutputTokens))
	case StopContext:
		return work.Fail(work.ClassContextTooLong, "the model's context was full before its answer was complete")
	case StopRefusal:
		return work.Fail(work.ClassRefusal, "the model declined to answer")
	case StopTool:
		asked := "a tool"
		if len(a.Calls) > 0 {
			asked = fmt.Sprintf("the tool %q", a.Calls[0].name)
		}
		return work.Fail(work.ClassToolDenied, "the model asked for "+asked+
			", and the "+u.api.Name+" backend offers none; the call is in the transcript")
	}
	return nil
}

// failure says what kind of failure an error is.
func (u *unit) failure(err error, a *Answer) *work.Failure {
	var silent backend.Silence
	var api *APIError
	switch {
	case errors.As(err, &silent):
		return work.Fail(work.ClassHang, silent.What)
	case errors.As(err, &api):
		return api.failure(u.api.Name, a.requestID)
	case errors.Is(err, errTooMuch):
		return work.Fail(work.ClassInvalidRequest, u.api.Name+": "+err.Error()+inRequest(a.requestID))
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%w: %w", ErrCut, err)
	}
	return work.Fail(work.ClassInfra, u.api.Name+": "+err.Error()+inRequest(a.requestID))
}
