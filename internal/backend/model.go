package backend

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

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// modelAPI is what differs between the HTTP model APIs.
type modelAPI struct {
	name      string
	model     string // when the unit names none
	maxTokens int64  // of one answer; 0: the API has a limit of its own
	files     fileLimits
	prices    *Prices
	// send sends the conversation and returns the answer unread. The response
	// is there as well when its status makes it an error.
	send func(context.Context, *talk) (*http.Response, error)
	// hear reads the stream to its end and puts what it says into the answer.
	hear func(*http.Response, *answer) error
	// read takes an answer that came in one piece, as hear does a stream.
	read func(body []byte, a *answer) error
	// body is what send sends, but without asking for a stream, and endpoint
	// where to.
	body     func(*talk) ([]byte, error)
	endpoint string
	// post sends a call as its caller wrote it, but never asks for a stream.
	post func(context.Context, *work.Call) (*http.Response, error)
}

// talk is what is sent: the unit's own message, and what came after it.
type talk struct {
	model, system string
	parts         []part // files, the prompt last
	schema        map[string]any
	maxTokens     int64
	repair        *repair
}

// repair is an answer that was not what the schema asks, and what is wrong.
type repair struct{ answer, complaint string }

// modelUnit is one unit on its way through a model API. It has one turn, and
// one more when the answer has to be repaired.
type modelUnit struct {
	api    *modelAPI
	req    *Request
	steps  *transcript.Writer
	talk   talk
	schema *jsonschema.Schema
	begun  time.Time

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

// reply is what one call came to.
type reply struct {
	text    string
	failure *work.Failure
	stopped bool // the caller ended the run, and knows why
}

// runModel runs one unit. What waits for the model has a small frame and keeps
// what is bulky on the heap: thousands of stacks wait at once.
func runModel(ctx context.Context, api *modelAPI, req *Request, steps *transcript.Writer) *Result {
	u := &modelUnit{api: api, req: req, steps: steps, begun: time.Now(), model: cmp.Or(req.Model, api.model)}
	req.Payload = nil // it is in the prompt
	return u.result(u.execute(ctx))
}

func (u *modelUnit) result(r reply) *Result {
	result := &Result{
		Success: r.failure == nil && !r.stopped, Output: r.text, Error: r.failure,
		Metadata: u.metadata(), CostIncomplete: u.incomplete,
	}
	tidy(result, u.steps)
	u.steps.Close()
	return result
}

func (u *modelUnit) metadata() Metadata {
	m := Metadata{
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

func (u *modelUnit) execute(ctx context.Context) reply {
	if failure := u.prepare(); failure != nil {
		return reply{failure: failure}
	}
	first := u.call(ctx)
	if first.failure != nil || first.stopped || u.schema == nil {
		return first
	}
	first.text = unfenced(first.text)
	first.failure = checkOutput(u.schema, first.text)
	if first.failure == nil || u.req.MaxTurns == 1 || u.req.MaxCostUSD != nil && u.unknown {
		return first
	}
	return u.mend(ctx, first)
}

// mend gives the model the validator's words and one more turn.
func (u *modelUnit) mend(ctx context.Context, first reply) reply {
	complaint := first.failure.Message + "\nAnswer again, with nothing but JSON that fits the schema."
	u.talk.repair = &repair{answer: cmp.Or(first.text, "(nothing)"), complaint: complaint}
	u.steps.Add(transcript.Step{Type: transcript.UserText, Text: complaint})
	second := u.call(ctx)
	if second.text == "" {
		second.text = first.text
	}
	if second.failure == nil && !second.stopped {
		second.text = unfenced(second.text)
		second.failure = checkOutput(u.schema, second.text)
	}
	return second
}

// prepare makes what will be sent. What cannot be sent is found here, before
// it costs anything.
func (u *modelUnit) prepare() *work.Failure {
	u.talk = talk{model: u.model, system: u.req.SystemPrompt, maxTokens: u.api.maxTokens}
	if u.model == "" {
		return work.Fail(work.ClassInvalidRequest, "no model is named: give the unit one, or the "+u.api.name+" backend a default")
	}
	if len(u.req.OutputSchema) > 0 {
		schema, failure := compileSchema(u.req.OutputSchema)
		if failure != nil {
			return failure
		}
		u.schema, u.talk.schema = schema, narrowSchema(u.req.OutputSchema)
		u.talk.system = joined(u.talk.system, schemaWords(u.req.OutputSchema))
	}
	if r := u.req.Repair; r != nil {
		u.talk.repair = &repair{answer: cmp.Or(r.Answer, "(nothing)"), complaint: r.Words}
	}
	parts, failure := readParts(u.api.name, u.req.Files, u.api.files)
	u.talk.parts = append(parts, part{kind: textPart, text: u.req.Prompt})
	return failure
}

func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + "\n\n" + b
}

// call sends the conversation once and hears the answer out. An answer that is
// there already is paid for.
func (u *modelUnit) call(ctx context.Context) reply {
	if failure := u.afford(); failure != nil && u.req.Answer == nil {
		return reply{failure: failure}
	}
	sent := time.Now()
	a := &answer{steps: u.steps}
	idle := cmp.Or(u.req.IdleTimeout, work.DefaultIdle.Duration())
	watched, v := keepVigil(ctx, cmp.Or(u.req.StartupTimeout, idle), idle)
	err := u.listen(watched, v, a)
	cause := context.Cause(watched)
	if err != nil && cause != nil {
		err = cause
	}
	v.end()
	a.finish()
	a.deny("(not run: the " + u.api.name + " backend offers no tools)")
	u.waited += time.Since(sent)
	u.settle(a, sent, cause != nil)
	r := reply{text: a.said()}
	switch {
	case err == nil:
		r.failure = u.stopFailure(a)
	case ctx.Err() != nil:
		r.failure, r.stopped = interrupted(context.Cause(ctx)), true
	default:
		r.failure = u.failure(err, a)
	}
	return r
}

var errCut = errors.New("the stream ended before the answer did")

func (u *modelUnit) listen(ctx context.Context, v *vigil, a *answer) error {
	if given := u.req.Answer; given != nil {
		u.req.Answer = nil // to this call, and to no other
		return u.accept(given, a)
	}
	res, err := u.api.send(ctx, &u.talk)
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
		u.talk.parts = nil // nothing will be sent again
	}
	v.alive()
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "text/event-stream" {
		return notAStream(res)
	}
	res.Body = heartbeat{res.Body, v}
	if err := u.api.hear(res, a); err != nil {
		return err
	}
	if !a.ended {
		return errCut
	}
	return nil
}

// notAStream says what came instead; some servers tell of errors this way.
func notAStream(res *http.Response) error {
	failed := readAPIError(res)
	if failed.kind != "" || failed.code != "" {
		return failed
	}
	return fmt.Errorf("the answer is no stream but %q: %s", res.Header.Get("Content-Type"), failed.words)
}

// settle adds what a call has used. Whether a call is charged that was given up
// before it was answered nobody can tell.
func (u *modelUnit) settle(a *answer, sent time.Time, givenUp bool) {
	if !a.answered {
		u.incomplete = u.incomplete || givenUp
		return
	}
	u.turns++
	u.model = cmp.Or(a.model, u.model)
	u.usage = u.usage.And(a.usage)
	u.incomplete = u.incomplete || !a.told
	cost := a.cost
	if cost != nil && !work.PlausibleCost(*cost) {
		u.unknown, u.untrue = true, cost
		return
	}
	if cost == nil && a.usage != (work.Usage{}) && a.usage.Plausible() {
		cost = u.price(a, sent)
	}
	if cost == nil {
		u.unknown = true
		return
	}
	u.cost = new(*cost + deref(u.cost))
}

// price looks under the name the API gave the model, which may be a dated one
// that the table does not have, then under the one asked for.
func (u *modelUnit) price(a *answer, at time.Time) *float64 {
	for _, name := range []string{a.model, u.talk.model} {
		if rate, known := u.api.prices.rate(name, at, promptTokens(a.usage)); known {
			cost := rate.cost(a.usage)
			if a.batched {
				cost *= batchShare
			}
			return &cost
		}
	}
	return nil
}

func deref(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}

// leastAnswer is the shortest answer worth paying for; some APIs take no less.
const leastAnswer = 16

// bytesPerToken is more than most text has, so that the estimate of an input
// is rather too low than too high: nothing affordable is refused.
const bytesPerToken = 5

// afford refuses a call whose price is not known, or whose input alone would
// cost more than max_cost_usd leaves, and shortens the answer to what the rest pays for.
func (u *modelUnit) afford() *work.Failure {
	if u.req.MaxCostUSD == nil {
		return nil
	}
	tokens := u.talk.bytes() / bytesPerToken
	rate, known := u.api.prices.rate(u.talk.model, time.Now(), tokens)
	if !known {
		return noPrice(u.talk.model)
	}
	left := *u.req.MaxCostUSD - deref(u.cost)
	input := float64(tokens) * rate.Input / perMillion
	room := int64((left - input) / rate.Output * perMillion)
	if rate.Output > 0 && room < leastAnswer || input > left {
		return work.Fail(work.ClassMaxCost, fmt.Sprintf(
			"max_cost_usd ($%g) does not pay for this call: $%.6f is spent, and some %d tokens of input cost $%.6f with %s",
			*u.req.MaxCostUSD, deref(u.cost), tokens, input, u.talk.model))
	}
	if rate.Output > 0 && (u.api.maxTokens == 0 || room < u.api.maxTokens) {
		u.talk.maxTokens, u.capped = room, true
	}
	return nil
}

// bytes is the size of the text that is sent; what a picture costs depends on
// its resolution, and is left out.
func (t *talk) bytes() int64 {
	n := len(t.system)
	for _, p := range t.parts {
		if p.kind == textPart {
			n += len(p.text)
		}
	}
	if t.repair != nil {
		n += len(t.repair.answer) + len(t.repair.complaint)
	}
	return int64(n)
}

// stopFailure says what it means that the model stopped where it did.
//
// A cut answer is a failure: taken for a whole one it would do more harm. The
// input did fit, and the same request would be cut again, so it is the request
// that has to change.
func (u *modelUnit) stopFailure(a *answer) *work.Failure {
	if a.refusal.Len() > 0 {
		return work.Fail(work.ClassRefusal, "the model declined: "+a.refusal.String())
	}
	if a.stop == stopDone && len(a.calls) > 0 { // some servers have no word of their own for it
		a.stop = stopTool
	}
	switch a.stop {
	case stopLength:
		if u.capped {
			return work.Fail(work.ClassMaxCost, fmt.Sprintf(
				"max_cost_usd ($%g) was reached: the answer was cut after %d tokens", *u.req.MaxCostUSD, a.usage.OutputTokens))
		}
		return work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
			"the answer was cut at the limit of %d output tokens; what there is of it is kept: ask for less, or raise the limit",
			a.usage.OutputTokens))
	case stopContext:
		return work.Fail(work.ClassContextTooLong, "the model's context was full before its answer was complete")
	case stopRefusal:
		return work.Fail(work.ClassRefusal, "the model declined to answer")
	case stopTool:
		asked := "a tool"
		if len(a.calls) > 0 {
			asked = fmt.Sprintf("the tool %q", a.calls[0].name)
		}
		return work.Fail(work.ClassToolDenied, "the model asked for "+asked+", and the "+u.api.name+" backend offers none; the call is in the transcript")
	}
	return nil
}

// failure says what kind of failure an error is.
func (u *modelUnit) failure(err error, a *answer) *work.Failure {
	var silent hang
	var api *apiError
	switch {
	case errors.As(err, &silent):
		return work.Fail(work.ClassHang, silent.what)
	case errors.As(err, &api):
		return api.failure(u.api.name, a.requestID)
	case errors.Is(err, errTooMuch):
		return work.Fail(work.ClassInvalidRequest, u.api.name+": "+err.Error()+inRequest(a.requestID))
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%w: %w", errCut, err)
	}
	return work.Fail(work.ClassInfra, u.api.name+": "+err.Error()+inRequest(a.requestID))
}
