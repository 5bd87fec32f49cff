package web

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// window is how many steps a page shows at once: a browser must not freeze.
const window = 200

const (
	// excerpt is how much of a tool's answer is shown unless all is asked for, in
	// bytes.
	excerpt = 3000
	// pageRoom is how much of texts a page of steps shows before it cuts each to
	// an excerpt, in bytes; a line counts as lineRoom more.
	pageRoom, lineRoom = 512 << 10, 40
	// maxParts is how many parts of a step are shown.
	maxParts = 500
	// maxAsked is how many numbers and ranges of steps one request may name.
	maxAsked = 2000
)

// Steps is a part of a run's transcript: what the agent said and did, each
// tool call with its answer.
type Steps struct {
	Unit    uuid.UUID
	Run     uuid.UUID
	Attempt int
	Shown   []Step
	Total   int
	// Earlier and Later are the first steps of the parts before and after;
	// 0: there is none.
	Earlier, Later int
	FirstError     int // number of the first step that went wrong, or 0
	Calls          int
	Rev            int      // of the transcript: what comes later is news
	Timeline       Timeline // of the whole run
}

// Render writes the steps with what is said of all of them, for the script.
func (s Steps) Render(w io.Writer) error { return render(w, "transcript", s) }

// Step is one step with the answers to its calls.
type Step struct {
	transcript.Step
	Unit    uuid.UUID
	Attempt int
	After   string // since the run began
	Parts   []Content
}

// Content is a part of an action.
type Content struct {
	transcript.Content
	State  string // of a call: running, done, error, or unanswered
	Result *transcript.Step
	Answer string // of the result, or its beginning
	Cut    bool   // there is more of the answer
}

// Took is how long a call's answer took.
func (c Content) took(from time.Time) string {
	if c.Result == nil {
		return ""
	}
	return lasted(c.Result.Time.Sub(from))
}

// Kind is what a step is called.
func (s Step) Kind() string {
	switch s.Type {
	case transcript.Action:
		return "agent"
	case transcript.ToolResult:
		return s.Name + " answered"
	case transcript.SystemText:
		return "harness"
	case transcript.UserText:
		return "user"
	}
	return s.Type
}

// Script makes pages of one run's transcript.
type Script struct {
	run     work.Run
	now     time.Time
	steps   []transcript.Step
	result  map[int]map[int]int // step and place of a call → step of its result, both from 0
	callOf  map[int]int         // step of a result → step of its call
	visible []int               // steps that are no result of a call, from 0
}

// NewScript pairs calls with their results. Ids may come again in a long
// run: a result belongs to the last call before it that has none.
func NewScript(run work.Run, steps []transcript.Step, now time.Time) *Script {
	s := &Script{run: run, now: now, steps: steps, result: map[int]map[int]int{}, callOf: map[int]int{}}
	type place struct{ step, part int }
	open := map[string]place{}
	for i, step := range steps {
		for part, c := range step.Content {
			if c.Type == transcript.ToolCall {
				open[c.ID] = place{i, part}
			}
		}
		call, answered := open[step.CallID]
		if step.Type != transcript.ToolResult || !answered {
			s.visible = append(s.visible, i)
			continue
		}
		delete(open, step.CallID)
		if s.result[call.step] == nil {
			s.result[call.step] = map[int]int{}
		}
		s.result[call.step][call.part] = i
		s.callOf[i] = call.step
	}
	return s
}

// At is the part of the transcript around a step, or its end for 0.
func (s *Script) At(number int) Steps {
	first := max(len(s.visible)-window, 0)
	if number > 0 {
		at, _ := slices.BinarySearch(s.visible, s.place(number-1))
		first = min(max(at-window/10, 0), first)
	}
	last := min(first+window, len(s.visible))
	out := s.page(s.visible[first:last], false)
	if first > 0 {
		out.Earlier = s.visible[max(first-window, 0)] + 1
	}
	if last < len(s.visible) {
		out.Later = s.visible[last] + 1
	}
	return out
}

// Of is the steps that a script asks for: numbers and ranges such as
// "3,7,12-20,31-". A result stands for the step of its call. whole gives
// answers in full. Of what is asked for beyond a window, only that much comes.
func (s *Script) Of(asked string, whole bool) Steps {
	wanted := map[int]bool{}
	for n, part := range strings.SplitN(asked, ",", maxAsked+1) {
		if n == maxAsked || len(wanted) == len(s.visible) {
			break
		}
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if isRange {
			if last = len(s.steps); to != "" {
				last, _ = strconv.Atoi(to)
			}
		}
		if err != nil || first < 1 {
			continue
		}
		for i := first - 1; i < min(last, len(s.steps)); i++ {
			wanted[s.place(i)] = true
		}
	}
	var chosen []int
	for _, i := range s.visible {
		if wanted[i] && len(chosen) < 2*window {
			chosen = append(chosen, i)
		}
	}
	return s.page(chosen, whole)
}

// place is the step under which a step is shown.
func (s *Script) place(i int) int {
	if call, ok := s.callOf[i]; ok {
		return call
	}
	return i
}

func (s *Script) page(chosen []int, whole bool) Steps {
	out := Steps{Unit: s.run.UnitID, Run: s.run.ID, Attempt: s.run.Attempt, Total: len(s.steps), Calls: s.run.ToolCalls,
		Timeline: timeline(s.run, s.steps, s.now)}
	room := pageRoom
	for _, i := range chosen {
		step := s.step(i, whole)
		step.fit(&room)
		out.Shown = append(out.Shown, step)
	}
	for i, step := range s.steps {
		if step.IsError && out.FirstError == 0 {
			out.FirstError = s.place(i) + 1
		}
		out.Rev = max(out.Rev, step.Rev)
	}
	return out
}

func (s *Script) step(i int, whole bool) Step {
	out := Step{Step: s.steps[i], Unit: s.run.UnitID, Attempt: s.run.Attempt, After: lasted(s.steps[i].Time.Sub(s.run.StartedAt))}
	for part, c := range s.steps[i].Content {
		shown := Content{Content: c}
		if c.Type == transcript.ToolCall {
			result, answered := s.result[i][part]
			switch {
			case answered:
				shown.Result, shown.State = &s.steps[result], "done"
				shown.Answer, shown.Cut = s.cut(shown.Result.Text, whole)
				if shown.Result.IsError {
					shown.State = "error"
				}
			case s.run.Status == work.RunRunning:
				shown.State = "running"
			default:
				shown.State = "unanswered"
			}
		}
		out.Parts = append(out.Parts, shown)
	}
	if out.Type == transcript.ToolResult {
		answer, cut := s.cut(out.Text, whole)
		out.Parts = []Content{{Content: transcript.Content{Type: transcript.ToolResult}, Result: &s.steps[i], Answer: answer, Cut: cut}}
	}
	return out
}

// fit cuts the texts of a step when a page has no room left for all of them.
func (s *Step) fit(room *int) {
	fit := func(text *string) {
		size := len(*text) + lineRoom*strings.Count(*text, "\n")
		if *room -= size; *room >= 0 {
			return
		}
		*room += size
		if cut, shortened := work.Cut(*text, excerpt); shortened {
			*text = cut + "\n… [cut: the page would be too long; Text and JSON have all]"
		}
	}
	if left := len(s.Parts) - maxParts; left > 0 {
		s.Parts = append(slices.Clip(s.Parts[:maxParts]), Content{Content: transcript.Content{Type: transcript.Text,
			Text: "… [" + count(left, "further part") + " left out; Text and JSON have all]"}})
	}
	fit(&s.Text)
	for i := range s.Parts {
		fit(&s.Parts[i].Text)
		fit(&s.Parts[i].Answer)
	}
}

func (s *Script) cut(text string, whole bool) (string, bool) {
	if whole {
		return text, false
	}
	return work.Cut(text, excerpt)
}

// Took is how long the answer to part of the step took.
func (s Step) Took(c Content) string { return c.took(s.Time) }
