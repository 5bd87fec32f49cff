package cli

import (
	"context"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Parser makes steps and a result of what one process of an agent writes. E is
// an event, one line of stdout. It embeds an Output. Its methods are called one
// at a time.
type Parser[E Event] interface {
	// Event takes an event, which is one line. Final is to be set when it is the
	// agent's last; the agent may say more and take that back.
	Event(e E, line []byte)
	// Result makes the run's result of the events. It is asked once, at the
	// end, and sets no Error for a run that the runner itself stopped.
	Result(end Ending) backend.Result

	Kept() *Output // the embedded one
}

// Limiter is a parser of an agent that does not keep all limits of a request by
// itself.
type Limiter interface {
	// Check is asked now and then whether the agent has reached one.
	Check() *work.Failure
}

// Event is what all agents' events have in common. They embed an EventType.
type Event interface{ eventType() string }

// EventType is the type of an event.
type EventType struct {
	Type string `json:"type"`
}

func (e EventType) eventType() string { return e.Type }

// Output is what every parser keeps of one process.
type Output struct {
	Req    backend.Request
	Schema *jsonschema.Schema // of the answer; nil: none
	Steps  *transcript.Writer
	Prices *backend.Prices
	Began  time.Time

	Final bool // the newest event is the agent's last
	// Missed is the size of the newest line that was too long to be taken. The
	// parser makes it 0 when an answer comes after that.
	Missed   int64
	Findings Findings
}

// NewOutput is the output of a process that begins now.
func NewOutput(req backend.Request, schema *jsonschema.Schema, steps *transcript.Writer, prices *backend.Prices) Output {
	return Output{Req: req, Schema: schema, Steps: steps, Prices: prices, Began: time.Now()}
}

// Output is the output of the unit's next process.
func (u Unit) Output(schema *jsonschema.Schema) Output {
	return NewOutput(u.Req, schema, u.Steps, u.Options.Prices)
}

// Kept is what every parser keeps.
func (o *Output) Kept() *Output { return o }

// CheckSchema tells how an answer does not fit the schema, nil when it does.
func (o *Output) CheckSchema(answer string) *work.Failure {
	failure := backend.CheckOutput(o.Schema, answer)
	o.Findings.SchemaMismatch = failure != nil
	return failure
}

// Handler calls a parser from the goroutines of the runner, one at a time.
type Handler struct {
	mu     sync.Mutex
	parse  func(line []byte)
	limits Limiter // nil: the agent keeps them
	result func(Ending) backend.Result
	out    *Output
}

// NewHandler returns the handler of a parser.
func NewHandler[E Event](p Parser[E]) *Handler {
	out := p.Kept()
	parse := func(line []byte) {
		var e E
		if err := backend.Decode(line, &e); err != nil || e.eventType() == "" {
			AddSystem(out.Steps, string(line)) // what cannot be read is kept as it is
			return
		}
		p.Event(e, line)
	}
	limits, _ := p.(Limiter)
	return &Handler{parse: parse, limits: limits, result: p.Result, out: out}
}

// Line takes one line of stdout, and tells whether it is the agent's last.
func (h *Handler) Line(line []byte) (final bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parse(line)
	return h.out.Final
}

// skip notes a line that was too long to be taken.
func (h *Handler) skip(size int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.out.Missed = size
}

// Check tells whether the agent has reached a limit. It waits for no line if
// there is nothing to check.
func (h *Handler) Check() *work.Failure {
	if h.limits == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.limits.Check()
}

// Result makes the run's result.
func (h *Handler) Result(end Ending) backend.Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	end.Missed = h.out.Missed
	return h.result(end)
}

// Run runs the unit's program once, and has a parser read what it writes.
func Run[E Event](ctx context.Context, u Unit, a Invocation, p Parser[E]) (backend.Result, Findings, error) {
	result, err := u.run(ctx, a, NewHandler(p))
	return result, p.Kept().Findings, err
}
