package page

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"piecework/internal/work"
)

// Ask is a page, or a dialog of one, that tells what will happen before it
// does. With Error alone it tells why nothing can.
type Ask struct {
	Title  string
	Says   []string // the consequences
	Action string   // where its form is sent; empty: there is nothing to be done
	Verb   string   // on the button that does it
	Leave  string   // on the way out
	Back   string   // where that leads
	Error  string   // why it was not done
	Change *Change  // what a retry may change; nil: nothing
	Fields []Field  // what it asks besides
	Units  []work.Unit
	More   int // units that are meant besides
}

// Field is a line of text that a form asks for. Without a label it is hidden.
type Field struct {
	Name, Label, Value string
	Hint               string // what it is when left empty
	Mode               string // of a phone's keyboard; empty: text
	Max                int    // characters; 0: some
	Fills              string // what a browser may fill in by itself
}

// whoAndWhy is asked of whoever pauses something.
var whoAndWhy = []Field{{Name: "by", Label: "Your name", Max: 200, Fills: "name"}, {Name: "why", Label: "Why, for those who wonder", Max: 1000}}

// Render writes the page.
func (a Ask) Render(w io.Writer) error { return render(w, "ask.html", a) }

// Part is the dialog.
func (a Ask) Part() Part { return Part{Name: "ask", Data: a} }

// Change is what a retry may change, as the form has it.
type Change struct {
	Model, Prompt, MaxTurns, OnDenied string

	TooLong bool // the prompt, for a form
	Open    bool
}

// Notice tells what was done, or why it was not.
type Notice struct {
	Text  string
	Wrong bool
	Undo  *Deed
	Close string // the page without it
}

// Deed is a form of one button.
type Deed struct{ Action, Verb, Back string }

// Switch pauses a queue or a backend that goes on, and resumes one that does
// not. A page that shows one gives the template "switch" its path as Back.
type Switch struct {
	Kind   string // queue or backend
	Name   string
	Paused bool
	Back   string // the page it is on, where the reader comes back to
}

// Path is where a verb is sent.
func (s Switch) Path(verb string) string { return "/operate/" + s.Kind + "s/" + s.Name + "/" + verb }

// Resume lets it go on.
func (s Switch) Resume() Deed {
	return Deed{Action: s.Path("resume"), Verb: fmt.Sprintf("Resume the %s %s", s.Kind, s.Name), Back: s.Back}
}

// Pause is the page that asks whether to pause it.
func (s Switch) Pause() string { return s.Path("pause") + query(map[string][]string{"back": {s.Back}}) }

// Path is the unit's page in its list.
func (u Unit) Path() string { return "/units/" + u.ID.String() + u.Filter.Query() }

// To is the page of a verb for the unit.
func (u Unit) To(verb string) string {
	return "/units/" + u.ID.String() + "/" + verb + u.Filter.Query()
}

// ToChange is the page of a retry with its changes in sight.
func (u Unit) ToChange() string {
	v := u.Filter.values()
	v.Set("change", "1")
	return "/units/" + u.ID.String() + "/retry" + query(v)
}

// CanCancel tells whether the unit can be cancelled and was not asked to stop.
func (u Unit) CanCancel() bool { return !u.State.Final() && u.CancelRequestedAt == nil }

// Stopping tells whether the unit was asked to stop and has not yet.
func (u Unit) Stopping() bool { return !u.State.Final() && u.CancelRequestedAt != nil }

// CanRetry tells whether the unit can be run again.
func (u Unit) CanRetry() bool { return work.CanMove(u.State, work.Queued) && u.State.Final() }

// AskCancel tells what cancelling the unit means.
func AskCancel(u Unit) Ask {
	a := Ask{Title: "Cancel this unit?", Action: u.To("cancel"), Verb: "Cancel the unit", Leave: "Leave it", Back: u.Path(), Says: []string{line(u.Title)}}
	spent := "Its earlier runs have cost " + spent(u.Cost) + "."
	switch {
	case u.State == work.Running:
		a.Says = append(a.Says, fmt.Sprintf("Run %d is stopped, with all its processes. Its transcript and the output so far are kept; what it has cost is known when it has ended.", u.RunCount))
		if u.Cost != (work.Cost{}) {
			a.Says = append(a.Says, spent)
		}
	case u.RunCount == 0:
		a.Says = append(a.Says, "It has not begun and has cost nothing.")
	default:
		a.Says = append(a.Says, "No further run begins. What its earlier runs have left is kept.", spent)
	}
	a.Says = append(a.Says, "A retry brings it back.")
	return a
}

// maxFormPrompt is how long a prompt can be and still be edited in a form, in bytes.
const maxFormPrompt = 100 << 10

// AskRetry tells what running the unit again means.
func AskRetry(u Unit, open bool) Ask {
	a := Ask{Title: "Run this unit again?", Action: u.To("retry"), Verb: "Retry", Leave: "Leave it", Back: u.Path(), Says: []string{line(u.Title)}}
	if u.Error != nil {
		a.Says = append(a.Says, fmt.Sprintf("It ended with %s. %s", u.Error.Class, u.Error.Class.Advice()))
	}
	again := "It goes back into the queue, with all its retries."
	switch {
	case u.RunCount == 1:
		again += " Its run so far has cost " + spent(u.Cost) + " and is kept; another costs anew."
	case u.RunCount > 1:
		again += fmt.Sprintf(" Its %d runs so far have cost %s and are kept; another costs anew.", u.RunCount, spent(u.Cost))
	}
	a.Says = append(a.Says, again)
	if len(u.Request) > 0 {
		return a // it is sent again as it is
	}
	a.Change = &Change{Model: u.Model, Prompt: u.Prompt, OnDenied: u.OnDenied, Open: open}
	if u.MaxTurns > 0 {
		a.Change.MaxTurns = fmt.Sprint(u.MaxTurns)
	}
	if len(u.Prompt) > maxFormPrompt {
		a.Change.Prompt, a.Change.TooLong = "", true
	}
	return a
}

// AskRetryAll tells what running count units again means; the first of them
// are listed.
func AskRetryAll(f Filter, count, most int, cost work.Cost, first []work.Unit) Ask {
	a := Ask{Title: fmt.Sprintf("Run %s again?", Units(count)), Action: "/units/retry" + f.Query(), Verb: "Retry " + Units(min(count, most)),
		Leave: "Leave them", Back: "/" + f.Query(), Units: first, More: count - len(first)}
	a.Says = []string{fmt.Sprintf("They are %s%s, and have cost %s so far. They go back into the queue, with all their retries; each costs anew.",
		strings.ReplaceAll(words(f.Status), ",", " or "), f.besides(), spent(cost))}
	if count > most {
		a.Says = append(a.Says, fmt.Sprintf("At most %s go at once, the oldest first: do it again for the others.", number(most)))
	}
	return a
}

// Units is "1 unit", "2 units".
func Units(n int) string { return count(n, "unit") }

// besides is what a filter asks for beside a state, in words.
func (f Filter) besides() string {
	var list []string
	for _, s := range []Setting{{"batch", f.Batch}, {"backend", f.Backend}, {"worker", f.Worker}, {"error", f.Class}, {"search", f.Search}} {
		if s.Value != "" {
			list = append(list, s.Name+" "+s.Value)
		}
	}
	if f.Since != "" {
		for _, c := range Sinces {
			if c.Value == f.Since {
				list = append(list, c.Name)
			}
		}
	}
	for _, label := range f.Labels {
		list = append(list, "label "+label)
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// AskPause tells what pausing a queue or a backend means.
func AskPause(s Switch) Ask {
	return Ask{Title: fmt.Sprintf("Pause the %s %s?", s.Kind, s.Name), Action: s.Path("pause"), Verb: "Pause", Leave: "Let it go on", Back: s.Back,
		Fields: append([]Field{{Name: "back", Value: s.Back}}, whoAndWhy...),
		Says:   []string{"None of its units begins, in any worker process, until it is resumed. Units that run go on to their end; new ones are accepted and wait."}}
}

// retryable are the states that a list must be of to be run again.
var retryable = []string{string(work.Failed), string(work.TimedOut), string(work.Cancelled)}

// Retryable tells whether all units of the list can be run again.
func (f Filter) Retryable() bool {
	for state := range strings.SplitSeq(f.Status, ",") {
		if !slices.Contains(retryable, state) {
			return false
		}
	}
	return true
}

// Again is how many units of the list can be run again, when all can.
func (l List) Again() Pill {
	for _, p := range l.Pills {
		if p.Chosen && p.Count > 0 && l.Filter.Retryable() {
			return p
		}
	}
	return Pill{}
}
