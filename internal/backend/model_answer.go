package backend

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// stop is why a model ended its answer.
type stop int

const (
	stopDone    stop = iota
	stopLength       // the limit on the answer's tokens
	stopContext      // the model's context is full
	stopRefusal      // declined, or filtered
	stopTool         // wants a tool
)

// maxAnswer bounds the text of one answer.
const maxAnswer = 64 << 20

// errTooMuch: the same request would be answered at the same length and price.
var errTooMuch = errors.New("ask for less")

func tooMuch(what string, limit int64) error {
	return fmt.Errorf("more than %d MiB of %s: %w", limit>>20, what, errTooMuch)
}

// answer is what a model has said so far in one call.
type answer struct {
	steps *transcript.Writer

	answered  bool // with a status of success
	batched   bool // it came from a provider's batch
	requestID string
	model     string
	usage     work.Usage
	told      bool     // usage is final
	cost      *float64 // as the server reckons it
	stop      stop
	refusal   strings.Builder
	finished  bool // the server gave a reason for its end
	ended     bool // the stream had its end marker

	draft   draft
	drafted time.Time // when the draft was told last
	texts   []string
	size    int
	calls   []*modelCall
}

// modelCall is a call of a tool that a model asks for, as it streams in.
type modelCall struct {
	id, name string
	args     strings.Builder
}

// done notes the mark that ends a stream; without a reason for the end before
// it the answer is not whole.
func (a *answer) done() error {
	if !a.finished {
		return errCut
	}
	a.ended = true
	return nil
}

// draft is the step that is being written.
type draft struct {
	kind   string
	number int // 0: no step yet
	text   strings.Builder
	shown  int
}

// hears adds a piece of text or of thinking.
func (a *answer) hears(kind, piece string) error {
	if piece == "" {
		return nil
	}
	if a.size += len(piece); a.size > maxAnswer {
		return tooMuch("answer", maxAnswer)
	}
	if a.draft.kind != kind {
		a.finish()
		a.draft.kind = kind
	}
	a.draft.text.WriteString(piece)
	a.show()
	a.tell()
	return nil
}

// Words are told so often while they come, and no more of them at once.
const (
	draftEvery = 150 * time.Millisecond
	draftMost  = 8 << 10
)

// tell shows those who watch what is not in the step yet, up to a space.
func (a *answer) tell() {
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
func (a *answer) show() {
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
func (a *answer) finish() {
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

func (a *answer) write(text string) {
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

// asks begins a call of a tool.
func (a *answer) asks(id, name, args string) error {
	a.calls = append(a.calls, &modelCall{})
	return a.asksMore(len(a.calls)-1, id, name, args)
}

// asksMore adds to the call of that number, which there may be none of yet.
func (a *answer) asksMore(number int, id, name, args string) error {
	if number < 0 || number > len(a.calls) { // no call of a list is left out
		number = len(a.calls)
	}
	if number == len(a.calls) {
		a.calls = append(a.calls, &modelCall{})
	}
	if a.size += len(id) + len(name) + len(args) + callOverhead; a.size > maxAnswer {
		return tooMuch("answer", maxAnswer)
	}
	c := a.calls[number]
	c.id, c.name = cmp.Or(c.id, id), cmp.Or(c.name, name)
	c.args.WriteString(args)
	return nil
}

// callOverhead is what a call takes besides its text, about.
const callOverhead = 100

// deny puts the calls into the transcript, each with an answer that it was not
// allowed: no tools were offered.
func (a *answer) deny(why string) {
	for i, c := range a.calls {
		c.id = cmp.Or(c.id, fmt.Sprintf("call_%d", i+1))
		a.steps.Extend(transcript.Content{Type: transcript.ToolCall, ID: c.id, Name: c.name, Args: c.args.String()})
	}
	for _, c := range a.calls {
		a.steps.Add(transcript.Step{Type: transcript.ToolResult, CallID: c.id, Text: why, IsError: true, Denied: true})
	}
}

// said is the answer's text, thinking left out.
func (a *answer) said() string { return strings.Join(a.texts, "") }
