package gemini

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// parser is what one process of the Gemini CLI has told so far.
type parser struct {
	cli.Output

	record *record

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
	result  *event
}

func newParser(record *record, out cli.Output) *parser {
	return &parser{Output: out, record: record, open: map[string]bool{}, due: true}
}

type event struct {
	cli.EventType
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

// Event takes one event.
func (t *parser) Event(e event, line []byte) {
	if e.Type == "message" && e.Role == "assistant" {
		t.Final = false
		t.round()
		t.Missed = 0
		t.say(e.Content)
		return
	}
	t.said()
	switch e.Type {
	case "init":
		t.Final, t.session, t.model = false, e.SessionID, e.Model
		cli.AddSystem(t.Steps, "Gemini CLI, model "+e.Model)
	case "message": // the prompt again
	case "tool_use":
		t.Final = false
		t.round()
		t.open[e.ToolID] = true
		t.Steps.Extend(transcript.Content{Type: transcript.ToolCall, ID: e.ToolID, Name: e.ToolName, Args: string(e.Parameters)})
	case "tool_result":
		t.answer(e)
	case "error":
		t.warned = e.Message
		t.Steps.Add(transcript.Step{Type: transcript.SystemText, Text: e.Message, IsError: true})
	case "result":
		t.result, t.Final = &e, true
	default:
		cli.AddEvent(t.Steps, e.Type, line)
	}
}

// round counts the model's turns: what it says after an answer is a new one.
func (t *parser) round() {
	if t.due {
		t.rounds++
	}
	t.due = false
}

const firstStride = 256

// say shows the model's words as they come, in ever larger strides and never
// up to the middle of one: half a secret would not be known.
func (t *parser) say(delta string) {
	t.saying.WriteString(delta)
	if t.saying.Len() < t.stride {
		return
	}
	if text := t.saying.String(); strings.ContainsFunc(text, unicode.IsSpace) {
		t.show(text[:strings.LastIndexFunc(text, unicode.IsSpace)])
		t.stride = len(text)*3/2 + firstStride
	}
}

func (t *parser) show(text string) {
	if t.draft > 0 {
		t.Steps.Rewrite(t.draft, text)
		return
	}
	t.draft = t.Steps.Extend(transcript.Content{Type: transcript.Text, Text: text})
}

// said ends what the model was saying: whatever is no word of it does.
func (t *parser) said() {
	if t.saying.Len() == 0 {
		return
	}
	t.text = t.saying.String()
	t.show(t.text)
	t.saying.Reset()
	t.draft, t.stride = 0, 0
}

func (t *parser) answer(e event) {
	t.think()
	text := e.Output
	if text == "" {
		text = e.Error.Message
	}
	t.Steps.Add(transcript.Step{
		Type: transcript.ToolResult, CallID: e.ToolID, Text: text, IsError: e.Status == "error", Denied: e.Error.Type == "policy_violation",
	})
	delete(t.open, e.ToolID)
	t.due = true
}

// think adds the thoughts that the record has: the events have none.
func (t *parser) think() {
	for _, text := range t.record.update() {
		t.Steps.Add(transcript.Step{Type: transcript.Reasoning, Text: text})
	}
}

// Check stops a run that is at a limit. The client keeps max_turns too, by its
// settings.
func (t *parser) Check() *work.Failure {
	if t.Req.MaxCostUSD != nil {
		t.think()
	}
	if f := t.Prices.Overspent(t.Req, t.uses()); f != nil {
		return f
	}
	if t.Req.MaxTurns < 1 || t.rounds < t.Req.MaxTurns || !t.due || len(t.open) > 0 {
		return nil
	}
	return backend.TooManyTurns(t.Req)
}

// uses is what the calls of the model have used, by the record.
func (t *parser) uses() (uses []backend.Use) {
	for _, u := range t.record.uses {
		u.Model = cmp.Or(u.Model, t.model, t.Req.Model)
		uses = append(uses, u)
	}
	return uses
}

// turns counts the calls of the model: by the record, else by the events.
func (t *parser) turns() int { return max(len(t.record.turns), t.rounds) }

// cutOff names a run that ended well and yet was stopped.
func cutOff(words string) *work.Failure {
	return work.Fail(work.ClassInfra, fmt.Sprintf("the client stopped: %s", words))
}
