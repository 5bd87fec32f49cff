package transcript

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"strings"

	"piecework/internal/work"
)

// Denial is a tool call that was denied: the tool was not allowed to run.
type Denial struct {
	Tool string
	Args string // cut
}

// denials follows the tool calls of a run, also those that the transcript has
// no room for. A denied call is made good when the same tool succeeds later
// with the same arguments.
type denials struct {
	count   int
	pending map[string]toolCall // calls without a result, by id
	good    map[callKey]int     // when a call succeeded last
	denied  []deniedCall        // the first maxTracked
	known   map[string]bool     // ids of the denied calls
}

type toolCall struct {
	Denial
	key callKey
}

type deniedCall struct {
	toolCall
	at int
}

// callKey is the same for all calls of one tool with the same arguments.
type callKey [sha256.Size]byte

const (
	// maxTracked bounds each of the lists above. What is beyond it counts as
	// denied and never as made good.
	maxTracked = 10_000
	// maxDenialArgs is how much of the arguments is shown, in bytes.
	maxDenialArgs = 200
)

func newDenials() denials {
	return denials{pending: map[string]toolCall{}, good: map[callKey]int{}, known: map[string]bool{}}
}

func newToolCall(name, args string) toolCall {
	shown, _ := work.Cut(args, maxDenialArgs)
	var compact bytes.Buffer
	if json.Compact(&compact, []byte(args)) != nil {
		compact.Reset()
		compact.WriteString(args)
	}
	return toolCall{
		Denial: Denial{Tool: strings.Clone(name), Args: strings.Clone(shown)},
		key:    sha256.Sum256(append([]byte(name+"\x00"), compact.Bytes()...)),
	}
}

// call notes a call until its result comes.
func (d *denials) call(c Content) {
	if c.Type == ToolCall && len(d.pending) < maxTracked {
		d.pending[c.ID] = newToolCall(c.Name, c.Args)
	}
}

// result takes in what became of a call; at counts up from step to step.
func (d *denials) result(s Step, at int) {
	call, asked := d.pending[s.CallID]
	delete(d.pending, s.CallID)
	switch {
	case s.Denied && asked:
		d.deny(s.CallID, call, at)
	case s.Denied:
		d.deny(s.CallID, newToolCall(s.Name, ""), at)
	case !s.IsError && asked && len(d.good) < maxTracked:
		d.good[call.key] = at
	}
}

func (d *denials) deny(id string, call toolCall, at int) {
	if id != "" && d.known[id] {
		return
	}
	d.known[id] = true
	if d.count++; len(d.denied) < maxTracked {
		d.denied = append(d.denied, deniedCall{call, at})
	}
}

// Deny notes that a call was denied whose result did not say so.
func (w *Writer) Deny(id, name, args string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.denials.known[id] {
		return
	}
	at := 0
	for _, s := range w.steps {
		if s.Type == ToolResult && s.CallID == id {
			s.Denied, at = true, s.Number
			w.put(s)
		}
	}
	w.denials.deny(id, newToolCall(name, args), at)
}

// Denials counts the tool calls that were denied.
func (w *Writer) Denials() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.denials.count
}

// Denied returns the denied calls that were not made good: how many, and the
// first of them in their order.
func (w *Writer) Denied() (count int, first []Denial) {
	w.mu.Lock()
	defer w.mu.Unlock()
	count = w.denials.count
	for _, c := range w.denials.denied {
		switch {
		case w.denials.good[c.key] > c.at:
			count--
		case len(first) < maxDeniedShown:
			first = append(first, Denial{Tool: w.text(c.Tool, 200), Args: w.redact(work.Clean(c.Args))})
		}
	}
	return count, first
}

// maxDeniedShown is how many denied calls are told one by one.
const maxDeniedShown = 3
