package transcript

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"piecework/internal/work"
)

// maxBytes bounds one transcript before compression. Later steps are counted
// and left out.
const maxBytes = 64 << 20

// stepOverhead is what a step takes besides its text.
const stepOverhead = 200

// Writer takes the steps of one run from one backend. It is safe for
// concurrent use, but a run's transcript has one author.
type Writer struct {
	mu        sync.Mutex
	emit      func(Step)
	drafts    func(kind, text string, rev int) // nil: nobody wants them
	wanted    func() bool
	redact    func(string) string
	now       func() time.Time
	steps     []Step
	rev       int // of the newest change
	bytes     int
	dropped   int
	sizes     []int // of the steps' content, in bytes
	toolCalls int
	names     map[string]string // tool call id → tool name
	open      map[string]bool   // calls without a result
	denials   denials
}

// NewWriter returns a Writer that hands each new or changed step to emit, in
// order, with every secret replaced by redact, a Redactor. emit may be nil;
// without redact only what looks like a key is replaced.
func NewWriter(emit func(Step), redact func(string) string) *Writer {
	if emit == nil {
		emit = func(Step) {}
	}
	if redact == nil {
		redact = Redactor(nil)
	}
	return &Writer{
		emit: emit, redact: redact, now: time.Now,
		names: map[string]string{}, open: map[string]bool{}, denials: newDenials(),
	}
}

// TellDrafts has tell hear of words that are in no step yet, as often as whoever
// writes them says so while wanted is true, with the revision that they come
// after. It is called before anything is written.
func (w *Writer) TellDrafts(wanted func() bool, tell func(kind, text string, rev int)) {
	w.wanted, w.drafts = wanted, tell
}

// DraftsWanted tells whether Draft would be heard.
func (w *Writer) DraftsWanted() bool { return w.wanted != nil && w.wanted() }

// Draft tells of words that will be in a step of a type. A last word that may
// become a credential is kept back until it is whole.
func (w *Writer) Draft(kind, text string) {
	if last := strings.LastIndexAny(text, " \t\n") + 1; keyed.begins(text[last:]) {
		text = text[:last]
	}
	w.drafts(kind, w.text(text, MaxResult), w.Rev())
}

// Redact replaces the secrets this writer knows in s.
func (w *Writer) Redact(s string) string { return w.redact(s) }

// Add appends a step and returns its number, or 0 when the transcript is full.
func (w *Writer) Add(s Step) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.add(s)
}

// Extend adds content to the newest step, if that is an action with room;
// otherwise it begins a new action. It returns the number of the action, or 0
// when the transcript is full.
func (w *Writer) Extend(c Content) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.steps)
	if last > 0 && w.steps[last-1].Type == Action {
		return w.grow(last, c)
	}
	return w.add(Step{Type: Action, Content: []Content{c}})
}

// Grow adds content to the action of the given number, also when other steps
// have come since: a tool may answer while its message is still being written.
// An action that has no room left is followed by a new one. It returns the
// number of the action that has the content, or 0 when the transcript is full.
func (w *Writer) Grow(number int, c Content) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if number < 1 || number > len(w.steps) {
		w.denials.call(c)
		w.dropped++
		return 0
	}
	return w.grow(number, c)
}

// Rewrite replaces the text of a step that is still being written: of an
// action, its last piece.
func (w *Writer) Rewrite(number int, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if number < 1 || number > len(w.steps) || w.bytes > maxBytes {
		return
	}
	s := w.steps[number-1]
	old := &s.Text
	if last := len(s.Content) - 1; last >= 0 {
		s.Content = append([]Content(nil), s.Content...)
		old = &s.Content[last].Text
	}
	text = w.text(text, MaxResult)
	w.bytes += len(text) - len(*old)
	*old = text
	w.put(s)
}

// grow appends to the content in place: a copy of the step that somebody holds
// is shorter, and does not see it.
func (w *Writer) grow(number int, c Content) int {
	s := w.steps[number-1]
	if w.sizes[number-1] > MaxAction || w.dropped > 0 || w.bytes > maxBytes {
		return w.add(Step{Type: Action, Content: []Content{c}, Parent: s.Parent})
	}
	w.denials.call(c)
	before := w.bytes
	s.Content = append(s.Content, w.content(c))
	w.sizes[number-1] += w.bytes - before
	w.put(s)
	return number
}

// contentOverhead is what a part of an action takes besides its text.
const contentOverhead = 100

// put takes a changed step into its place.
func (w *Writer) put(s Step) {
	w.rev++
	s.Rev = w.rev
	w.steps[s.Number-1] = s
	w.emit(s)
}

// Close gives every call that never got a result one that says so.
func (w *Writer) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.steps {
		for _, c := range s.Content {
			if c.Type == ToolCall && w.open[c.ID] {
				w.add(Step{Type: ToolResult, CallID: c.ID, Text: "(no result: the run ended)", IsError: true})
			}
		}
	}
	if w.dropped > 0 {
		dropped := w.dropped
		w.dropped, w.bytes = 0, 0
		w.add(Step{Type: SystemText, Text: fmt.Sprintf("(transcript full: %d further steps left out)", dropped)})
	}
}

// Steps returns a copy of what has been written so far.
func (w *Writer) Steps() []Step {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]Step(nil), w.steps...)
}

// After returns the steps that changed after revision rev, in the order in
// which they did: as many as fit into limit bytes, at least one if there is
// one.
func (w *Writer) After(rev, limit int) []Step {
	w.mu.Lock()
	changed := After(w.steps, rev)
	w.mu.Unlock()
	for i, s := range changed {
		limit -= stepOverhead + len(s.Text)
		for _, c := range s.Content {
			limit -= len(c.Text) + len(c.Args)
		}
		if limit < 0 && i > 0 {
			return changed[:i]
		}
	}
	return changed
}

// Rev is the number of changes so far.
func (w *Writer) Rev() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rev
}

// ToolCalls counts the tool calls so far.
func (w *Writer) ToolCalls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.toolCalls
}

func (w *Writer) add(s Step) int {
	for _, c := range s.Content {
		w.denials.call(c)
	}
	if s.Type == ToolResult {
		w.denials.result(s, len(w.steps)+w.dropped+1)
	}
	if w.dropped > 0 {
		w.dropped++
		return 0
	}
	s.Number, s.Time = len(w.steps)+1, w.now().UTC().Truncate(time.Millisecond)
	s.Text = w.text(s.Text, MaxResult)
	s.CallID, s.Parent = w.text(s.CallID, 200), w.text(s.Parent, 200)
	if s.Type == ToolResult {
		if s.Name == "" {
			s.Name = w.names[s.CallID]
		}
		delete(w.open, s.CallID)
	}
	s.Name = w.text(s.Name, 200)
	content, before := make([]Content, 0, len(s.Content)), w.bytes
	for _, part := range s.Content {
		content = append(content, w.content(part))
	}
	s.Content = content
	size := w.bytes - before
	if w.bytes += stepOverhead + len(s.Text); w.bytes > maxBytes {
		w.dropped++
		return 0
	}
	w.steps, w.sizes = append(w.steps, s), append(w.sizes, size)
	w.put(s)
	return s.Number
}

func (w *Writer) content(c Content) Content {
	c.Text = w.text(c.Text, MaxResult)
	c.Args = w.text(c.Args, MaxArgs)
	c.ID, c.Name = w.text(c.ID, 200), w.text(c.Name, 200)
	if c.Type == ToolCall {
		w.toolCalls++
		w.names[c.ID], w.open[c.ID] = c.Name, true
	}
	w.bytes += contentOverhead + len(c.Text) + len(c.Args)
	return c
}

// text makes s fit to be stored: no secret, no NUL, valid UTF-8, at most
// limit bytes and a footer that says what was cut.
func (w *Writer) text(s string, limit int) string {
	s = w.redact(work.Clean(s))
	cut, shortened := work.Cut(s, limit)
	if !shortened {
		return s
	}
	return strings.TrimRight(cut, "\n") + fmt.Sprintf("\n… [cut: %d of %d bytes shown]", len(cut), len(s))
}
