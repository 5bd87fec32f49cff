package codex

import (
	"bufio"
	"encoding/json"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/roots"
	"piecework/internal/transcript"
)

// rollout is the client's own record of a thread. It has what the events lack:
// calls that the sandbox denied, what each call of the model used, and all of
// it also for a run that was killed. It is read while it is written.
type rollout struct {
	path   string
	offset int64 // read so far, whole lines only

	model  string
	total  tokens        // of the thread
	former tokens        // of the thread, before this run
	uses   []backend.Use // calls of the model in this run

	calls, answers int // tool calls of this run, and results of them
	before         int // tool calls before the newest call of the model …
	asked          int // … and those that it made

	ahead []rollEntry // not yet told by an event
	told  map[string]bool
}

// rollEntry is a call, the answer to one, or an item that an event tells of.
type rollEntry struct {
	call   *transcript.Content
	answer *transcript.Step
	item   string // its type, as events call it
	id     string
}

// rollout finds a thread's record; without an id, that of the newest thread.
func (h home) rollout(thread string) string {
	if thread != "" && uuid.Validate(thread) != nil {
		return ""
	}
	paths, _ := filepath.Glob(filepath.Join(h.config, "sessions", "*", "*", "*", "rollout-*"+thread+".jsonl"))
	if len(paths) == 0 {
		return ""
	}
	return slices.Max(paths) // a name begins with the time
}

func threadOf(path string) string {
	name := strings.TrimSuffix(filepath.Base(path), ".jsonl")
	if id := name[max(0, len(name)-36):]; uuid.Validate(id) == nil {
		return id
	}
	return ""
}

// hasPrompt tells whether a thread's record has the unit's prompt.
func hasPrompt(path, prompt string) bool {
	return cli.AnyLine(path, func(line []byte) bool {
		var l rollLine
		if backend.Decode(line, &l) != nil || l.Type != "response_item" || l.Payload.Role != "user" {
			return false
		}
		return slices.ContainsFunc(l.Payload.Content, func(part rollPart) bool { return strings.Contains(part.Text, prompt) })
	})
}

// openRollout passes over what earlier runs of the thread have written.
func openRollout(path string) *rollout {
	r := &rollout{path: path, told: map[string]bool{}}
	r.read()
	r.former, r.uses, r.calls, r.answers, r.before, r.ahead = r.total, nil, 0, 0, 0, nil
	return r
}

// read takes in what has been written since. A record that cannot be read is
// no reason for the run to fail: the events are enough.
func (r *rollout) read() {
	if r == nil || r.path == "" {
		return
	}
	file, err := roots.OpenRegular(r.path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(r.offset, io.SeekStart); err != nil {
		return
	}
	lines := bufio.NewReaderSize(file, 64<<10)
	for {
		line, size, err := backend.ReadLine(lines, cli.MaxLine)
		if err != nil {
			return // the last line is still being written
		}
		r.offset += size
		r.line(line)
	}
}

type rollLine struct {
	Type    string `json:"type"`
	Payload struct {
		Type      string          `json:"type"`
		Role      string          `json:"role"`
		Content   []rollPart      `json:"content"`
		Model     string          `json:"model"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Arguments string          `json:"arguments"`
		Input     string          `json:"input"`
		Action    json.RawMessage `json:"action"`
		Output    json.RawMessage `json:"output"`
		Usage     *tokens         `json:"usage"`
		Total     *tokens         `json:"thread_token_usage"`
		Item      struct {
			Type string `json:"type"`
			ID   string `json:"id"`
		} `json:"item"`
	} `json:"payload"`
}

type rollPart struct {
	Text string `json:"text"`
}

func (r *rollout) line(line []byte) {
	var l rollLine
	if backend.Decode(line, &l) != nil {
		return
	}
	p := l.Payload
	switch {
	case l.Type == "turn_context" && p.Model != "":
		r.model = p.Model
	case l.Type == "token_usage_record" && p.Total != nil:
		used := p.Total.since(r.total)
		if p.Usage != nil { // the thread's own sum may lack what was used just before a kill
			used = p.Usage.since(tokens{})
		}
		r.uses = append(r.uses, backend.Use{Model: r.model, Usage: used})
		r.total, r.asked, r.before = *p.Total, r.calls-r.before, r.calls
	case l.Type == "event_msg" && p.Type == "item_completed":
		r.ahead = append(r.ahead, rollEntry{item: eventWord(p.Item.Type), id: p.Item.ID})
	case l.Type == "response_item" && strings.HasSuffix(p.Type, "_call_output"):
		r.answers++
		step := transcript.Step{Type: transcript.ToolResult, CallID: p.CallID, Text: cli.OutputText(p.Output)}
		if found := exited.FindStringSubmatch(step.Text); found != nil {
			step.Text, step.IsError = found[2], found[1] != "0"
			if step.IsError {
				step.Text += "(exit code " + found[1] + ")"
			}
		}
		r.ahead = append(r.ahead, rollEntry{id: p.CallID, answer: &step})
	case l.Type == "response_item" && strings.HasSuffix(p.Type, "_call") && p.CallID != "":
		r.calls++
		call := rollCall(p.Name, p.Arguments+p.Input+string(p.Action))
		call.ID = p.CallID
		r.ahead = append(r.ahead, rollEntry{id: p.CallID, call: &call})
	}
}

// turnOver tells whether the model has had its say in this many turns and
// wants another: it called tools, and they have answered.
func (r *rollout) turnOver(turns int) bool {
	return len(r.uses) > turns || len(r.uses) == turns && r.asked > 0 && r.answers >= r.calls
}

// eventWord turns CommandExecution into command_execution.
func eventWord(name string) string {
	return strings.ToLower(capital.ReplaceAllString(name, "${1}_$2"))
}

var (
	capital      = regexp.MustCompile(`([a-z])([A-Z])`)
	exited       = regexp.MustCompile(`(?s)^Chunk ID: .*?\nProcess exited with code (\d+)\n.*?Output:\n(.*)$`)
	stillRunning = regexp.MustCompile(`Process running with session ID`)
)

// rollCall gives a call the form it has when an event tells of it.
func rollCall(name, args string) transcript.Content {
	var command struct {
		Cmd string `json:"cmd"`
	}
	if name == "exec_command" && backend.Decode([]byte(args), &command) == nil && command.Cmd != "" {
		return shellCall(command.Cmd)
	}
	return transcript.Content{Type: transcript.ToolCall, Name: name, Args: args}
}

// unreported is a call with its answer that no event has told of.
type unreported struct {
	call   transcript.Content
	answer transcript.Step
}

// until returns the untold calls that came before the next item of a kind, and
// goes past it. Where the record is behind the events it returns nothing yet.
func (r *rollout) until(item string) []unreported {
	if r == nil {
		return nil
	}
	at := slices.IndexFunc(r.ahead, func(e rollEntry) bool { return e.item == item })
	return r.pass(at + 1)
}

// rest returns all untold calls that are left.
func (r *rollout) rest() []unreported {
	if r == nil {
		return nil
	}
	return r.pass(len(r.ahead))
}

func (r *rollout) pass(count int) (found []unreported) {
	passed := r.ahead[:count]
	var open []rollEntry
	for _, e := range passed {
		if e.item != "" {
			r.told[e.id] = true
		}
	}
	for _, e := range passed {
		switch {
		case e.call != nil:
			open = append(open, e)
		case e.answer != nil:
			at := slices.IndexFunc(open, func(c rollEntry) bool { return c.id == e.id })
			if at < 0 {
				continue
			}
			// A command that runs on is told of when it ends.
			if !r.told[e.id] && !stillRunning.MatchString(e.answer.Text) {
				found = append(found, unreported{*open[at].call, *e.answer})
			}
			open = slices.Delete(open, at, at+1)
		}
	}
	r.ahead = append(open, r.ahead[count:]...)
	return found
}
