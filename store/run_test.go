package store

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestClaimOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	processes := []*fixture{l, openFixture(t, l.url)}
	for range 5 {
		u := l.put()
		var won atomic.Int32
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				p := processes[i%2]
				c, err := p.Runs.Claim(t.Context(), claimOf(u.ID, p.process))
				if err != nil {
					t.Error(err)
				}
				if c != nil {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if n := won.Load(); n != 1 || l.unit(u.ID).RunCount != 1 {
			t.Errorf("claimed %d times, run count %d", n, l.unit(u.ID).RunCount)
		}
	}
}

func TestClaimSameUnitTwiceInOneStatement(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	u, other := l.put(), l.put()
	claims := []Claim{claimOf(u.ID, l.process), claimOf(other.ID, l.process), claimOf(u.ID, l.process), claimOf(uuid.New(), l.process)}
	got, err := l.Runs.claimAll(t.Context(), claims)
	l.must(err)
	if (got[0].claimed == nil) == (got[2].claimed == nil) || got[1].claimed == nil || got[1].claimed.ID != other.ID ||
		got[3].claimed != nil {
		t.Errorf("claims %v", got)
	}
}

func TestClaimTellsAllItNeeds(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	deadline := time.Now().Add(time.Hour)
	asked := claimOf(l.put(func(n *NewUnit) { n.Deadline, n.Model = &deadline, "m" }).ID, l.process)
	for range 2 { // a claim repeated by the driver finds its own run
		c, err := l.Runs.Claim(t.Context(), asked)
		l.must(err)
		if c == nil || c.RunID != asked.RunID || c.State != work.Running || c.RunCount != 1 || c.SessionID != asked.SessionID ||
			c.ResumeSession != "" || c.Left == nil || *c.Left < 50*time.Minute || c.Prompt != "a prompt" || c.StartedAt == nil {
			t.Fatalf("claimed %+v", c)
		}
	}
	r := l.theRun(asked.RunID)
	if r.Status != work.RunRunning || *r.WorkerProcess != l.process || *r.SessionID != asked.SessionID || *r.Model != "m" ||
		r.WorkerType != "mock" {
		t.Errorf("run %+v", r)
	}
	l.end(Finish{UnitID: asked.UnitID, RunID: asked.RunID, Attempt: 1, Status: work.RunCancelled, Next: work.Cancelled}, Recorded)
	if c, err := l.Runs.Claim(t.Context(), asked); c != nil || err != nil {
		t.Errorf("a run that is over was claimed again: %v, error %v", c, err)
	}
}

// A claim whose answer was lost comes again when its run was given up: there is
// nothing to claim, and those that go with it get their units.
func TestClaimAgainAfterTheRunWasGivenUp(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	stale, other := l.put(), l.put()
	asked := claimOf(stale.ID, l.process)
	c, err := l.Runs.Claim(t.Context(), asked)
	l.must(err)
	l.lose(c)
	l.exec(`UPDATE work_units SET not_before = NULL WHERE id = $1`, stale.ID)
	got, err := l.Runs.claimAll(t.Context(), []Claim{asked, claimOf(other.ID, l.process)})
	l.must(err)
	if got[0].claimed != nil || got[0].err != nil || got[1].claimed == nil {
		t.Errorf("claims %+v", got)
	}
	if u := l.unit(stale.ID); u.State != work.Queued || u.RunCount != 1 {
		t.Errorf("unit %s, run count %d", u.State, u.RunCount)
	}
	if l.take(stale.ID, l.process) == nil {
		t.Error("the unit is not there for another run")
	}
}

func TestClaimNothing(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	soon, past := time.Now().Add(time.Minute), time.Now().Add(-time.Second)
	for name, id := range map[string]uuid.UUID{
		"not due":         l.put(func(n *NewUnit) { n.NotBefore = &soon }).ID,
		"deadline passed": l.put(func(n *NewUnit) { n.Deadline = &past }).ID,
		"expired":         l.put(func(n *NewUnit) { n.ExpiresAt = &past }).ID,
		"running":         l.run().ID,
		"unknown":         uuid.New(),
	} {
		if c := l.take(id, l.process); c != nil {
			t.Errorf("%s: claimed", name)
		}
	}
	if l.take(l.put(func(n *NewUnit) { n.NotBefore = &past }).ID, l.process) == nil {
		t.Error("a unit that is due was not claimed")
	}
}

func TestFinishSuccess(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	cost := 0.25
	blob, err := l.Transcripts.Encode([]transcript.Step{{Number: 1, Type: transcript.SystemText, Text: "<step>"}})
	l.must(err)
	l.must(l.Transcripts.Append(t.Context(), Progress{RunID: c.RunID, Steps: []transcript.Step{{Number: 1, Text: "early"}}}))
	result := strings.Repeat("é", 400)
	l.end(ending(c, work.Succeeded, func(f *Finish) {
		f.Result, f.RenderedPrompt, f.Model, f.SessionID, f.NumTurns, f.ToolCalls = result, "rendered", "m", "s", 2, 3
		f.Usage = work.Usage{InputTokens: 1, OutputTokens: 2, CacheReadTokens: 3, CacheCreationTokens: 4}
		f.TotalCostUSD, f.CostIncomplete, f.DurationMS, f.DurationAPIMS = &cost, true, 5, 6
		f.OutputFiles, f.Steps, f.Blob = []work.OutputFile{{Name: "<f>", Size: 7}}, 1, blob
	}), Recorded)
	u := l.unit(c.ID)
	if u.State != work.Succeeded || *u.Output != result || *u.Summary != strings.Repeat("é", 250) || u.Known() != cost ||
		u.Failures != 0 || u.FinishedAt == nil || u.Error != nil {
		t.Errorf("unit %+v", u)
	}
	r := l.theRun(c.RunID)
	if r.Status != work.RunSucceeded || *r.Result != result || *r.RenderedPrompt != "rendered" || *r.Model != "m" || *r.SessionID != "s" ||
		r.NumTurns != 2 || r.ToolCalls != 3 || r.Usage != (work.Usage{InputTokens: 1, OutputTokens: 2, CacheReadTokens: 3,
		CacheCreationTokens: 4}) ||
		*r.TotalCostUSD != cost || !r.CostIncomplete || r.DurationMS != 5 || r.DurationAPIMS != 6 || r.ExecutionTime <= 0 ||
		len(r.OutputFiles) != 1 || r.OutputFiles[0] != (work.OutputFile{Name: "<f>", Size: 7}) || !r.HasTranscript || r.CompletedAt == nil {
		t.Errorf("run %+v", r)
	}
	stored, err := l.Transcripts.Open(t.Context(), work.DefaultTenant, c.RunID)
	l.must(err)
	if got, err := io.ReadAll(stored); err != nil || string(got) != string(blob) {
		t.Errorf("the transcript is not the blob that came with the finish: %d bytes, error %v", len(got), err)
	}
	if n := get[int](l, `SELECT count(*) FROM transcript_chunks`); n != 0 {
		t.Errorf("%d chunks left", n)
	}
}

func TestFinishForAnotherRun(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	l.end(ending(c, work.Queued, func(f *Finish) { f.Delay, f.Losses, f.Waits, f.Crashes = time.Hour, 2, 3, 4 }), Recorded)
	u := l.unit(c.ID)
	if u.State != work.Queued || u.Failures != 1 || u.Losses != 2 || u.Waits != 3 || u.Crashes != 4 || u.Dispatch != 2 ||
		u.FinishedAt != nil || u.Error == nil || u.Error.Class != work.ClassInfra || u.Summary != nil {
		t.Errorf("unit %+v", u)
	}
	if wait := time.Until(*u.NotBefore); wait < 59*time.Minute || wait > 61*time.Minute {
		t.Errorf("due in %s", wait)
	}
	if !get[bool](l, `SELECT check_at = not_before OR check_at - not_before < interval '1 second' FROM work_units`) {
		t.Error("its bell is looked for at another time than it is due")
	}
	if r := l.theRun(c.RunID); r.Status != work.RunFailed || r.Error.Message != "broken" {
		t.Errorf("run %+v", r)
	}
}

// A cancel that arrives while the run fails wins over another run.
func TestFinishWhileCancelled(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	_, err := l.Units.Cancel(t.Context(), work.DefaultTenant, c.ID)
	l.must(err)
	l.end(ending(c, work.Queued, func(f *Finish) { f.Result = "half" }), Recorded)
	if u := l.unit(c.ID); u.State != work.Cancelled || u.FinishedAt == nil || u.Dispatch != 1 || *u.Output != "half" {
		t.Errorf("unit %+v", u)
	}
}

// Repeating any finish changes nothing and tells the same.
func TestFinishRepeated(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	cost := 0.5
	for _, next := range []work.State{work.Succeeded, work.Failed, work.Cancelled, work.TimedOut, work.Queued, work.Waiting, "lost by itself"} {
		c := l.run()
		if next == work.Waiting { // which is for units of the batch lane
			l.exec(`UPDATE work_units SET lane = 'batch' WHERE id = $1`, c.ID)
		}
		f := ending(c, next, func(f *Finish) { f.TotalCostUSD = &cost })
		if next == "lost by itself" {
			f.Next, f.Status = work.Queued, work.RunLost
		}
		l.end(f, Recorded)
		unit, run := fmt.Sprintf("%+v", l.unit(c.ID)), l.theRun(c.RunID)
		l.end(f, Recorded)
		if again := l.theRun(c.RunID); again.Status != run.Status || !again.CompletedAt.Equal(*run.CompletedAt) {
			t.Errorf("%s: the run was %s, is %s", next, run.Status, again.Status)
		}
		if u := l.unit(c.ID); u.Known() != cost || u.Dispatch > 2 || u.Failures > 1 {
			t.Errorf("%s: unit was %s\nis %+v", next, unit, u)
		}
	}
}

// A finish that waited for the first writing of itself, whose answer was lost,
// must see what that one did.
func TestFinishRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	processes := []*fixture{l, openFixture(t, l.url)}
	cost := 0.5
	c := l.run()
	f := ending(c, work.Succeeded, func(f *Finish) { f.TotalCostUSD = &cost })
	verdicts := make([]Verdict, 2)
	var all sync.WaitGroup
	l.locked(c.ID, func() {
		for i, p := range processes {
			all.Go(func() {
				var err error
				if verdicts[i], err = p.Runs.Finish(t.Context(), f); err != nil {
					t.Error(err)
				}
			})
		}
		testkit.Eventually(t, "both wait for the unit", func() bool { return l.waiting() == 2 })
	})
	all.Wait()
	if verdicts[0] != Recorded || verdicts[1] != Recorded {
		t.Errorf("verdicts %v", verdicts)
	}
	if r, u := l.theRun(c.RunID), l.unit(c.ID); r.Status != work.RunSucceeded || u.Known() != cost || u.State != work.Succeeded {
		t.Errorf("run %s, unit %s, cost %v", r.Status, u.State, u.Known())
	}
}

// lose gives a run up while its worker process still works on it.
func (l *fixture) lose(c *Claimed) {
	l.t.Helper()
	l.exec(`UPDATE worker_processes SET lease_until = beat_at WHERE id = $1`, l.process)
	_, err := l.Runs.ExpireLeases(l.t.Context())
	l.must(err)
	l.exec(`UPDATE worker_processes SET lease_until = clock_timestamp() + interval '1 hour' WHERE id = $1`, l.process)
	if r := l.theRun(c.RunID); r.Status != work.RunLost || r.CompletedAt == nil || r.Error == nil {
		l.t.Fatalf("run %+v", r)
	}
}

func TestFinishFenced(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"queued again", "running again", "finished by another", "folded meanwhile"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newFixture(t)
			stale := l.run()
			l.must(l.Transcripts.Append(t.Context(), Progress{RunID: stale.RunID, Steps: []transcript.Step{{Number: 1, Text: "early"}}}))
			l.lose(stale)
			want := work.Queued
			switch name {
			case "running again":
				l.take(stale.ID, l.process)
				want = work.Running
			case "finished by another":
				l.end(ending(l.take(stale.ID, l.process), work.Failed), Recorded)
				want = work.Failed
			case "folded meanwhile":
				_, err := l.Transcripts.FoldLost(t.Context(), 10)
				l.must(err)
			}
			l.finishLate(stale, want)
		})
	}
}

func (l *fixture) finishLate(stale *Claimed, want work.State) {
	l.t.Helper()
	cost := 0.5
	blob, err := l.Transcripts.Encode([]transcript.Step{{Number: 1, Text: "early"}, {Number: 2, Text: "late"}})
	l.must(err)
	for _, status := range []work.RunStatus{work.RunSucceeded, work.RunSucceeded, work.RunLost} {
		l.end(ending(stale, work.Succeeded, func(f *Finish) { f.Status, f.TotalCostUSD, f.Steps, f.Blob = status, &cost, 2, blob }), Fenced)
	}
	if r := l.theRun(stale.RunID); r.Status != work.RunFenced || *r.TotalCostUSD != cost {
		l.t.Errorf("run %+v", r)
	}
	if got := l.steps(stale.RunID); len(got) != 2 || got[1] != "late" {
		l.t.Errorf("transcript %q", got)
	}
	if u := l.unit(stale.ID); u.State != want || u.Output != nil || u.Known() != cost || u.Losses != 1 {
		l.t.Errorf("unit %+v", u)
	}
}

// A process that lost a unit and claimed it again may end both runs in one
// statement: the newer one's end must not be lost beside the older one's cost.
func TestFinishTwoRunsOfOneUnit(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	cost := 0.5
	for _, staleFirst := range []bool{true, false} {
		stale := l.run()
		l.lose(stale)
		fresh := l.take(stale.ID, l.process)
		charge := func(f *Finish) { f.TotalCostUSD = &cost }
		rows, want := []Finish{ending(stale, work.Failed, charge), ending(fresh, work.Succeeded, charge)}, []Verdict{Fenced, Recorded}
		if !staleFirst {
			rows[0], rows[1], want[0], want[1] = rows[1], rows[0], want[1], want[0]
		}
		rows, want = append(rows, rows...), append(want, want...)
		got, err := l.Runs.finishAll(t.Context(), rows)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("stale first %t: verdicts %v, error %v", staleFirst, got, err)
		}
		if u := l.unit(stale.ID); u.State != work.Succeeded || u.Known() != 2*cost || u.Output == nil {
			t.Errorf("stale first %t: unit %+v", staleFirst, u)
		}
	}
}

// What a session has cost is of that session alone: a run that had to begin
// anew does not inherit the old one's total.
func TestFinishSessionCost(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	cost := 0.5
	c := l.run()
	for _, step := range []struct {
		session   string
		resumable bool
		want      float64
	}{{"a", true, 0.5}, {"a", true, 1}, {"b", true, 0.5}, {"b", false, 0}, {"b", true, 0.5}} {
		l.end(ending(c, work.Queued, func(f *Finish) { f.SessionID, f.Resumable, f.TotalCostUSD = step.session, step.resumable, &cost }),
			Recorded)
		if c = l.take(c.ID, l.process); c.SessionCostUSD != step.want || (c.ResumeSession == step.session) != step.resumable {
			t.Errorf("after session %s: %v of session %q, want %v", step.session, c.SessionCostUSD, c.ResumeSession, step.want)
		}
	}
}

// No text of an agent can make a finish impossible.
func TestFinishTakesAnyText(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	odd := "a\x00b\xffc\u2028<" + strings.Repeat("x", 2<<20)
	l.must(l.Transcripts.Append(t.Context(), Progress{RunID: c.RunID, LiveStatus: "a\x00b", RenderedPrompt: "c\xff"}))
	l.end(ending(c, work.Failed, func(f *Finish) {
		f.Result, f.RenderedPrompt, f.Model, f.SessionID = odd, odd, odd[:9], odd[:9]
		f.Error = work.Fail(work.ClassCrash, odd)
	}), Recorded)
	if got, want := *l.theRun(c.RunID).Result, work.Clean(odd); got != want {
		t.Errorf("result of %d bytes, want %d", len(got), len(want))
	}
}

func TestFinishGone(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	l.exec(`DELETE FROM work_units`)
	l.end(ending(c, work.Succeeded), Fenced)
	if _, err := l.Runs.Get(t.Context(), work.DefaultTenant, c.RunID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("run: %v", err)
	}
}

func TestUnitRuns(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	c := l.run()
	l.end(ending(c, work.Queued), Recorded)
	second := l.take(c.ID, l.process)
	runs, err := l.Runs.OfUnit(t.Context(), c.ID)
	if err != nil || len(runs) != 2 || runs[0].ID != c.RunID || runs[1].ID != second.RunID || runs[1].Attempt != 2 {
		t.Errorf("runs %+v, error %v", runs, err)
	}
	l.exec(`UPDATE worker_runs SET attempt = attempt + 1000`)
	l.exec(`INSERT INTO worker_runs (id, tenant, unit_id, attempt, worker_type, status, error_class, error_message, started_at, completed_at, input_tokens, rendered_prompt)
		SELECT gen_random_uuid(), tenant, unit_id, n, worker_type, 'lost', 'infra', 'x', started_at, started_at, 1, 'x'
		FROM worker_runs, generate_series(1, 301) n WHERE id = $1`, c.RunID)
	runs, err = l.Runs.OfUnit(t.Context(), c.ID)
	if err != nil || len(runs) != MaxUnitRuns || runs[MaxUnitRuns-1].ID != second.RunID || runs[0].Attempt != 301-(MaxUnitRuns-2)+1 {
		t.Fatalf("%d runs, error %v", len(runs), err)
	}
	if old := runs[0].RenderedPrompt; old == nil || *old != "x" {
		t.Errorf("prompt %v", old)
	}
	l.exec(`UPDATE worker_runs SET rendered_prompt = repeat('x', $1) WHERE id = $2`, maxRunTexts+1, second.RunID)
	if runs, err = l.Runs.OfUnit(t.Context(), c.ID); err != nil || runs[MaxUnitRuns-1].RenderedPrompt == nil ||
		runs[MaxUnitRuns-2].RenderedPrompt != nil {
		t.Errorf("the newest prompt leaves no room, error %v", err)
	}
	if all, err := l.Runs.UnitUsage(t.Context(), c.ID); err != nil || all.InputTokens < 301 {
		t.Errorf("usage %+v, error %v", all, err)
	}
	if _, err := l.Runs.Get(t.Context(), "other", c.RunID); !errors.Is(err, work.ErrNotFound) {
		t.Errorf("another tenant's run: %v", err)
	}
}
