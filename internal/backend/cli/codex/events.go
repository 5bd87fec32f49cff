package codex

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// parser is what one codex process has told so far.
type parser struct {
	cli.Output

	home home

	record     *rollout
	thread     string
	text       string            // the last message
	unconfined bool              // it has no sandbox
	turn       int               // of the process
	calls      map[string]string // item → its call's id, until it is answered
	answers    int               // of tools
	walled     int               // answers that were the sandbox's own failure …
	wall       string            // … and what it said
	usage      *tokens           // of the thread
	failed     *string
	limited    *work.Failure // it waits for a limit to end, for as long as the server says
}

type tokens struct {
	Input      int64 `json:"input_tokens"`
	Cached     int64 `json:"cached_input_tokens"`
	CacheWrite int64 `json:"cache_write_input_tokens"`
	Output     int64 `json:"output_tokens"`
}

// since returns what has been used after an earlier count.
func (u tokens) since(former tokens) work.Usage {
	return work.Usage{
		InputTokens:     max(0, u.Input-u.Cached-u.CacheWrite-former.Input+former.Cached+former.CacheWrite),
		OutputTokens:    max(0, u.Output-former.Output),
		CacheReadTokens: max(0, u.Cached-former.Cached), CacheCreationTokens: max(0, u.CacheWrite-former.CacheWrite),
	}
}

func newParser(home home, out cli.Output) *parser {
	t := &parser{
		Output: out, home: home, calls: map[string]string{},
		record: openRollout(""),
	}
	if out.Req.Resume {
		t.thread, t.record = out.Req.SessionID, openRollout(home.rollout(out.Req.SessionID))
	}
	return t
}

type event struct {
	cli.EventType
	ThreadID string  `json:"thread_id"`
	Message  string  `json:"message"`
	Item     item    `json:"item"`
	Usage    *tokens `json:"usage"`
	Error    struct {
		Message string `json:"message"`
	} `json:"error"`
}

type item struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Message   string          `json:"message"`
	Command   string          `json:"command"`
	Output    string          `json:"aggregated_output"`
	ExitCode  *int            `json:"exit_code"`
	Status    string          `json:"status"`
	Changes   json.RawMessage `json:"changes"`
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Result    struct {
		Content    json.RawMessage `json:"content"`
		Structured json.RawMessage `json:"structured_content"`
	} `json:"result"`
	Error struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Event takes one event.
func (t *parser) Event(e event, line []byte) {
	switch e.Type {
	case "thread.started":
		t.start(e.ThreadID)
	case "turn.started":
		t.Final = false
		t.turn++
	case "turn.completed":
		t.Final, t.usage = true, e.Usage
	case "turn.failed":
		t.Final, t.failed = true, &e.Error.Message
	case "error": // some are fatal: then turn.failed says so
		t.complain(e.Message, true)
		t.waits(e.Message)
	case "item.started":
		t.begin(e.Item)
	case "item.updated": // a part of what comes whole
	case "item.completed":
		t.Final = false
		t.complete(e.Item, line)
	default:
		cli.AddEvent(t.Steps, e.Type, line)
	}
}

func (t *parser) start(thread string) {
	if t.thread != thread {
		t.thread, t.record = thread, openRollout("")
	}
}

func (t *parser) complain(text string, isError bool) {
	t.Steps.Add(transcript.Step{Type: transcript.SystemText, Text: text, IsError: isError})
}

// call gives a call an id that no other process of the unit has given.
func (t *parser) call(item item) string {
	if id, ok := t.calls[item.ID]; ok {
		return id
	}
	id := fmt.Sprintf("%s-%d-%d", item.ID, t.Req.Attempt, t.turn)
	t.calls[item.ID] = id
	return id
}

func shellCall(command string) transcript.Content {
	args, _ := json.Marshal(map[string]string{"command": command})
	return transcript.Content{Type: transcript.ToolCall, Name: "shell", Args: string(args)}
}

// tool returns an item as a tool call, nil when it is none.
func (i item) tool() *transcript.Content {
	call := transcript.Content{Type: transcript.ToolCall}
	switch i.Type {
	case "command_execution":
		call = shellCall(i.Command)
	case "mcp_tool_call":
		call.Name, call.Args = i.Server+"."+i.Tool, string(i.Arguments)
	case "file_change":
		args, _ := json.Marshal(map[string]json.RawMessage{"changes": i.Changes})
		call.Name, call.Args = "apply_patch", string(args)
	default:
		return nil
	}
	return &call
}

// answer is what a tool's item came to.
func (i item) answer() (text string, isError bool) {
	isError = i.Status == "failed" || i.Status == "declined"
	switch i.Type {
	case "mcp_tool_call":
		text = cli.OutputText(i.Result.Content)
		if text == "" {
			text = string(i.Result.Structured)
		}
		return text + i.Error.Message, isError || i.Error.Message != ""
	case "file_change":
		return i.Status, isError
	}
	if text = i.Output; i.ExitCode != nil && *i.ExitCode != 0 {
		text = strings.TrimSuffix(text, "\n") + fmt.Sprintf("\n(exit code %d)", *i.ExitCode)
		isError = true
	}
	if i.Status == "declined" {
		text += "(declined)"
	}
	return strings.TrimPrefix(text, "\n"), isError
}

func (t *parser) begin(item item) {
	call := item.tool()
	if call == nil {
		return
	}
	t.Final = false
	if _, begun := t.calls[item.ID]; begun {
		return
	}
	call.ID = t.call(item)
	t.Steps.Extend(*call)
}

func (t *parser) complete(item item, line []byte) {
	t.read()
	t.addUnreported(t.record.until(item.Type))
	switch {
	case item.Type == "agent_message":
		t.text = item.Text
		t.Missed = 0
		t.Steps.Extend(transcript.Content{Type: transcript.Text, Text: item.Text})
	case item.Type == "reasoning":
		t.Steps.Add(transcript.Step{Type: transcript.Reasoning, Text: item.Text})
	case item.Type == "error": // a warning
		t.complain(item.Message, false)
	case item.tool() != nil:
		t.begin(item)
		text, isError := item.answer()
		t.answered(transcript.Step{
			Type: transcript.ToolResult, CallID: t.call(item), Text: text, IsError: isError, Denied: item.Status == "declined",
		})
		delete(t.calls, item.ID)
	default:
		cli.AddEvent(t.Steps, item.Type, line)
	}
}

func (t *parser) addUnreported(calls []unreported) {
	for _, c := range calls {
		t.Steps.Extend(c.call)
		t.answered(c.answer)
	}
}

// deniedPattern matches what the client, or the kernel in its sandbox, says of a
// command that it did not let have its way.
var deniedPattern = regexp.MustCompile(`Read-only file system|[Ss]andbox denied|denied by sandbox|` +
	`(was|is) blocked by policy|rejected by user|rejected: (policy forbids|blocked)`)

func (t *parser) answered(step transcript.Step) {
	t.answers++
	step.Denied = step.Denied || step.IsError && !t.unconfined && deniedPattern.MatchString(step.Text)
	if at := strings.Index(step.Text, "bwrap: "); at >= 0 && step.IsError {
		t.walled++
		t.wall, _, _ = strings.Cut(step.Text[at:], "\n")
	}
	t.Steps.Add(step)
}

// read brings the thread's own record up to date.
func (t *parser) read() {
	if t.record.path == "" && t.thread != "" {
		t.record.path = t.home.rollout(t.thread)
	}
	t.record.read()
}

// Check stops a run that is at a limit: the client keeps none.
func (t *parser) Check() *work.Failure {
	if t.limited != nil || t.Req.MaxTurns < 1 && t.Req.MaxCostUSD == nil {
		return t.limited
	}
	t.read()
	if f := t.Prices.Overspent(t.Req, t.record.uses); f != nil {
		return f
	}
	over := t.record.turnOver(t.Req.MaxTurns)
	if t.record.path == "" {
		over = t.answers >= t.Req.MaxTurns && len(t.calls) == 0
	}
	if t.Req.MaxTurns < 1 || !over {
		return nil
	}
	return backend.TooManyTurns(t.Req)
}

// maxWait is how long the client may wait for a limit to end; a unit's own
// retries wait better.
const maxWait = 30 * time.Second

// waits notes that the client waits for a limit to end. It does so without a
// word, for an hour if Retry-After says so, and does not tell for how long.
func (t *parser) waits(words string) {
	if !strings.HasPrefix(words, "Reconnecting") || cli.ClassOf(words) != work.ClassRateLimit {
		return
	}
	if wait, told := cli.RetryDelay(words); !told || wait > maxWait {
		t.limited = cli.FailureOf("codex", words, "")
	}
}

// turns counts the calls of the model; without the record, the answers of
// tools and what came after them.
func (t *parser) turns() int {
	switch {
	case len(t.record.uses) > 0:
		return len(t.record.uses)
	case t.turn == 0:
		return 0
	}
	return t.answers + 1
}
