package page

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff/lcs"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Comparison is two runs side by side, or the choice of them.
type Comparison struct {
	IDs     [2]string // as they were asked for
	Sides   [2]*Unit  // each with its run; nil: not chosen yet
	From    int       // the first row of the transcripts, from 0
	Wrong   string    // why a side could not be found
	Choices []Candidate
}

// Render writes the page.
func (c Comparison) Render(w io.Writer) error { return render(w, "compare.html", c) }

// Candidate is a run or a unit that could be compared.
type Candidate struct{ ID, Name, Status, Class string }

// A and B are the two sides.
func (c Comparison) A() *Unit { return c.Sides[0] }

// B is the second side.
func (c Comparison) B() *Unit { return c.Sides[1] }

// Both tells whether there is something to compare.
func (c Comparison) Both() bool { return c.A() != nil && c.B() != nil }

func (c Comparison) link(a, b string, from int) string {
	v := url.Values{}
	for name, id := range map[string]string{"a": a, "b": b} {
		if id != "" {
			v.Set(name, id)
		}
	}
	if from > 0 {
		v.Set("from", strconv.Itoa(from))
	}
	return "/compare" + query(v)
}

// Swap is the page with its sides changed.
func (c Comparison) Swap() string { return c.link(c.IDs[1], c.IDs[0], 0) }

// Take is the page with a candidate taken for the side that is missing.
func (c Comparison) Take(id string) string {
	if c.A() == nil {
		return c.link(id, c.idOf(1), 0)
	}
	return c.link(c.idOf(0), id, 0)
}

// idOf is the id of a side that was found.
func (c Comparison) idOf(i int) string {
	if c.Sides[i] == nil {
		return ""
	}
	return c.IDs[i]
}

// Fact is one thing that is known of both.
type Fact struct {
	Name, A, B string
	Same       bool
}

// Facts are what the headers of both say.
func (c Comparison) Facts() (list []Fact) {
	for _, f := range []struct {
		name string
		of   func(*Unit) string
	}{
		{"state", func(u *Unit) string {
			if u.Run != nil {
				return words(u.Run.Status)
			}
			return u.Status()
		}},
		{"backend", func(u *Unit) string { return u.Backend }},
		{"model", func(u *Unit) string {
			if u.Run != nil && deref(u.Run.Model) != "" {
				return *u.Run.Model
			}
			return cmp.Or(u.Model, "the backend's own")
		}},
		{"duration", ofRun(func(u *Unit) string { return took(u.Now, u.Run.StartedAt, u.Run.CompletedAt) })},
		{"cost", ofRun(func(u *Unit) string { return usd(u.Run.Cost()) })},
		{"turns", ofRun(func(u *Unit) string { return number(u.Run.NumTurns) })},
		{"tool calls", ofRun(func(u *Unit) string { return number(u.Run.ToolCalls) })},
		{"tokens in", ofRun(func(u *Unit) string { return number(u.Run.Usage.InputTokens) })},
		{"tokens out", ofRun(func(u *Unit) string { return number(u.Run.Usage.OutputTokens) })},
		{"tokens cached", ofRun(func(u *Unit) string { return number(u.Run.Usage.CacheReadTokens) })},
	} {
		fact := Fact{Name: f.name, A: f.of(c.A()), B: f.of(c.B())}
		fact.Same = fact.A == fact.B
		list = append(list, fact)
	}
	return list
}

func ofRun(of func(*Unit) string) func(*Unit) string {
	return func(u *Unit) string {
		if u.Run == nil {
			return "–"
		}
		return of(u)
	}
}

// Texts are the texts of both: the prompt and the result always, others when
// there are any.
func (c Comparison) Texts() (list []Diff) {
	a, b := c.A(), c.B()
	for _, t := range []struct {
		name   string
		of     func(*Unit) string
		always bool
	}{
		{"Prompt", (*Unit).promptText, true},
		{"System prompt", func(u *Unit) string { return u.SystemPrompt }, false},
		{"Payload", func(u *Unit) string {
			if !u.HasPayload() {
				return ""
			}
			return pretty(u.Payload)
		}, false},
		{"Result", func(u *Unit) string { return cmp.Or(u.JSON(), u.Result()) }, true},
		{"Error", func(u *Unit) string {
			if p := u.Problem(); p != nil {
				return fmt.Sprintf("%s: %s", p.Class, p.Message)
			}
			return ""
		}, false},
	} {
		if x, y := t.of(a), t.of(b); t.always || x != "" || y != "" {
			list = append(list, diff(t.name, x, y))
		}
	}
	return list
}

func (u *Unit) promptText() string { return u.PromptText() }

// Pair is a step of one transcript beside the step of the other that stands
// for it; one of them may be missing.
type Pair struct {
	A, B *Step
	Mark string // =, ≠, − or +
	Says string // what it means
}

// How the transcripts are shown.
const (
	pairsShown = 200
	inBrief    = 1500 // bytes of a text
)

// Pairs is a part of both transcripts, and where it goes on.
type Pairs struct {
	Rows           []Pair
	Total          int
	Earlier, Later string
}

// Pairs lays the transcripts side by side in their order: steps of one kind,
// with the same tools, stand for each other.
func (c Comparison) Pairs() Pairs {
	a, b := c.A().scriptOf(), c.B().scriptOf()
	as, bs := a.kinds(), b.kinds()
	rows := align(as, bs)
	out := Pairs{Total: len(rows)}
	first := min(max(c.From, 0), len(rows))
	last := min(first+pairsShown, len(rows))
	if first > 0 {
		out.Earlier = c.link(c.IDs[0], c.IDs[1], max(first-pairsShown, 0))
	}
	if last < len(rows) {
		out.Later = c.link(c.IDs[0], c.IDs[1], last)
	}
	for _, r := range rows[first:last] {
		p := Pair{A: a.brief(r.a), B: b.brief(r.b)}
		switch {
		case p.B == nil:
			p.Mark, p.Says = signGone, "only in the first"
		case p.A == nil:
			p.Mark, p.Says = signNew, "only in the second"
		case a.said(r.a) == b.said(r.b):
			p.Mark, p.Says = "=", "the same"
		default:
			p.Mark, p.Says = "≠", "different"
		}
		out.Rows = append(out.Rows, p)
	}
	return out
}

// row is a place in each transcript, -1: none.
type row struct{ a, b int }

// align pairs what is alike from both ends, and then as much as it can of the
// middle: a run that did more of the same did so at the end.
func align(as, bs []string) (rows []row) {
	head := 0
	for head < min(len(as), len(bs)) && as[head] == bs[head] {
		rows = append(rows, row{head, head})
		head++
	}
	tail := 0
	for tail < min(len(as), len(bs))-head && as[len(as)-1-tail] == bs[len(bs)-1-tail] {
		tail++
	}
	endA, endB := len(as)-tail, len(bs)-tail
	i, j := head, head
	edits := lcs.DiffLines(as[head:endA], bs[head:endB])
	for _, e := range append(edits, lcs.Diff{Start: endA - head, End: endA - head, ReplStart: endB - head, ReplEnd: endB - head}) {
		for ; i < head+e.Start; i, j = i+1, j+1 {
			rows = append(rows, row{i, j})
		}
		for i < head+e.End || j < head+e.ReplEnd {
			r := row{-1, -1}
			if i < head+e.End {
				r.a, i = i, i+1
			}
			if j < head+e.ReplEnd {
				r.b, j = j, j+1
			}
			rows = append(rows, r)
		}
	}
	for ; i < len(as); i, j = i+1, j+1 {
		rows = append(rows, row{i, j})
	}
	return rows
}

// scriptOf is the transcript, empty when there is none.
func (u *Unit) scriptOf() *Script {
	if u.Script == nil {
		return NewScript(work.Run{}, nil, u.Now)
	}
	return u.Script
}

// kinds tells of each visible step what kind it is and which tools it calls.
func (s *Script) kinds() []string {
	list := make([]string, len(s.visible))
	for n, i := range s.visible {
		step := s.whole(int(i))
		parts := []string{step.Type + step.Name}
		for _, c := range step.Content {
			parts = append(parts, c.Type+c.Name)
		}
		list[n] = strings.Join(parts, "\x00")
	}
	return list
}

// said is all that a visible step says, with the answers to its calls.
func (s *Script) said(n int) string {
	i := s.visible[n]
	var out strings.Builder
	step, results := s.whole(int(i)), s.results(i)
	out.WriteString(step.Text)
	for part, c := range step.Content {
		fmt.Fprintf(&out, "\x00%s\x00%s\x00%s", c.Name, c.Text, c.Args)
		if result, ok := results[int32(part)]; ok {
			fmt.Fprintf(&out, "\x00%v %s", s.whole(result).IsError, s.whole(result).Text)
		}
	}
	return out.String()
}

// brief is a visible step with its texts cut; nil for -1.
func (s *Script) brief(n int) *Step {
	if n < 0 {
		return nil
	}
	step := s.step(s.visible[n], false)
	step.Text = short(step.Text)
	for i, p := range step.Parts {
		step.Parts[i].Text, step.Parts[i].Args, step.Parts[i].Answer = short(p.Text), short(p.Args), short(p.Answer)
	}
	return &step
}

func short(text string) string {
	cut, shortened := work.Cut(text, inBrief)
	if shortened {
		cut += "…"
	}
	return cut
}

// Gist is the step in a line: what it says, or which tools it calls with what.
func (s Step) Gist() string {
	if s.Text != "" {
		return line(s.Text)
	}
	for _, p := range s.Parts {
		switch p.Type {
		case transcript.Text:
			return line(p.Text)
		case transcript.ToolCall:
			return line(p.Args)
		case transcript.ToolResult:
			return line(p.Answer)
		}
	}
	return ""
}

// Tools are the tools that the step calls.
func (s Step) Tools() (list []Content) {
	for _, p := range s.Parts {
		if p.Type == transcript.ToolCall {
			list = append(list, p)
		}
	}
	return list
}

// Link is the step in its own transcript.
func (s Step) Link() string {
	return fmt.Sprintf("/units/%s?run=%d&at=%d#step-%d", s.Unit, s.Attempt, s.Number, s.Number)
}

// OtherRun offers another run of a unit.
func OtherRun(u Unit, r work.Run) Candidate {
	return Candidate{ID: r.ID.String(), Name: fmt.Sprintf("its run %d, %s", r.Attempt, ago(u.Now, r.StartedAt)), Status: words(r.Status),
		Class: stateClass(r.Status)}
}

// OtherUnit offers a unit.
func OtherUnit(u work.Unit, now time.Time) Candidate {
	return Candidate{ID: u.ID.String(), Name: line(u.Title) + ", " + ago(now, u.CreatedAt), Status: status(u, now), Class: stateClass(u.State)}
}
