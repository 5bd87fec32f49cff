package fakecli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
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

// A result keeps the real one's order: type is not the first field.
type result struct {
	DurationAPIMS  int64           `json:"duration_api_ms"`
	Session        string          `json:"session_id"`
	CostUSD        float64         `json:"total_cost_usd"`
	Usage          usage           `json:"usage"`
	Denials        []string        `json:"permission_denials"`
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

func write(text string) { _, _ = os.Stdout.WriteString(text) }

func writeJSON(v any) {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	write(string(encoded) + "\n")
}

func (a *agent) event(kind string) event {
	return event{Type: kind, Session: a.session, UUID: uuid.NewString()}
}

func (a *agent) nextID(prefix string) string {
	a.ids++
	return fmt.Sprintf("%s_%s_%d", prefix, a.session, a.ids)
}

func (a *agent) writeInit() {
	dir, _ := os.Getwd()
	writeJSON(map[string]any{
		"type": "system", "subtype": "init", "cwd": dir, "session_id": a.session, "tools": []string{"Bash", "Read", "Write"},
		"mcp_servers": []string{}, "model": a.model, "permissionMode": "default", "apiKeySource": "ANTHROPIC_API_KEY",
		"claude_code_version": "9.9.9", "uuid": uuid.NewString(),
	})
}

// writeText begins a new answer of the model, to which the calls that follow
// belong.
func (a *agent) writeText(text string) {
	a.messageID = ""
	a.writeAssistant(block{Type: "text", Text: &text})
}

func (a *agent) writeAssistant(b block) { writeJSON(a.assistant(b)) }

// assistant is an event with one block of the current answer.
func (a *agent) assistant(b block) event {
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

func (a *agent) writeTool(name, input string) error {
	if input == "" {
		input = "{}"
	}
	if !json.Valid([]byte(input)) {
		return errors.New("the input is not JSON")
	}
	id := a.nextID("toolu")
	a.open = append(a.open, id)
	a.writeAssistant(block{Type: "tool_use", ID: id, Name: name, Input: json.RawMessage(input)})
	return nil
}

func (a *agent) writeToolResult(text string) error {
	if len(a.open) == 0 {
		return errors.New("no open tool call")
	}
	e := a.event("user")
	e.Message = &message{Role: "user", Content: []block{
		{Type: "tool_result", ToolUseID: a.open[0], Content: &text, IsError: new(false)},
	}}
	a.open, a.messageID = a.open[1:], ""
	writeJSON(e)
	return nil
}

func (a *agent) writeResult(r result) {
	r.Type, r.Session, r.UUID = "result", a.session, uuid.NewString()
	r.CostUSD, r.NumTurns, r.Structured = a.cost, a.turns, a.structured
	r.Usage = usage{InputTokens: 100 * a.turns, OutputTokens: 10 * a.turns}
	r.Denials = []string{}
	r.DurationMS = time.Since(a.started).Milliseconds() + 1
	r.DurationAPIMS = r.DurationMS
	a.exitCode = 0
	if r.IsError {
		a.exitCode = 1
	}
	writeJSON(r)
}

// terminalReasons are those of the subtypes that have one of their own.
var terminalReasons = map[string]string{
	"success":                             "api_error",
	"error_max_turns":                     "max_turns",
	"error_max_budget_usd":                "budget_exhausted",
	"error_max_structured_output_retries": "structured_output_retry_exhausted",
}

// writeError writes a result that is an error. The subtype success is the
// real one's word for a failed API call; its text is also said by a synthetic
// assistant.
func (a *agent) writeError(rest string) error {
	fields := strings.SplitN(rest, " ", 3)
	if len(fields) != 3 {
		return errors.New("want SUBTYPE STATUS TEXT")
	}
	subtype, text := fields[0], fields[2]
	status, err := strconv.Atoi(fields[1])
	if err != nil {
		return fmt.Errorf("reading the status: %w", err)
	}
	r := result{Subtype: subtype, IsError: true, TerminalReason: terminalReasons[subtype]}
	if status != 0 {
		r.APIStatus = &status
	}
	if subtype != "success" {
		r.Errors = []string{text}
		a.writeResult(r)
		return nil
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
	return nil
}

func (a *agent) writeRateLimit(epoch string) error {
	resets, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("reading the reset time: %w", err)
	}
	writeJSON(map[string]any{
		"type": "rate_limit_event", "uuid": uuid.NewString(), "session_id": a.session,
		"rate_limit_info": map[string]any{
			"status": "rejected", "resetsAt": resets, "rateLimitType": "five_hour", "isUsingOverage": false,
		},
	})
	return nil
}

// writeLine writes a text event whose line, with its newline, has this length.
func (a *agent) writeLine(bytes string) error {
	size, err := strconv.Atoi(bytes)
	if err != nil {
		return fmt.Errorf("reading the length: %w", err)
	}
	a.messageID = ""
	text := ""
	e := a.assistant(block{Type: "text", Text: &text})
	frame, err := json.Marshal(e)
	if err != nil {
		return err
	}
	text = strings.Repeat("x", max(0, size-len(frame)-1))
	writeJSON(e)
	return nil
}

// writeDirt writes a text event with bytes that no encoder would let through.
func (a *agent) writeDirt() {
	a.messageID = a.nextID("msg")
	write(`{"type":"assistant","message":{"id":"` + a.messageID + `","type":"message","role":"assistant","model":"` + a.model +
		`","content":[{"type":"text","text":"nul \u0000 bad ` + "\xff\xfe" + ` lone \ud800 colour \u001b[31mred\u001b[0m end"}]},` +
		`"parent_tool_use_id":null,"session_id":"` + a.session + `","uuid":"` + uuid.NewString() + `"}` + "\n")
}

func writeNoise(bytes string) error {
	size, err := strconv.Atoi(bytes)
	if err != nil {
		return fmt.Errorf("reading the length: %w", err)
	}
	const noise = "fakecli makes noise on stderr to fill the pipe of a careless parent\n"
	_, _ = os.Stderr.WriteString(strings.Repeat(noise, size/len(noise)+1)[:size])
	return nil
}
