package model

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// StopReason is why a model ended its answer.
type StopReason int

const (
	stopDone    StopReason = iota
	StopLength             // the limit on the answer's tokens
	StopContext            // the model's context is full
	StopRefusal            // declined, or filtered
	StopTool               // wants a tool
)

// errTooMuch: the same request would be answered at the same length and price.
var errTooMuch = errors.New("ask for less")

func tooMuch(what string, limit int64) error {
	return fmt.Errorf("more than %d MiB of %s: %w", limit>>20, what, errTooMuch)
}

// Answer is what a model has said so far in one call.
type Answer struct {
	steps *transcript.Writer

	answered      bool // with a status of success
	batched       bool // it came from a provider's batch
	requestID     string
	Model         string
	Usage         work.Usage
	UsageFinal    bool     // usage is final
	Cost          *float64 // as the server reckons it
	StopReason    StopReason
	Refusal       strings.Builder
	HasStopReason bool // the server gave a reason for its end
	Ended         bool // the stream had its end marker

	draft   draft
	drafted time.Time // when the draft was told last
	texts   []string
	size    int
	Calls   []*toolCall
}

// toolCall is a call of a tool that a model asks for, as it streams in.
type toolCall struct {
	id, name string
	args     strings.Builder
}

// End notes the mark that ends a stream; without a reason for the end before
// it the answer is not whole.
func (a *Answer) End() error {
	if !a.HasStopReason {
		return ErrCut
	}
	a.Ended = true
	return nil
}

// draft is the step that is being written.
type draft struct {
	kind   string
	number int // 0: no step yet
	text   strings.Builder
	shown  int
}

// AddText adds a piece of text or of thinking.
func (a *Answer) AddText(kind, piece string) error {
	if piece == "" {
		return nil
	}
	if a.size += len(piece); a.size > backend.MaxAnswer {
		return tooMuch("answer", backend.MaxAnswer)
	}
	if a.draft.kind != kind {
		a.finish()
		a.draft.kind = kind
	}
	a.draft.text.WriteString(piece)
	a.show()
	a.showDraft()
	return nil
}

// Words are told so often while they come, and no more of them at once.
const (
	draftEvery = 150 * time.Millisecond
	draftMost  = 8 << 10
)

// showDraft shows those who watch what is not in the step yet, up to a space.
func (a *Answer) showDraft() {
	if time.Since(a.drafted) < draftEvery || !a.steps.DraftsWanted() {
		return
	}
	a.drafted = time.Now()
	text := a.draft.text.String()[a.draft.shown:]
	if at := strings.LastIndexAny(text, " \t\n"); at > 0 && at < draftMost {
		a.steps.Draft(a.draft.kind, text[:at])
	}
}

// show brings the step up to date when enough has come: the more there is, the
// rarer, so that a long answer is not stored a hundred times. It ends at a
// space: half a secret would not be recognised as one.
func (a *Answer) show() {
	d := &a.draft
	text := d.text.String()
	if len(text)-d.shown < 512+d.shown/4 || d.shown >= transcript.MaxResult {
		return
	}
	text, _ = work.Cut(text, transcript.MaxResult)
	at := strings.LastIndexAny(text[d.shown:], " \t\n")
	if at < 0 {
		return
	}
	d.shown += at + 1
	a.write(text[:d.shown])
}

// finish writes the step to its end.
func (a *Answer) finish() {
	d := &a.draft
	if text := d.text.String(); text != "" {
		if d.shown < len(text) {
			a.write(text)
		}
		if d.kind == transcript.Action {
			a.texts = append(a.texts, text)
		}
	}
	a.draft = draft{}
}

func (a *Answer) write(text string) {
	d := &a.draft
	if d.number > 0 {
		a.steps.Rewrite(d.number, text)
		return
	}
	step := transcript.Step{Type: d.kind}
	if d.kind == transcript.Action {
		step.Content = []transcript.Content{{Type: transcript.Text, Text: text}}
	} else {
		step.Text = text
	}
	d.number = a.steps.Add(step)
}

// AddToolCall begins a call of a tool.
func (a *Answer) AddToolCall(id, name, args string) error {
	a.Calls = append(a.Calls, &toolCall{})
	return a.AppendToolCall(len(a.Calls)-1, id, name, args)
}

// AppendToolCall adds to the call of that number, which there may be none of yet.
func (a *Answer) AppendToolCall(number int, id, name, args string) error {
	if number < 0 || number > len(a.Calls) { // no call of a list is left out
		number = len(a.Calls)
	}
	if number == len(a.Calls) {
		a.Calls = append(a.Calls, &toolCall{})
	}
	if a.size += len(id) + len(name) + len(args) + callOverhead; a.size > backend.MaxAnswer {
		return tooMuch("answer", backend.MaxAnswer)
	}
	c := a.Calls[number]
	c.id, c.name = cmp.Or(c.id, id), cmp.Or(c.name, name)
	c.args.WriteString(args)
	return nil
}

// callOverhead is what a call takes besides its text, about.
const callOverhead = 100

// denyCalls puts the calls into the transcript, each with an answer that it was not
// allowed: no tools were offered.
func (a *Answer) denyCalls(why string) {
	for i, c := range a.Calls {
		c.id = cmp.Or(c.id, fmt.Sprintf("call_%d", i+1))
		a.steps.Extend(transcript.Content{Type: transcript.ToolCall, ID: c.id, Name: c.name, Args: c.args.String()})
	}
	for _, c := range a.Calls {
		a.steps.Add(transcript.Step{Type: transcript.ToolResult, CallID: c.id, Text: why, IsError: true, Denied: true})
	}
}

// text is the answer's text, thinking left out.
func (a *Answer) text() string { return strings.Join(a.texts, "") }

// UsageWithin splits an input that counts what came from the cache, so that
// input_tokens means the same for every backend: what was read anew.
func UsageWithin(input, cached, output int64) work.Usage {
	return work.Usage{InputTokens: max(0, input-cached), CacheReadTokens: cached, OutputTokens: output}
}
