package store

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// No figure of an agent can make a finish impossible. What cannot be true is
// left out, and said to be.
func TestFinishTakesAnyFigures(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	usage := func(n int64) func(*Finish) { return func(f *Finish) { f.Usage.InputTokens = n } }
	cost := func(v float64) func(*Finish) { return func(f *Finish) { f.TotalCostUSD = &v } }
	for _, test := range []struct {
		name   string
		change func(*Finish)
	}{
		{"num_turns", func(f *Finish) { f.NumTurns = 1 << 40 }}, {"num_turns", func(f *Finish) { f.NumTurns = -7 }},
		{"tool_calls", func(f *Finish) { f.ToolCalls = 1 << 40 }}, {"http_status", func(f *Finish) { f.HTTPStatus = 70_000 }},
		{"input_tokens", usage(9_200_000_000_000_000_000)}, {"input_tokens", usage(-1)},
		{"duration_ms", func(f *Finish) { f.DurationMS = math.MinInt64 }}, {"duration_api_ms", func(f *Finish) { f.DurationAPIMS = math.MaxInt64 }},
		{"total_cost_usd", cost(math.NaN())}, {"total_cost_usd", cost(math.Inf(1))}, {"total_cost_usd", cost(1e30)},
		{"total_cost_usd", cost(1.7e308)}, {"total_cost_usd", cost(-0.0000225)},
		{"total_cost_usd", func(f *Finish) { f.TotalCostUSD, f.SessionTotalUSD = new(1.0), new(math.NaN()) }},
	} {
		c := l.run()
		l.end(ending(c, work.Succeeded, test.change), Recorded)
		var names []string
		l.must(l.db.SelectContext(t.Context(), &names, `SELECT unnest(implausible) FROM worker_runs WHERE id = $1`, c.RunID))
		r := l.theRun(c.RunID)
		if !slices.Equal(names, []string{test.name}) || !slices.Equal(r.Implausible, names) || r.NumTurns != 0 ||
			r.Usage != (work.Usage{}) || r.DurationMS != 0 || r.DurationAPIMS != 0 {
			t.Errorf("%s: %+v", test.name, r)
		}
		if known := r.TotalCostUSD != nil; known && *r.TotalCostUSD != 1 {
			t.Errorf("%s: cost %v", test.name, *r.TotalCostUSD)
		}
		if u := l.unit(c.ID); u.State != work.Succeeded || u.CostUnknown() != (r.TotalCostUSD == nil) {
			t.Errorf("%s: %s, cost %+v", test.name, u.State, u.Cost)
		}
	}
	l.checkCosts()
}

// What the database refuses it takes bare: as failed, with its cost and with the
// steps that were written before.
func TestFinishBare(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.exec(`ALTER TABLE worker_runs ADD CONSTRAINT planted CHECK (result <> 'the answer')`)
	c := l.run()
	l.tell(c.RunID, transcript.Step{Number: 1, Text: "early"})
	f := ending(c, work.Succeeded, func(f *Finish) { f.TotalCostUSD = new(0.25) })
	_, err := l.Runs.Finish(t.Context(), f)
	if !Refused(err) {
		t.Fatalf("the database says %v", err)
	}
	l.end(f.Bare(err), Recorded)
	u := l.unit(c.ID)
	if u.State != work.Failed || u.Cost != work.NewCost(0.25, 0) || u.Error.Class != work.ClassInfra || u.Output != nil {
		t.Errorf("%+v", u)
	}
	if _, err := l.Transcripts.FoldLost(t.Context(), 10); err != nil || len(l.steps(c.RunID)) != 1 {
		t.Errorf("steps %q, error %v", l.steps(c.RunID), err)
	}
	l.exec(`ALTER TABLE worker_runs DROP CONSTRAINT planted`)
	l.end(f, Fenced) // nothing of it was recorded, and nobody says so
	l.checkCosts()
}

// A run that was given up counts its cost when it comes back, whoever gave it
// up, and nothing says that it was recorded.
func TestFinishAfterItWasGivenUp(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for name, giveUp := range map[string]func(*Claimed){
		"its process did not know it": func(c *Claimed) {
			l.must(l.Runs.GiveUp(t.Context(), l.process, Owned{RunID: c.RunID, UnitID: c.ID, Attempt: c.RunCount}, false))
		},
		"its lease ran out": l.lose,
		"an older worker process gave it back": func(c *Claimed) {
			l.end(ending(c, work.Queued, func(f *Finish) { f.Status, f.Losses = work.RunLost, 1 }), Recorded)
		},
		"it was stopped with a part of its cost": func(c *Claimed) {
			l.end(ending(c, work.Queued, func(f *Finish) {
				f.Status, f.Losses, f.TotalCostUSD, f.CostIncomplete = work.RunLost, 1, new(0.5), true
			}), Recorded)
		},
	} {
		c := l.run()
		giveUp(c)
		if u := l.unit(c.ID); u.State != work.Queued || u.Losses != 1 {
			t.Errorf("%s: %s, %d losses", name, u.State, u.Losses)
		}
		for range 2 {
			l.end(ending(c, work.Succeeded, func(f *Finish) { f.TotalCostUSD = new(3.0) }), Fenced)
		}
		if u, r := l.unit(c.ID), l.theRun(c.RunID); u.Cost != work.NewCost(3, 0) || r.Status != work.RunFenced || *r.Result != "the answer" {
			t.Errorf("%s: cost %+v, run %s", name, u.Cost, r.Status)
		}
	}
	gone := l.run(func(n *NewUnit) { n.Backend = "claude" })
	l.must(l.Runs.GiveUp(t.Context(), l.process, Owned{RunID: gone.RunID}, true))
	if u := l.unit(gone.ID); u.Cost != work.NewCost(0, 1) {
		t.Errorf("of a run whose end is lost: %+v", u.Cost)
	}
	l.checkCosts()
}

// Losses without an end between them come to an end, whoever tells of them.
func TestLossesEnd(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	for name, lose := range map[string]func(*Claimed){
		"given up": func(c *Claimed) { l.must(l.Runs.GiveUp(t.Context(), l.process, Owned{RunID: c.RunID}, false)) },
		"stopped by itself": func(c *Claimed) {
			l.end(ending(c, work.Queued, func(f *Finish) {
				f.Status, f.Losses, f.Error = work.RunLost, 1, work.Fail(work.ClassInfra, "it lost its lease")
			}), Recorded)
		},
		"came back late": func(c *Claimed) {
			l.must(l.Runs.GiveUp(t.Context(), l.process, Owned{RunID: c.RunID}, false))
			l.end(ending(c, work.Succeeded), Fenced)
		},
	} {
		id := l.put().ID
		for range work.MaxLosses - 1 {
			lose(l.take(id, l.process))
		}
		l.end(ending(l.take(id, l.process), work.Queued), Recorded) // it came to an end: the count begins anew
		for i := range work.MaxLosses {
			c := l.take(id, l.process)
			if c == nil {
				t.Fatalf("%s: it ended after %d losses: %+v", name, i, l.unit(id))
			}
			lose(c)
		}
		u := l.unit(id)
		if u.State != work.Failed || u.Error.Class != work.ClassCrash || u.Error.Message[:len("10 runs in a row")] != "10 runs in a row" {
			t.Errorf("%s: %s, %v", name, u.State, u.Error)
		}
	}
}

// An agent that counts the cost of its session, over all runs: each dollar
// counts once, in whatever order the ends of the runs come.
func TestSessionCostCountsOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	totals := []float64{0.01, 0.02, 0.05, 0.0625}
	for _, late := range [][]int{{}, {0}, {1}, {0, 1}, {1, 0}, {0, 1, 2}, {2, 1, 0}, {1, 2}} {
		name := fmt.Sprint("late ", late)
		id := l.put(func(n *NewUnit) { n.Backend = "claude" }).ID
		session, ends := "", make([]Finish, len(totals))
		for i, total := range totals {
			c := l.take(id, l.process)
			if i == 0 {
				session = c.SessionID
			} else if c.ResumeSession != session {
				t.Fatalf("%s: run %d resumes %q", name, i, c.ResumeSession)
			}
			next := work.Queued
			if i == len(totals)-1 {
				next = work.Succeeded
			}
			ends[i] = ending(c, next, func(f *Finish) {
				f.SessionID, f.Resumable, f.SessionTotalUSD, f.SessionResumed = session, next == work.Queued, &total, i > 0
				f.TotalCostUSD = new(total - c.SessionCostUSD) // as far as the worker process knew
			})
			if slices.Contains(late, i) {
				l.lose(c)
				l.exec(`UPDATE work_units SET deaths = 0 WHERE id = $1`, id)
				continue
			}
			l.end(ends[i], Recorded)
		}
		for _, i := range late {
			l.end(ends[i], Fenced)
			l.end(ends[i], Fenced)
		}
		u := l.unit(id)
		if math.Abs(u.Known()-0.0625) > 1e-9 || u.Unpriced != 0 || u.State != work.Succeeded {
			t.Errorf("%s: %s, cost %+v", name, u.State, u.Cost)
		}
		for i, want := range []float64{0.01, 0.01, 0.03, 0.0125} {
			if r := l.theRun(ends[i].RunID); r.TotalCostUSD == nil || math.Abs(*r.TotalCostUSD-want) > 1e-9 {
				t.Errorf("%s: run %d cost %v, want %v", name, i+1, r.TotalCostUSD, want)
			}
		}
	}
	l.checkCosts()
}

// A session that began anew counts from nothing, whatever the one before cost.
func TestSessionThatBeganAnew(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.put(func(n *NewUnit) { n.Backend = "claude" }).ID
	for i, step := range []struct {
		total   float64
		resumed bool
	}{{0.5, false}, {0.75, false}, {1, true}, {0.25, true}} {
		c := l.take(id, l.process)
		l.end(ending(c, work.Queued, func(f *Finish) {
			f.SessionID, f.Resumable, f.SessionTotalUSD, f.SessionResumed, f.TotalCostUSD = "s", true, &step.total, step.resumed, &step.total
		}), Recorded)
		if got, want := l.unit(id).Known(), []float64{0.5, 1.25, 1.5, 1.75}[i]; math.Abs(got-want) > 1e-9 {
			t.Errorf("after %d runs it has cost %v, want %v", i+1, got, want)
		}
	}
	l.checkCosts()
}
