package cursor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// parser is what one cursor process has told so far.
type parser struct {
	cli.Output

	saveSession func(session string)

	session  string
	model    string
	text     string // the newest of the model's
	thinking strings.Builder
	open     map[string]bool // calls without an answer
	answers  int
	took     bool // the model has answered: the session has the prompt
	result   *event
}

func newParser(out cli.Output) *parser {
	return &parser{Output: out, open: map[string]bool{}, saveSession: func(string) {}}
}

type event struct {
	cli.EventType
	Subtype        string `json:"subtype"`
	SessionID      string `json:"session_id"`
	Model          string `json:"model"`
	PermissionMode string `json:"permissionMode"`
	Text           string `json:"text"`
	Message        struct {
		Content json.RawMessage `json:"content"`
	} `json:"message"`
	CallID   string                     `json:"call_id"`
	ToolCall map[string]json.RawMessage `json:"tool_call"`

	IsError       bool    `json:"is_error"`
	Result        string  `json:"result"`
	DurationMS    float64 `json:"duration_ms"`
	DurationAPIMS float64 `json:"duration_api_ms"`
	Usage         struct {
		Input      int64 `json:"inputTokens"`
		Output     int64 `json:"outputTokens"`
		CacheRead  int64 `json:"cacheReadTokens"`
		CacheWrite int64 `json:"cacheWriteTokens"`
	} `json:"usage"`
}

// Event takes one event.
func (t *parser) Event(e event, line []byte) {
	t.session = cmp.Or(e.SessionID, t.session)
	switch e.Type {
	case "result":
		t.result, t.Final = &e, true
	case "assistant", "tool_call", "thinking":
		t.Final = false
		t.act(e)
	case "user": // the prompt again
	case "system":
		t.system(e, line)
	default:
		cli.AddEvent(t.Steps, strings.Trim(e.Type+"/"+e.Subtype, "/"), line)
	}
}

func (t *parser) system(e event, line []byte) {
	if e.Subtype != "init" {
		cli.AddEvent(t.Steps, "system/"+e.Subtype, line)
		return
	}
	t.Final, t.model = false, e.Model
	cli.AddSystem(t.Steps, fmt.Sprintf("Cursor CLI, model %s, permission mode %s", e.Model, e.PermissionMode))
}

func (t *parser) act(e event) {
	if !t.took {
		t.took = true
		t.saveSession(t.session)
	}
	switch e.Type + "/" + e.Subtype {
	case "thinking/delta":
		t.thinking.WriteString(e.Text)
	case "thinking/completed":
		t.Steps.Add(transcript.Step{Type: transcript.Reasoning, Text: t.thinking.String() + e.Text})
		t.thinking.Reset()
	case "tool_call/started":
		t.call(e)
	case "tool_call/completed":
		t.call(e)
		_, body := e.tool()
		text, isError := toolResult(body)
		rejected := len(body.Result.Rejected) > 0
		t.answers++
		delete(t.open, e.CallID)
		t.Steps.Add(transcript.Step{Type: transcript.ToolResult, CallID: e.CallID, Text: text, IsError: isError, Denied: rejected})
	case "assistant/":
		t.text = cli.OutputText(e.Message.Content)
		t.Missed = 0
		t.Steps.Extend(transcript.Content{Type: transcript.Text, Text: t.text})
	}
}

// call adds a call, unless it was added when it began.
func (t *parser) call(e event) {
	if _, known := t.open[e.CallID]; known {
		return
	}
	t.open[e.CallID] = true
	call, _ := e.tool()
	t.Steps.Extend(call)
}

type tool struct {
	Args      json.RawMessage `json:"args"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Result    struct {
		Success  json.RawMessage `json:"success"`
		Error    json.RawMessage `json:"error"`
		Rejected json.RawMessage `json:"rejected"`
	} `json:"result"`
}

// tool reads a call, whose kind is the name of its one field.
func (e event) tool() (call transcript.Content, body tool) {
	call = transcript.Content{Type: transcript.ToolCall, ID: e.CallID, Name: "unknown"}
	for kind, raw := range e.ToolCall {
		if kind != "function" && !strings.HasSuffix(kind, "ToolCall") {
			continue
		}
		_ = backend.Decode(raw, &body)
		call.Name, call.Args = strings.TrimSuffix(kind, "ToolCall"), string(body.Args)
		switch kind {
		case "function":
			call.Name, call.Args = body.Name, string(body.Arguments)
			_ = backend.Decode(body.Arguments, &call.Args) // a string that holds JSON
		case "mcpToolCall":
			var of struct {
				Server string          `json:"serverIdentifier"`
				Tool   string          `json:"toolName"`
				Args   json.RawMessage `json:"args"`
			}
			_ = backend.Decode(body.Args, &of)
			call.Name, call.Args = of.Server+"."+of.Tool, string(of.Args)
		}
	}
	return call, body
}

// toolResult is what a tool came to, as text.
func toolResult(body tool) (text string, isError bool) {
	r := body.Result
	switch {
	case len(r.Rejected) > 0:
		return "(rejected) " + oneOf(r.Rejected, "reason"), true
	case len(r.Error) > 0:
		return oneOf(r.Error, "errorMessage", "message", "error"), true
	}
	var shell struct {
		ExitCode *int   `json:"exitCode"`
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
	}
	if backend.Decode(r.Success, &shell) == nil && shell.ExitCode != nil {
		text = strings.Join(slices.DeleteFunc([]string{shell.Stdout, shell.Stderr}, func(s string) bool { return s == "" }), "\n")
		if *shell.ExitCode != 0 {
			text += fmt.Sprintf("\n(exit code %d)", *shell.ExitCode)
		}
		return strings.TrimPrefix(text, "\n"), *shell.ExitCode != 0
	}
	return oneOf(r.Success, "content"), false
}

// oneOf returns the first of the named fields that is a text, else all of it.
func oneOf(raw json.RawMessage, names ...string) string {
	var text string
	if backend.Decode(raw, &text) == nil && text != "" {
		return text
	}
	var fields map[string]json.RawMessage
	_ = backend.Decode(raw, &fields)
	for _, name := range names {
		if backend.Decode(fields[name], &text) == nil && text != "" {
			return text
		}
	}
	return string(raw)
}

// Check stops a run that wants more turns than it may have: the client has no
// limit of its own.
func (t *parser) Check() *work.Failure {
	if t.Req.MaxTurns < 1 || t.answers < t.Req.MaxTurns || len(t.open) > 0 {
		return nil
	}
	return backend.TooManyTurns(t.Req)
}

// Result makes the run's result of all that was told.
func (t *parser) Result(end cli.Ending) backend.Result {
	result := backend.Result{Output: t.text, Metadata: t.metadata(), CostIncomplete: t.session != "" && t.result == nil}
	t.Findings.SessionUnknown = cli.SessionMissing(t.Req, end)
	if t.result != nil && !t.result.IsError && t.result.Result != "" {
		result.Output = t.result.Result
	}
	switch {
	case end.Stopped != nil:
		return result
	case t.result == nil:
		result.Error = startFailure(end)
	case t.result.IsError || t.result.Subtype != "success":
		result.Error = cli.FailureOf("cursor", t.result.Result, end.Stderr)
	case t.Req.MaxTurns > 0 && result.Metadata.NumTurns > t.Req.MaxTurns: // it was faster than our check
		result.Error = backend.TooManyTurns(t.Req)
	case end.Missed > 0 && t.result.Result == "":
		result.Error = cli.LostAnswer("cursor", end)
	case t.Schema != nil:
		result.Output = backend.Unfence(result.Output)
		result.Error = t.CheckSchema(result.Output)
	}
	result.Success = result.Error == nil
	return result
}

// startFailure reads a failure off stderr: there is no event for it.
func startFailure(end cli.Ending) *work.Failure {
	if end.State != nil && end.State.Exited() && !end.State.Success() && cli.ClassOf(end.Stderr) != "" {
		return cli.FailureOf("cursor", "", end.Stderr)
	}
	return cli.NoResult("cursor", end)
}

func (t *parser) metadata() backend.Metadata {
	m := backend.Metadata{SessionID: t.Req.SessionID, Model: t.Req.Model, DurationMS: time.Since(t.Began).Milliseconds()}
	if t.session != "" {
		m.SessionID, m.NumTurns = t.session, t.answers+1
	}
	if t.model != "" {
		m.Model = t.model
	}
	if r := t.result; r != nil {
		m.DurationMS, m.DurationAPIMS = int64(r.DurationMS), int64(r.DurationAPIMS)
		m.Usage = work.Usage{
			InputTokens: r.Usage.Input, OutputTokens: r.Usage.Output,
			CacheReadTokens: r.Usage.CacheRead, CacheCreationTokens: r.Usage.CacheWrite,
		}
		m.TotalCostUSD = t.Prices.CostOfSum(backend.Use{Model: m.Model, Usage: m.Usage})
		if m.TotalCostUSD == nil { // the client shows models by other names
			m.TotalCostUSD = t.Prices.CostOfSum(backend.Use{Model: t.Req.Model, Usage: m.Usage})
		}
	}
	return m
}
