package fakecli

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

type event struct {
	Type    string   `json:"type"`
	Subtype string   `json:"subtype,omitempty"`
	Message *message `json:"message,omitempty"`
	Parent  *string  `json:"parent_tool_use_id"`
	Session string   `json:"session_id"`
	UUID    string   `json:"uuid"`
	Error   string   `json:"error,omitempty"`
}

type message struct {
	ID      string  `json:"id,omitempty"`
	Type    string  `json:"type,omitempty"`
	Role    string  `json:"role"`
	Model   string  `json:"model,omitempty"`
	Content []block `json:"content"`
	Usage   *usage  `json:"usage,omitempty"`
}

type block struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   *string         `json:"content,omitempty"`
	IsError   *bool           `json:"is_error,omitempty"`
}

type usage struct {
	InputTokens         int `json:"input_tokens"`
	CacheCreationTokens int `json:"cache_creation_input_tokens"`
	CacheReadTokens     int `json:"cache_read_input_tokens"`
	OutputTokens        int `json:"output_tokens"`
}

type denial struct {
	Name  string          `json:"tool_name"`
	ID    string          `json:"tool_use_id"`
	Input json.RawMessage `json:"tool_input"`
}

// A result keeps the real one's order: type is not the first field.
type result struct {
	DurationAPIMS  int64           `json:"duration_api_ms"`
	Session        string          `json:"session_id"`
	CostUSD        float64         `json:"total_cost_usd"`
	Usage          usage           `json:"usage"`
	Denials        []denial        `json:"permission_denials"`
	TerminalReason string          `json:"terminal_reason,omitempty"`
	IsError        bool            `json:"is_error"`
	NumTurns       int             `json:"num_turns"`
	Subtype        string          `json:"subtype"`
	APIStatus      *int            `json:"api_error_status"`
	Result         *string         `json:"result,omitempty"`
	Errors         []string        `json:"errors,omitempty"`
	Structured     json.RawMessage `json:"structured_output,omitempty"`
	Type           string          `json:"type"`
	DurationMS     int64           `json:"duration_ms"`
	UUID           string          `json:"uuid"`
}

// claude speaks as Claude Code does.
type claude struct {
	*agent
	before    string   // the session's record when this run began
	former    *float64 // what it had cost by then
	messageID string   // of the model's current answer
}

func (*claude) version() string { return "9.9.9 (Fake Code)" }

func (a *claude) event(kind string) event {
	return event{Type: kind, Session: a.session, UUID: uuid.NewString()}
}

func (a *claude) begin() {
	a.before = a.recorded()
	a.keepPrompt()
	dir, _ := os.Getwd()
	writeJSON(map[string]any{
		"type": "system", "subtype": "init", "cwd": dir, "session_id": a.session, "tools": []string{"Bash", "Read", "Write"},
		"mcp_servers": []string{}, "model": a.model, "permissionMode": "default", "apiKeySource": "ANTHROPIC_API_KEY",
		"claude_code_version": "9.9.9", "uuid": uuid.NewString(),
	})
}

// said begins a new answer of the model, to which the calls that follow
// belong.
func (a *claude) said(text string) any {
	a.messageID = ""
	return a.assistant(block{Type: "text", Text: &text})
}

func (a *claude) assistant(b block) event {
	if a.messageID == "" {
		a.messageID = a.nextID("msg")
	}
	e := a.event("assistant")
	e.Message = &message{
		ID: a.messageID, Type: "message", Role: "assistant", Model: a.model, Content: []block{b},
		Usage: &usage{InputTokens: 100, OutputTokens: 1},
	}
	return e
}

func (a *claude) call(c call) {
	writeJSON(a.assistant(block{Type: "tool_use", ID: c.id, Name: c.name, Input: c.input}))
}

func (a *claude) answer(c call, text string, denied bool) {
	if denied {
		a.denied = append(a.denied, c)
		writeJSON(map[string]any{
			"type": "system", "subtype": "permission_denied", "tool_name": c.name, "tool_use_id": c.id, "message": text,
			"uuid": uuid.NewString(), "session_id": a.session,
		})
	}
	e := a.event("user")
	e.Message = &message{Role: "user", Content: []block{
		{Type: "tool_result", ToolUseID: c.id, Content: &text, IsError: &denied},
	}}
	a.messageID = ""
	writeJSON(e)
}

func (a *claude) end(text string) {
	a.writeResult(result{Subtype: "success", Result: &text, TerminalReason: "completed"})
}

func (a *claude) writeResult(r result) {
	r.Type, r.Session, r.UUID = "result", a.session, uuid.NewString()
	r.CostUSD, r.NumTurns, r.Structured = a.total(), a.turns, a.structured
	if a.recorded() != "" {
		a.keep(map[string]any{"type": costRecord, "total": r.CostUSD})
	}
	r.Usage = usage{InputTokens: 100 * a.turns, OutputTokens: 10 * a.turns}
	r.Denials = []denial{}
	for _, c := range a.denied {
		r.Denials = append(r.Denials, denial{c.name, c.id, c.input})
	}
	r.DurationMS = time.Since(a.started).Milliseconds() + 1
	r.DurationAPIMS = r.DurationMS
	a.exitCode = 0
	if r.IsError {
		a.exitCode = 1
	}
	writeJSON(r)
}

// costRecord is what a session has cost so far. Who is killed does not write it,
// and the next to resume the session counts from where the last one ended.
const costRecord = "fake_cost"

// total is what the session has cost, this run included: the real one counts so.
func (a *claude) total() float64 {
	if a.former == nil {
		a.former = new(0.0)
		for line := range strings.Lines(a.before) {
			var known struct {
				Type  string
				Total float64
			}
			if json.Unmarshal([]byte(line), &known) == nil && known.Type == costRecord {
				*a.former = known.Total
			}
		}
	}
	return *a.former + a.cost
}

// terminalReasons are those of the subtypes that have one of their own.
var terminalReasons = map[string]string{
	"success":                             "api_error",
	"error_max_turns":                     "max_turns",
	"error_max_budget_usd":                "budget_exhausted",
	"error_max_structured_output_retries": "structured_output_retry_exhausted",
}

// fail writes a result that is an error. The subtype success is the real one's
// word for a failed API call; its text is also said by a synthetic assistant.
func (a *claude) fail(subtype string, status int, text string) {
	r := result{Subtype: subtype, IsError: true, TerminalReason: terminalReasons[subtype]}
	if status != 0 {
		r.APIStatus = &status
	}
	if subtype != "success" {
		r.Errors = []string{text}
		a.writeResult(r)
		return
	}
	said := a.event("assistant")
	said.Error = "unknown"
	said.Message = &message{
		ID: uuid.NewString(), Type: "message", Role: "assistant", Model: "<synthetic>",
		Content: []block{{Type: "text", Text: &text}}, Usage: &usage{},
	}
	writeJSON(said)
	r.Result = &text
	a.writeResult(r)
}

func (a *claude) limit(resets int64) {
	writeJSON(map[string]any{
		"type": "rate_limit_event", "uuid": uuid.NewString(), "session_id": a.session,
		"rate_limit_info": map[string]any{
			"status": "rejected", "resetsAt": resets, "rateLimitType": "five_hour", "isUsingOverage": false,
		},
	})
}

func (a *claude) signalled(s syscall.Signal) int {
	if s != syscall.SIGINT {
		return 128 + int(s)
	}
	// The lock is kept: nothing may follow the result.
	a.mu.Lock()
	a.writeResult(result{Subtype: "error_during_execution", IsError: true, TerminalReason: "aborted_streaming", Errors: []string{"Request was aborted."}})
	return 0
}
