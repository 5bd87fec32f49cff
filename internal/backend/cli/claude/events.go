package claude

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/transcript"
)

// parser is what one claude process has told so far.
type parser struct {
	cli.Output

	actions map[string]int  // message id and parent → number of its step
	denied  map[string]bool // calls that were denied, until their result comes
	tasks   pendingTasks
	session string
	model   string
	begun   bool // it got as far as its first words

	message string          // the newest message of the main conversation …
	text    strings.Builder // … and its text: what there is if nothing more comes

	result  *resultEvent // the last one counts
	resetAt time.Time    // when the limit that was hit ends

}

func newParser(out cli.Output) *parser {
	return &parser{Output: out, actions: map[string]int{}, denied: map[string]bool{}, tasks: newPendingTasks()}
}

type event struct {
	cli.EventType
	Subtype   string `json:"subtype"`
	SessionID string `json:"session_id"`
	Parent    string `json:"parent_tool_use_id"`
	Message   struct {
		ID      string          `json:"id"`
		Model   string          `json:"model"`
		Content json.RawMessage `json:"content"`
	} `json:"message"`

	Model          string            `json:"model"`
	Version        string            `json:"claude_code_version"`
	PermissionMode string            `json:"permissionMode"`
	Tools          []json.RawMessage `json:"tools"`

	ToolUseID string `json:"tool_use_id"` // of system/permission_denied
	taskEvent

	RateLimit struct {
		Status    string  `json:"status"`
		ResetsAt  float64 `json:"resetsAt"`
		ResetsAt2 float64 `json:"resets_at"`
	} `json:"rate_limit_info"`
}

type contentBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
}

// Event takes one event.
func (t *parser) Event(e event, line []byte) {
	if e.SessionID != "" {
		t.session = e.SessionID
	}
	switch {
	case e.Type == "result":
		t.result, t.Final = readResult(line), true
		for _, d := range t.result.Denials {
			t.Steps.Deny(d.ID, d.Name, string(d.Input))
		}
	case e.Type == "assistant":
		t.Final = false
		t.assistant(e)
	case e.Type == "user":
		t.Final = false
		t.user(e)
	case e.Type == "system" && e.Subtype == "init":
		t.Final = false
		t.init(e)
	case e.Type == "system" && e.Subtype == "permission_denied":
		t.denied[e.ToolUseID] = true
		t.keep(e, line)
	case e.Type == "system" && e.Subtype == "thinking_tokens": // a count of what comes as reasoning
	case e.Type == "rate_limit_event":
		t.rateLimit(e, line)
	default:
		t.tasks.take(e.Subtype, e.taskEvent)
		t.keep(e, line)
	}
}

func (t *parser) system(text string) { cli.AddSystem(t.Steps, text) }

func (t *parser) keep(e event, line []byte) {
	cli.AddEvent(t.Steps, strings.Trim(e.Type+"/"+e.Subtype, "/"), line)
}

func (t *parser) init(e event) {
	if t.begun { // it comes again before each further turn
		clear(t.tasks.wakeups)
		return
	}
	t.begun, t.model = true, e.Model
	t.system(fmt.Sprintf("Claude Code %s, model %s, permission mode %s, %d tools",
		e.Version, e.Model, e.PermissionMode, len(e.Tools)))
}

func (t *parser) rateLimit(e event, line []byte) {
	if e.RateLimit.Status == "allowed" {
		return
	}
	if at := max(e.RateLimit.ResetsAt, e.RateLimit.ResetsAt2); e.RateLimit.Status == "rejected" && at > 0 {
		t.resetAt = time.Unix(int64(at), 0).UTC()
	}
	t.keep(e, line)
}

// synthetic is the model of texts that the client makes itself: its errors.
const synthetic = "<synthetic>"

// assistant takes one event: one block of a message, rarely more. The blocks
// of a message are one action.
func (t *parser) assistant(e event) {
	t.begun = true
	blocks, plain := contentOf(e.Message.Content)
	if plain != "" {
		blocks = []contentBlock{{Type: transcript.Text, Text: plain}}
	}
	if e.Message.Model == synthetic {
		for _, b := range blocks {
			t.Steps.Add(transcript.Step{Type: transcript.SystemText, Text: b.Text, IsError: true, Parent: e.Parent})
		}
		return
	}
	for _, b := range blocks {
		switch b.Type {
		case "text":
			t.say(e, b.Text)
			t.act(e, transcript.Content{Type: transcript.Text, Text: b.Text})
		case "tool_use", "server_tool_use":
			if b.Name == scheduleWakeup {
				t.tasks.wakeups[b.ID] = true
			}
			t.act(e, transcript.Content{Type: transcript.ToolCall, ID: b.ID, Name: b.Name, Args: string(b.Input)})
		case "thinking":
			t.Steps.Add(transcript.Step{Type: transcript.Reasoning, Text: b.Thinking, Parent: e.Parent})
		default:
			t.system("assistant/" + b.Type)
		}
	}
}

// say notes the newest text of the main conversation.
func (t *parser) say(e event, text string) {
	if e.Parent != "" {
		return
	}
	if e.Message.ID != t.message {
		t.message = e.Message.ID
		t.text.Reset()
	}
	if t.text.Len() < backend.MaxAnswer { // more is not kept
		t.text.WriteString(text)
	}
}

func (t *parser) act(e event, c transcript.Content) {
	key := e.Parent + " " + e.Message.ID
	if number, ok := t.actions[key]; ok && e.Message.ID != "" {
		if number = t.Steps.Grow(number, c); number > 0 {
			t.actions[key] = number
		}
		return
	}
	t.actions[key] = t.Steps.Add(transcript.Step{
		Type: transcript.Action, Content: []transcript.Content{c}, Parent: e.Parent,
	})
}

// user takes the answers of tools, and words that the client puts into the
// user's mouth.
func (t *parser) user(e event) {
	blocks, plain := contentOf(e.Message.Content)
	if plain != "" {
		blocks = []contentBlock{{Type: transcript.Text, Text: plain}}
	}
	for _, b := range blocks {
		if b.Type != "tool_result" {
			t.Steps.Add(transcript.Step{Type: transcript.UserText, Text: textOf(b), Parent: e.Parent})
			continue
		}
		parts, text := contentOf(b.Content)
		var texts []string
		for _, part := range parts {
			texts = append(texts, textOf(part))
		}
		t.Steps.Add(transcript.Step{
			Type: transcript.ToolResult, CallID: b.ToolUseID, Text: text + strings.Join(texts, "\n"),
			IsError: b.IsError, Denied: t.denied[b.ToolUseID], Parent: e.Parent,
		})
		delete(t.denied, b.ToolUseID)
		if b.IsError {
			delete(t.tasks.wakeups, b.ToolUseID)
		}
	}
}

func textOf(b contentBlock) string {
	if b.Type == "text" {
		return b.Text
	}
	return "[" + b.Type + "]"
}

// contentOf reads content, which is a string or a list of blocks.
func contentOf(raw json.RawMessage) (blocks []contentBlock, plain string) {
	if len(raw) > 0 && raw[0] == '"' {
		_ = backend.Decode(raw, &plain)
		return nil, plain
	}
	_ = backend.Decode(raw, &blocks)
	return blocks, ""
}
