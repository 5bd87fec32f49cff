package page

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

// Script makes pages of one run's transcript. Of a step that is on no page it keeps
// where it stands, and nothing of what it says.
type Script struct {
	run        work.Run
	links      []link           // of each step
	visible    []int32          // steps that are no result of a call, from 0
	open       map[string]place // calls without a result
	firstError int
	rev        int
	timeline   timeline
	whole      func(i int) *transcript.Step
}

// link is where a step stands, all from 0 and results from 1.
type link struct {
	shown  int32 // the step that it is shown with: itself, or its call's
	part   int32 // of a result: which call it answers
	result int32 // of a step with calls: its last result; 0: none
	before int32 // of a result: the result before it
}

// place is a call: a step, and its place therein.
type place struct{ step, part int32 }

// NewScript makes the script of a transcript that is all there.
func NewScript(run work.Run, steps []transcript.Step, now time.Time) *Script {
	s := Outline(run, now)
	for i := range steps {
		s.Add(&steps[i])
	}
	s.whole = func(i int) *transcript.Step { return &steps[i] }
	return s
}

// Outline begins the script of a transcript of which only some steps will be there:
// each is added in turn, also without its texts, and what a page needs is given with Know.
func Outline(run work.Run, now time.Time) *Script {
	return &Script{run: run, open: map[string]place{}, timeline: newTimeline(run, now)}
}

// Add pairs calls with their results. Ids may come again in a long run: a result
// belongs to the last call before it that has none.
func (s *Script) Add(step *transcript.Step) {
	i := int32(len(s.links))
	own := link{shown: i}
	for part, c := range step.Content {
		if c.Type == transcript.ToolCall {
			s.open[c.ID] = place{i, int32(part)}
		}
	}
	call, answered := s.open[step.CallID]
	if step.Type == transcript.ToolResult && answered {
		delete(s.open, step.CallID)
		of := &s.links[call.step]
		own = link{shown: call.step, part: call.part, before: of.result}
		of.result = i + 1
	} else {
		s.visible = append(s.visible, i)
	}
	s.links = append(s.links, own)
	if step.IsError && s.firstError == 0 {
		s.firstError = int(own.shown) + 1
	}
	s.rev = max(s.rev, step.Rev)
	s.timeline.add(step)
}

// Know gives the steps that Around or Asked have named.
func (s *Script) Know(steps map[int]*transcript.Step) {
	s.whole = func(i int) *transcript.Step { return steps[i] }
}

// Around names the steps, from 0, that the page around a step needs; 0: the page of
// the end.
func (s *Script) Around(number int) []int {
	first, last := s.window(number)
	return s.withResults(s.visible[first:last])
}

// Asked names the steps, from 0, that the answer to a script needs.
func (s *Script) Asked(asked string) []int { return s.withResults(s.chosen(asked)) }

func (s *Script) withResults(chosen []int32) []int {
	var all []int
	for _, i := range chosen {
		all = append(all, int(i))
		for _, result := range s.results(i) {
			all = append(all, result)
		}
	}
	slices.Sort(all)
	return all
}

// results are the results of a step's calls, by the place of the call.
func (s *Script) results(i int32) map[int32]int {
	var found map[int32]int
	for r := s.links[i].result; r > 0; r = s.links[r-1].before {
		if found == nil {
			found = map[int32]int{}
		}
		found[s.links[r-1].part] = int(r - 1)
	}
	return found
}

// At is the part of the transcript around a step, or its end for 0.
func (s *Script) At(number int) Steps {
	first, last := s.window(number)
	out := s.page(s.visible[first:last], false)
	if first > 0 {
		out.Earlier = int(s.visible[max(first-window, 0)]) + 1
	}
	if last < len(s.visible) {
		out.Later = int(s.visible[last]) + 1
	}
	return out
}

// window is which of the visible steps are shown around a step.
func (s *Script) window(number int) (first, last int) {
	first = max(len(s.visible)-window, 0)
	if number > 0 {
		at := len(s.visible)
		if number <= len(s.links) {
			at, _ = slices.BinarySearch(s.visible, s.links[number-1].shown)
		}
		first = min(max(at-window/10, 0), first)
	}
	return first, min(first+window, len(s.visible))
}

// Of is the steps that a script asks for: numbers and ranges such as
// "3,7,12-20,31-". A result stands for the step of its call. whole gives
// answers in full. Of what is asked for beyond a window, only that much comes.
func (s *Script) Of(asked string, whole bool) Steps { return s.page(s.chosen(asked), whole) }

func (s *Script) chosen(asked string) (chosen []int32) {
	wanted := map[int32]bool{}
	for n, part := range strings.SplitN(asked, ",", maxAsked+1) {
		if n == maxAsked || len(wanted) == len(s.visible) {
			break
		}
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if isRange {
			if last = len(s.links); to != "" {
				last, _ = strconv.Atoi(to)
			}
		}
		if err != nil || first < 1 {
			continue
		}
		for i := first - 1; i < min(last, len(s.links)); i++ {
			wanted[s.links[i].shown] = true
		}
	}
	for _, i := range s.visible {
		if wanted[i] && len(chosen) < 2*window {
			chosen = append(chosen, i)
		}
	}
	return chosen
}

func (s *Script) page(chosen []int32, whole bool) Steps {
	out := Steps{Unit: s.run.UnitID, Run: s.run.ID, Attempt: s.run.Attempt, Total: len(s.links), Calls: s.run.ToolCalls,
		FirstError: s.firstError, Rev: s.rev, Timeline: s.timeline.end()}
	room := pageRoom
	for _, i := range chosen {
		step := s.step(i, whole)
		step.fit(&room)
		out.Shown = append(out.Shown, step)
	}
	return out
}

func (s *Script) step(i int32, whole bool) Step {
	of := s.whole(int(i))
	out := Step{Step: *of, Unit: s.run.UnitID, Attempt: s.run.Attempt, After: lasted(of.Time.Sub(s.run.StartedAt))}
	results := s.results(i)
	for part, c := range of.Content {
		shown := Content{Content: c}
		if c.Type == transcript.ToolCall {
			result, answered := results[int32(part)]
			switch {
			case answered:
				shown.Result, shown.State = s.whole(result), "done"
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
		out.Parts = []Content{{Content: transcript.Content{Type: transcript.ToolResult}, Result: of, Answer: answer, Cut: cut}}
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
