package chaos

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// answerLimit is the longest that a request may wait for its answer;
	// answerMargin is for a machine that is busy with more than Piecework.
	answerLimit  = 15 * time.Second
	answerMargin = 5 * time.Second
	// leastAccepted is the share of what clients ask for that must be accepted.
	leastAccepted = 0.9
	// tolerated is the share of what has no cause that a busy machine may have.
	tolerated = 0.02
	// reuseAfter is how long after a result is there an equal unit must reuse it.
	reuseAfter = 10 * time.Second
)

// slow looks at a request that waited long.
func (c *checker) slow(e Event) {
	began := e.At.Add(-time.Duration(e.Seconds * float64(time.Second)))
	// One that is frozen, and a machine that stands still, answers nobody: so long
	// a request may wait in addition.
	limit := (answerLimit + answerMargin).Seconds()
	for _, f := range c.h {
		if f.Kind == KindFault && f.Target == e.Door && strings.HasPrefix(f.Fault, "freeze") || f.Kind == KindStall {
			if end := f.At.Add(time.Duration(f.Seconds * float64(time.Second))); !f.At.After(e.At) && !end.Before(began) {
				limit += f.Seconds
			}
		}
	}
	if e.Seconds < limit {
		return
	}
	c.broken("answers come in time", e.Door, "%s was answered with %d after %.1f s", e.What, e.Status, e.Seconds)
}

// deleted looks at what is left of a unit. 404: an earlier request did it whose
// answer was lost.
func (c *checker) deleted(e Event) {
	switch e.Status {
	case 0, http.StatusServiceUnavailable:
	case http.StatusOK, http.StatusNoContent, http.StatusNotFound:
		if _, ok := c.units[e.Unit]; ok || len(c.runs[e.Unit]) > 0 {
			c.broken("deleted is gone", e.Unit, "its deletion was answered with %d, and it is there, with %d runs", e.Status, len(c.runs[e.Unit]))
		}
	default:
		c.broken("answers are right", e.Unit, "delete was answered with %d: %s", e.Status, e.Error)
	}
}

// acceptance looks at how much of what clients asked for was accepted, and at
// what was refused without a cause.
func (c *checker) acceptance() {
	wanted, accepted, asked := map[string]bool{}, map[string]bool{}, 0
	var refused []Event
	for _, e := range c.h {
		switch {
		case e.Kind == KindIntend && e.Want.Batch == "":
			wanted[e.Request] = true
		case e.Kind == KindIntend:
			wanted[e.Want.Batch] = true
		case e.Kind != KindSubmit && e.Kind != KindBatch:
			continue
		case e.Status == http.StatusAccepted:
			accepted[e.Request] = true
		case e.Status == http.StatusServiceUnavailable && !c.refusalHasCause(e):
			refused = append(refused, e)
		}
		if e.Status != 0 {
			asked++
		}
	}
	if least := leastAccepted * float64(len(wanted)); float64(len(accepted)) < least {
		c.broken("work is accepted", "all clients", "%d of %d requests were accepted", len(accepted), len(wanted))
	}
	if few := max(2, tolerated*float64(asked)); float64(len(refused)) > few {
		c.broken("refusals have a cause", refused[0].Request, "%s refused it at %s while nothing was broken that explains it, and %d others: %s",
			refused[0].Door, refused[0].At.Format(time.StampMilli), len(refused)-1, refused[0].Error)
	}
}

// refusalHasCause tells whether Postgres, or the way to it, was broken for the
// API that refused.
func (c *checker) refusalHasCause(e Event) bool {
	began := e.At.Add(-time.Duration(e.Seconds * float64(time.Second)))
	return c.broke(began.Add(-answerLimit), e.At, func(f Event) bool {
		return f.Kind == KindStall || ofPostgres(f) || strings.HasPrefix(f.Target, e.Door) && f.Target != e.Door+"/redis"
	})
}

// ofPostgres tells whether a fault broke the server for all.
func ofPostgres(f Event) bool {
	return f.Kind == KindFault && (f.Target == "postgres" || strings.Contains(f.Fault, "postgres") && f.Target == "" || f.Fault == "lock tables")
}

// broke tells whether something of that kind was broken at some time between
// two.
func (c *checker) broke(from, to time.Time, kind func(Event) bool) bool {
	return slices.ContainsFunc(c.h, func(f Event) bool {
		if f.Kind != KindFault && f.Kind != KindStall || f.At.After(to) {
			return false
		}
		return !f.At.Add(time.Duration(f.Seconds*float64(time.Second))).Before(from) && kind(f)
	})
}

// losses looks for runs that were lost or given back while nothing was broken
// that explains it. A few are allowed: a machine may be too busy to let a worker
// process give a sign of life in time.
func (c *checker) losses() {
	var without []Run
	for _, r := range c.l.Runs {
		if !c.lossHasCause(r) {
			without = append(without, r)
		}
	}
	if few := max(2, tolerated*float64(len(c.l.Runs))); float64(len(without)) > few {
		c.broken("losses have a cause", without[0].Unit, "run %d is %s, and nothing was broken that explains it; %d others are the same", without[0].Attempt, without[0].Status, len(without)-1)
	}
}

// lossHasCause tells whether a run went on to an end of its own, or something
// broke its worker process or the servers while it ran. Redis is no cause.
func (c *checker) lossHasCause(r Run) bool {
	if !slices.Contains([]string{"lost", "fenced", "released"}, r.Status) {
		return true
	}
	closed := r.Started
	for _, m := range c.l.RunMoves {
		if m.Run == r.ID && m.At.After(closed) {
			closed = m.At
		}
	}
	name := ""
	for _, e := range c.h {
		switch {
		case e.Kind != KindProcess || e.PID != r.PID:
		case e.What == "started":
			name = e.Target
		case e.What == "asked" && e.At.Before(closed.Add(time.Second)), e.What == "ended" && e.Code != 0:
			return true // the end of the whole, or a death that is looked at elsewhere
		}
	}
	return c.broke(r.Started.Add(-answerLimit), closed, func(f Event) bool {
		return f.Kind == KindStall || f.PID != 0 && f.PID == r.PID || ofPostgres(f) ||
			name != "" && strings.HasPrefix(f.Target, name) && f.Target != name+"/redis"
	})
}

// endHasCause tells whether a process was ended, or had no Postgres to begin
// with, or a machine that stood still.
func (c *checker) endHasCause(e Event) bool {
	return c.broke(e.At.Add(-time.Minute), e.At, func(f Event) bool {
		return f.Kind == KindStall || f.PID == e.PID && f.PID != 0 || ofPostgres(f) || f.Target == e.Target+"/postgres"
	})
}

// windows follows how many units of each batch run at once.
func (c *checker) windows() {
	running, told := map[string]int{}, map[string]bool{}
	for _, m := range c.l.Moves {
		b := c.batches[c.units[m.Unit].Batch]
		if b.Concurrency == 0 || m.From == m.To {
			continue
		}
		if m.From == "running" {
			running[b.ID]--
		}
		if m.To == "running" {
			running[b.ID]++
		}
		if running[b.ID] > b.Concurrency && !told[b.ID] {
			told[b.ID] = true
			c.broken("batch windows hold", b.ID, "at %s %d of its units ran, its concurrency is %d", m.At.Format(time.StampMilli), running[b.ID], b.Concurrency)
		}
	}
}

// budgets compares what batches cost with what they were allowed. Their units
// cost the same, so none may be above. What a lost run has cost comes on top: it was
// not known when the next was let go.
func (c *checker) budgets() {
	cost := map[string]float64{}
	for _, r := range c.l.Runs {
		if u := c.units[r.Unit]; u.Batch != "" && r.ID == u.FinalRun {
			cost[u.Batch] += r.Cost
		}
	}
	for _, b := range c.l.Batches {
		// One unit must run to tell what one costs.
		if b.MaxCost > 0 && cost[b.ID] > b.MaxCost+1e-9 {
			c.broken("budgets hold", b.ID, "its units cost %g, its budget is %g", cost[b.ID], b.MaxCost)
		}
	}
}

// reuse looks at units that may reuse the result of an equal one.
func (c *checker) reuse() {
	final, first := map[string]Run{}, map[string]time.Time{} // by unit; by output, when the first was there
	for _, r := range c.l.Runs {
		if r.ID == c.units[r.Unit].FinalRun {
			final[r.Unit] = r
		}
	}
	byRun := map[string]Unit{}
	for _, u := range c.l.Units {
		byRun[u.FinalRun] = u
		want := c.wants[u.Request]
		if at, ok := first[want.Output]; want.Cached && u.State == "succeeded" && u.Finished != nil && (!ok || u.Finished.Before(at)) {
			first[want.Output] = *u.Finished
		}
	}
	for _, u := range c.l.Units {
		want, r := c.wants[u.Request], final[u.ID]
		from := c.wants[byRun[u.CachedFrom].Request]
		switch {
		case u.CachedFrom != "" && (!want.Cached || !from.Cached || from.Output != want.Output):
			c.broken("results are reused", u.ID, "its result is that of %q, its request is %q", byRun[u.CachedFrom].Request, u.Request)
		case u.CachedFrom != "" && math.Abs(r.Cost) > 1e-9:
			c.broken("results are reused", u.ID, "the reused result cost %g", r.Cost)
		case want.Cached && u.State == "succeeded" && u.CachedFrom == "" && r.Started.After(first[want.Output].Add(reuseAfter)):
			c.broken("results are reused", u.ID, "it ran at %s, and an equal unit had ended at %s", r.Started.Format(time.StampMilli), first[want.Output].Format(time.StampMilli))
		}
	}
}
