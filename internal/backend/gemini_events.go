package backend

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// geminiTold is what one process of the Gemini CLI has told so far.
type geminiTold struct {
	req    Request
	schema *jsonschema.Schema
	record *geminiRecord
	steps  *transcript.Writer
	prices *Prices
	began  time.Time

	mu      sync.Mutex // events and checks come from two sides
	session string
	model   string
	text    string          // the newest of the model's
	saying  strings.Builder // what it is just saying
	draft   int             // the step that shows it, 0: none yet
	stride  int             // show it again when it is so long
	open    map[string]bool // calls without an answer
	rounds  int             // of the model, as far as the events show
	due     bool            // a call was answered, or nothing said yet: what comes is a new round
	warned  string          // the newest error that ended nothing
	result  *geminiEvent
	final   bool
	missed  atomic.Int64 // see agent
	heard   heard
}

func newGeminiTold(req Request, schema *jsonschema.Schema, record *geminiRecord, steps *transcript.Writer) *geminiTold {
	return &geminiTold{req: req, schema: schema, record: record, steps: steps, began: time.Now(), open: map[string]bool{}, due: true}
}

type geminiEvent struct {
	Type       string          `json:"type"`
	SessionID  string          `json:"session_id"`
	Model      string          `json:"model"`
	Role       string          `json:"role"`
	Content    string          `json:"content"`
	ToolName   string          `json:"tool_name"`
	ToolID     string          `json:"tool_id"`
	Parameters json.RawMessage `json:"parameters"`
	Status     string          `json:"status"`
	Output     string          `json:"output"`
	Severity   string          `json:"severity"`
	Message    string          `json:"message"`
	Error      struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	Stats struct {
		Total      int64   `json:"total_tokens"`
		Input      int64   `json:"input_tokens"`
		Output     int64   `json:"output_tokens"`
		Cached     int64   `json:"cached"`
		DurationMS float64 `json:"duration_ms"`
	} `json:"stats"`
}

// line takes one line of stdout. Nothing that it cannot read is lost: it goes
// into the transcript as it is.
func (t *geminiTold) line(line []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	var e geminiEvent
	if err := decode(line, &e); err != nil || e.Type == "" {
		addSystem(t.steps, string(line))
		return t.final
	}
	if e.Type == "message" && e.Role == "assistant" {
		t.final = false
		t.round()
		t.missed.Store(0)
		t.say(e.Content)
		return false
	}
	t.said()
	switch e.Type {
	case "init":
		t.final, t.session, t.model = false, e.SessionID, e.Model
		addSystem(t.steps, "Gemini CLI, model "+e.Model)
	case "message": // the prompt again
	case "tool_use":
		t.final = false
		t.round()
		t.open[e.ToolID] = true
		t.steps.Extend(transcript.Content{Type: transcript.ToolCall, ID: e.ToolID, Name: e.ToolName, Args: string(e.Parameters)})
	case "tool_result":
		t.answer(e)
	case "error":
		t.warned = e.Message
		t.steps.Add(transcript.Step{Type: transcript.SystemText, Text: e.Message, IsError: true})
	case "result":
		t.result, t.final = &e, true
	default:
		addEvent(t.steps, e.Type, line)
	}
	return t.final
}

// round counts the model's turns: what it says after an answer is a new one.
func (t *geminiTold) round() {
	if t.due {
		t.rounds++
	}
	t.due = false
}

const firstStride = 256

// say shows the model's words as they come, in ever larger strides and never
// up to the middle of one: half a secret would not be known.
func (t *geminiTold) say(delta string) {
	t.saying.WriteString(delta)
	if t.saying.Len() < t.stride {
		return
	}
	if text := t.saying.String(); strings.ContainsFunc(text, unicode.IsSpace) {
		t.show(text[:strings.LastIndexFunc(text, unicode.IsSpace)])
		t.stride = len(text)*3/2 + firstStride
	}
}

func (t *geminiTold) show(text string) {
	if t.draft > 0 {
		t.steps.Rewrite(t.draft, text)
		return
	}
	t.draft = t.steps.Extend(transcript.Content{Type: transcript.Text, Text: text})
}

// said ends what the model was saying: whatever is no word of it does.
func (t *geminiTold) said() {
	if t.saying.Len() == 0 {
		return
	}
	t.text = t.saying.String()
	t.show(t.text)
	t.saying.Reset()
	t.draft, t.stride = 0, 0
}

func (t *geminiTold) answer(e geminiEvent) {
	t.think()
	text := e.Output
	if text == "" {
		text = e.Error.Message
	}
	t.steps.Add(transcript.Step{
		Type: transcript.ToolResult, CallID: e.ToolID, Text: text, IsError: e.Status == "error", Denied: e.Error.Type == "policy_violation",
	})
	delete(t.open, e.ToolID)
	t.due = true
}

// think adds the thoughts that the record has: the events have none.
func (t *geminiTold) think() {
	for _, text := range t.record.update() {
		t.steps.Add(transcript.Step{Type: transcript.Reasoning, Text: text})
	}
}

// check stops a run that is at a limit. The client keeps max_turns too, by its
// settings.
func (t *geminiTold) check() *work.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.req.MaxCostUSD != nil {
		t.think()
	}
	if f := t.prices.overspent(t.req, t.uses()); f != nil {
		return f
	}
	if t.req.MaxTurns < 1 || t.rounds < t.req.MaxTurns || !t.due || len(t.open) > 0 {
		return nil
	}
	return tooManyTurns(t.req)
}

// uses is what the calls of the model have used, by the record.
func (t *geminiTold) uses() (uses []use) {
	for _, u := range t.record.uses {
		u.model = cmp.Or(u.model, t.model, t.req.Model)
		uses = append(uses, u)
	}
	return uses
}

// turns counts the calls of the model: by the record, else by the events.
func (t *geminiTold) turns() int { return max(len(t.record.turns), t.rounds) }

// cutOff names a run that ended well and yet was stopped.
func cutOff(words string) *work.Failure {
	return work.Fail(work.ClassInfra, fmt.Sprintf("the client stopped: %s", words))
}
