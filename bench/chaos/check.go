package chaos

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"piecework/internal/work"
)

// Violation is a promise that was not kept.
type Violation struct {
	Promise string // its key in Promises
	Unit    string // or the request, or the process
	What    string
}

func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Promise, v.Unit, v.What) }

// Check returns the promises that the history and the ledger show broken.
func Check(h History, l Ledger) []Violation {
	c := checker{h: h, l: l, wants: map[string]Want{}, asked: map[string]time.Time{}, due: map[string]time.Time{}, units: map[string]Unit{}, runs: map[string][]Run{}, batches: map[string]Batch{}, reopened: map[string]time.Time{}, runAgain: map[string]bool{}, gone: map[string]bool{}}
	for _, e := range h {
		if e.Kind == KindIntend {
			c.wants[e.Request] = *e.Want
			c.asked[e.Request] = e.At
			c.runAgain[e.Want.Batch] = c.runAgain[e.Want.Batch] || e.Want.Again
		}
	}
	for _, e := range h {
		c.gone[e.Unit] = c.gone[e.Unit] || e.Kind == KindDelete
	}
	for _, u := range l.Units {
		c.units[u.ID] = u
	}
	for _, r := range l.Runs {
		c.runs[r.Unit] = append(c.runs[r.Unit], r)
	}
	for _, b := range l.Batches {
		c.batches[b.ID] = b
	}
	c.answers()
	c.keys()
	c.wholeBatches()
	c.messages()
	c.moves()
	c.liveRuns()
	c.trees()
	c.processes()
	c.acceptance()
	c.losses()
	c.windows()
	c.budgets()
	c.reuse()
	for _, u := range l.Units {
		c.ending(u)
		c.numbering(u)
		c.counters(u)
		c.times(u)
	}
	return c.found
}

type checker struct {
	h        History
	l        Ledger
	wants    map[string]Want      // by request
	asked    map[string]time.Time // the same: since when it was asked for
	due      map[string]time.Time // by unit
	units    map[string]Unit      // by id
	runs     map[string][]Run     // by unit, in the order of their attempts
	batches  map[string]Batch     // by id
	reopened map[string]time.Time // by unit: when its batch was run again
	gone     map[string]bool      // by unit: its client has asked to delete it, and it may be gone
	runAgain map[string]bool      // the requests of batches that their clients run again
	found    []Violation
}

func (c *checker) broken(promise, unit, format string, args ...any) {
	c.found = append(c.found, Violation{promise, unit, fmt.Sprintf(format, args...)})
}

// answers looks at what clients were told.
func (c *checker) answers() {
	told := map[string]string{} // request → unit
	for _, e := range c.h {
		switch e.Kind {
		case KindSubmit, KindBatch:
			c.submitted(e, told)
		case KindMove:
			if !slices.Contains([]int{0, http.StatusServiceUnavailable, http.StatusOK, http.StatusAccepted, http.StatusConflict}, e.Status) {
				c.broken("answers are right", e.Unit, "%s of a batch was answered with %d: %s", e.What, e.Status, e.Error)
			}
		case KindMisuse:
			if e.Status == http.StatusAccepted {
				c.broken("one unit per key", e.Request, "the key was taken with another body")
			} else if !slices.Contains([]int{0, http.StatusServiceUnavailable, http.StatusUnprocessableEntity}, e.Status) {
				c.broken("answers are right", e.Request, "another body was answered with %d: %s", e.Status, e.Error)
			}
		case KindCancel:
			if !slices.Contains([]int{0, http.StatusServiceUnavailable, http.StatusAccepted, http.StatusConflict}, e.Status) {
				c.broken("answers are right", e.Unit, "cancel was answered with %d: %s", e.Status, e.Error)
			}
			c.cancelled(e)
		case KindDelete:
			c.deleted(e)
		case KindSeen:
			c.seen(e)
		case KindSlow:
			c.slow(e)
		case KindOpen: // to ask the worker processes to stop may have ended it
			c.broken("accepted ends", e.Unit, "it had not when the time was up")
		}
	}
}

func (c *checker) submitted(e Event, told map[string]string) {
	switch e.Status {
	case 0, http.StatusServiceUnavailable:
		return
	case http.StatusAccepted:
	default:
		c.broken("answers are right", e.Request, "answered with %d: %s", e.Status, e.Error)
		return
	}
	if first := told[e.Request]; first != "" && first != e.Unit {
		c.broken("one unit per key", e.Request, "told to be %s, then %s", first, e.Unit)
	}
	told[e.Request] = e.Unit
	if e.Kind == KindBatch {
		c.acceptedBatch(e)
		return
	}
	if u, ok := c.units[e.Unit]; !ok && c.gone[e.Unit] {
		return
	} else if !ok || u.Request != e.Request {
		c.broken("accepted is kept", e.Request, "%s was accepted by %s and is not in the ledger", e.Unit, e.Door)
	}
}

// seen compares what the API showed with what it came to. What a worker process
// did not close itself it may not have ended yet.
func (c *checker) seen(e Event) {
	u, ok := c.units[e.Unit]
	if !ok && c.gone[e.Unit] {
		return
	}
	if e.Crowded && !slices.ContainsFunc(c.runs[u.ID], func(r Run) bool { return r.Status == "lost" || r.Status == "fenced" }) {
		c.broken("closed means dead", e.Unit, "the API showed %s while an agent of it was alive", e.State)
	}
	if c.wants[u.Request].Again && e.State != "succeeded" {
		return // its batch was run again
	}
	finished, err := time.Parse(time.RFC3339Nano, e.Finished)
	if u.State != e.State || u.Finished == nil || err != nil || !finished.Truncate(time.Microsecond).Equal(u.Finished.Truncate(time.Microsecond)) {
		c.broken("final is final", e.Unit, "the API showed %s at %s; in the end it is %s at %v", e.State, e.Finished, u.State, u.Finished)
	}
}

// cancelled looks at what became of a cancel.
func (c *checker) cancelled(e Event) {
	u := c.units[e.Unit]
	if e.Status != http.StatusAccepted || u.State == "cancelled" {
		return
	}
	for _, r := range c.runs[u.ID] {
		if r.ID == u.FinalRun && r.Status == u.State {
			return // it came first
		}
	}
	c.broken("cancel is kept", e.Unit, "it was accepted at %s; the unit is %s", e.At.Format(time.StampMilli), u.State)
}

// keys looks for units that are there twice, or that nobody asked for.
func (c *checker) keys() {
	byRequest, byKey := map[string]string{}, map[string]string{}
	for _, u := range c.l.Units {
		want, ok := c.wants[u.Request]
		if !ok {
			c.broken("one unit per request", u.ID, "nobody asked for %q", u.Request)
			continue
		}
		if other := byRequest[u.Request]; other != "" {
			c.broken("one unit per request", u.ID, "%s is there as %s too", u.Request, other)
		}
		if other := byKey[want.Key]; want.Key != "" && other != "" {
			c.broken("one unit per key", u.ID, "the key %s has made %s too", want.Key, other)
		}
		byRequest[u.Request], byKey[want.Key] = u.ID, u.ID
	}
}

func final(state string) bool {
	return slices.Contains([]string{"succeeded", "failed", "cancelled", "timed_out"}, state)
}

// moves looks for changes after the end, and for beginnings after a cancel or
// before their time.
func (c *checker) moves() {
	cancelled := map[string]bool{}
	for _, m := range c.l.Moves {
		want := c.wants[c.units[m.Unit].Request]
		due := c.asked[c.units[m.Unit].Request].Add(time.Duration(want.Delay * float64(time.Second)))
		switch {
		case m.From == "" && m.Due != nil:
			c.due[m.Unit] = *m.Due
			fallthrough
		case m.From == "":
			if want.Delay > 0 && c.due[m.Unit].Before(due) {
				c.broken("not before", m.Unit, "it was to begin at %v, or %v after that it was asked for", m.Due, want.Delay)
			}
		case m.From == "queued" && m.To == "running" && cancelled[m.Unit]:
			c.broken("cancel holds", m.Unit, "a run began at %s, after it was asked to stop", m.At.Format(time.StampMilli))
		}
		cancelled[m.Unit] = cancelled[m.Unit] || m.Cancel
		if c.again(m) {
			c.reopened[m.Unit] = m.At
		} else if final(m.From) {
			c.broken("final is final", m.Unit, "at %s from %s to %s, its run from %s to %s", m.At.Format(time.StampMilli), m.From, m.To, m.Before, m.FinalRun)
		}
	}
}

// again tells whether a unit goes on because its batch was run again.
func (c *checker) again(m Move) bool {
	return c.wants[c.units[m.Unit].Request].Again && m.To == "queued" && final(m.From) && m.From != "succeeded"
}

// liveRuns follows each unit's runs through time.
func (c *checker) liveRuns() {
	live := map[string]string{} // unit → run
	for _, m := range c.l.RunMoves {
		if m.To == "running" {
			if live[m.Unit] != "" {
				c.broken("one live run", m.Unit, "run %s began at %s while %s was live", m.Run, m.At.Format(time.StampMilli), live[m.Unit])
			}
			live[m.Unit] = m.Run
		} else if live[m.Unit] == m.Run {
			delete(live, m.Unit)
		}
	}
}

// sessions is how many agents a run may begin, one after another: the session that
// the first was to go on with may not be there.
const sessions = 2

// trees looks at what the agents noted.
func (c *checker) trees() {
	known, begun := map[string]bool{}, map[string]int{}
	for _, r := range c.l.Runs {
		known[r.ID] = true
	}
	for _, e := range c.h {
		if e.Kind != KindAgent {
			continue
		}
		begun[e.Run]++
		switch {
		case e.Crowded && !c.stalled(e):
			c.broken("one live tree", e.Unit, "the agent of run %s (pid %d) began at %s beside another", e.Run, e.PID, e.At.Format(time.StampMilli))
		case begun[e.Run] > sessions:
			c.broken("one live tree", e.Unit, "run %s began an agent %d times", e.Run, begun[e.Run])
		case !known[e.Run]:
			c.broken("one live tree", e.Unit, "the ledger has no run %s, but its agent began", e.Run)
		}
	}
}

// stalled tells whether an agent began beside another because the whole machine
// stood still, and with it who should have ended the other in time.
func (c *checker) stalled(agent Event) bool {
	return slices.ContainsFunc(c.runs[agent.Unit], func(r Run) bool {
		return r.Started.Before(agent.At) && !c.over(r, agent.At) && slices.ContainsFunc(c.h, func(e Event) bool {
			gone := e.At.Add(time.Duration(e.Seconds * float64(time.Second)))
			return e.Kind == KindStall && e.At.Before(agent.At) && r.Started.Before(gone)
		})
	})
}

// over tells whether a run's agents must have been dead by then: its worker
// process had ended, or had said so itself.
func (c *checker) over(r Run, by time.Time) bool {
	return slices.ContainsFunc(c.h, func(e Event) bool {
		return e.Kind == KindProcess && e.What == "ended" && e.PID == r.PID && e.At.Before(by)
	}) || slices.ContainsFunc(c.l.RunMoves, func(m RunMove) bool {
		return m.Run == r.ID && m.To == "fenced" && m.At.Before(by)
	})
}

func (c *checker) processes() {
	for _, where := range c.l.Leaks {
		c.broken("nothing leaks", where, "it holds the API key")
	}
	asked := map[int]bool{}
	for _, e := range c.h {
		switch {
		case e.Kind == KindLeak:
			c.broken("nothing leaks", e.Target, "it holds %q", e.What)
		case e.Kind == KindOrphan:
			c.broken("no orphans", fmt.Sprint(e.PID), "the process is alive")
		case e.Kind != KindProcess:
		case e.What == "asked":
			asked[e.PID] = true
		case e.What == "stuck":
			c.broken("workers end", e.Target, "still there after %g s", e.Seconds)
		case e.What == "ended" && asked[e.PID] && e.Code != 0:
			c.broken("workers end", e.Target, "process %d ended with code %d", e.PID, e.Code)
		case e.What == "ended" && !asked[e.PID] && !c.endHasCause(e):
			c.broken("workers end", e.Target, "process %d ended by itself with code %d", e.PID, e.Code)
		}
	}
}

// ending looks at what became of a unit.
func (c *checker) ending(u Unit) {
	want := c.wants[u.Request]
	if !final(u.State) || u.Finished == nil {
		c.broken("accepted ends", u.ID, "it is %s (%s)", u.State, u.Request)
		return
	}
	if c.condemned(u) {
		return
	}
	if !slices.Contains(want.Finals, u.State) {
		c.broken("accepted ends", u.ID, "it has %s (%s), expected %v", u.State, u.ErrorClass, want.Finals)
	}
	if u.State == "cancelled" && u.CancelAsked == nil {
		c.broken("accepted ends", u.ID, "nobody asked to cancel it")
	}
	succeeded := 0
	var last *Run
	for _, r := range c.runs[u.ID] {
		if r.Status == "succeeded" {
			succeeded++
		}
		if r.ID == u.FinalRun {
			last = &r
		}
	}
	if succeeded > 1 || (succeeded == 1) != (u.State == "succeeded") {
		c.broken("one result", u.ID, "%s, and %d of its runs succeeded", u.State, succeeded)
	}
	if last == nil {
		if u.State != "cancelled" {
			c.broken("one result", u.ID, "%s by no run of its own", u.State)
		}
		return
	}
	// A cancel may come while a run is ending in another way.
	if last.Attempt != u.RunCount || last.Status != u.State && u.State != "cancelled" {
		c.broken("one result", u.ID, "%s by run %d of %d, which %s", u.State, last.Attempt, u.RunCount, last.Status)
	}
	if u.State == "succeeded" && (last.Result == nil || *last.Result != want.Output) {
		c.broken("one result", u.ID, "the output is not %q", want.Output)
	}
	least := 1
	switch u.State {
	case "succeeded":
		least = want.Steps
	case "cancelled":
		least = 0 // it may have come before the first word
	}
	if last.Steps < least || last.Readable != last.Steps {
		c.broken("transcripts are kept", u.ID, "the final run has %d steps, of which %d can be read, and had %d at least", last.Steps, last.Readable, least)
	}
}

// condemned tells whether a unit has failed because three worker processes in a
// row died with it, the last while it ran and did not only wait for its turn.
// Enough faults do that to a unit that did no harm.
func (c *checker) condemned(u Unit) bool {
	runs := c.runs[u.ID]
	if u.State != "failed" || u.ErrorClass != "crash" || len(runs) < deaths {
		return false
	}
	for _, r := range runs[len(runs)-deaths:] {
		if r.Status != "lost" && r.Status != "fenced" {
			return false
		}
	}
	if !slices.ContainsFunc(runs[len(runs)-deaths:], c.lossHasCause) {
		return false
	}
	last := runs[len(runs)-1]
	if lost := len(runs) - 1 - lastKept(runs); lost >= work.MaxLosses {
		return last.ID == u.FinalRun
	}
	return last.ID == u.FinalRun && (last.Begun || c.alone(last))
}

// lastKept is the place of the last run that was not lost; -1: there is none.
func lastKept(runs []Run) int {
	last := -1
	for i, r := range runs {
		if r.Status != "lost" && r.Status != "fenced" {
			last = i
		}
	}
	return last
}

// alone tells whether a run began when its worker process had no other: then it
// did not wait.
func (c *checker) alone(r Run) bool {
	live := map[string]bool{}
	for _, m := range c.l.RunMoves {
		if m.Run == r.ID {
			break
		}
		live[m.Run] = m.To == "running"
	}
	return !slices.ContainsFunc(c.l.Runs, func(other Run) bool { return live[other.ID] && other.PID == r.PID })
}

// deaths is how many worker processes a unit may take with it.
const deaths = 3

func (c *checker) numbering(u Unit) {
	runs := c.runs[u.ID]
	if len(runs) != u.RunCount {
		c.broken("runs are numbered", u.ID, "%d runs, run count %d", len(runs), u.RunCount)
	}
	var before time.Time
	for i, r := range runs {
		if r.Attempt != i+1 || r.Started.Before(before) {
			c.broken("runs are numbered", u.ID, "run %d is number %d, begun at %s", i+1, r.Attempt, r.Started.Format(time.StampMilli))
		}
		if r.Status == "running" {
			c.broken("runs are numbered", u.ID, "run %d is not closed", r.Attempt)
		}
		before = r.Started
	}
}

// counters looks at what the runs add up to.
func (c *checker) counters(u Unit) {
	want := c.wants[u.Request]
	var failures, losses, crashes int
	var cost float64
	for _, r := range c.runs[u.ID] {
		cost += r.Cost
		if r.Started.Before(c.reopened[u.ID]) {
			continue // the batch's retry has set the counts to 0
		}
		switch r.Status {
		case "failed", "timed_out":
			failures++
			if r.ErrorClass == "crash" {
				crashes++
			}
		case "lost", "fenced", "released":
			losses++
		}
		ended := r.Status == "failed" || r.Status == "succeeded"
		if reused := u.CachedFrom != "" && r.ID == u.FinalRun; want.Cost > 0 && math.Abs(r.Cost-want.Cost) > 1e-9 && (ended || r.Cost != 0) && !reused {
			c.broken("cost is counted once", u.ID, "run %d (%s) cost %g, not %g", r.Attempt, r.Status, r.Cost, want.Cost)
		}
	}
	if failures > want.Failures || u.Failures > want.Failures || u.State == "failed" && u.Failures < want.Failures && !c.condemned(u) {
		c.broken("failures are failures", u.ID, "%d failures are counted and %d runs failed, where %d were to be expected (%d losses)", u.Failures, failures, want.Failures, u.Losses)
	}
	if u.Failures != failures || u.Losses != losses || u.Crashes != crashes || u.Waits != 0 {
		c.broken("counters agree", u.ID, "failures %d, losses %d, crashes %d, waits %d; its runs say %d, %d, %d, 0", u.Failures, u.Losses, u.Crashes, u.Waits, failures, losses, crashes)
	}
	if math.Abs(u.Cost-cost) > 1e-9 {
		c.broken("cost is counted once", u.ID, "the unit cost %g, its runs %g", u.Cost, cost)
	}
}

// times looks at what happened too early.
func (c *checker) times(u Unit) {
	for _, r := range c.runs[u.ID] {
		if due, ok := c.due[u.ID]; ok && r.Started.Before(due) {
			c.broken("not before", u.ID, "run %d began %v too early", r.Attempt, due.Sub(r.Started))
		}
	}
}
