package page

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Story is one state of one page, with made-up data: to look at, and for the
// tests. It is the same at every start.
type Story struct {
	Name, About string
	Page        Page
}

// Storybook is the list of all stories.
type Storybook struct{ Stories []Story }

// Render writes the page.
func (b Storybook) Render(w io.Writer) error { return render(w, "stories.html", b) }

// Stories shows every state of every page.
func Stories() []Story {
	return []Story{
		{"list", "units in every state, and more than a page", storyList(Filter{}, storyUnits()...)},
		{"list-filtered", "a search and filters that leave a few units", storyFiltered()},
		{"list-of-batch", "the units of one batch", storyOfBatch()},
		{"list-empty", "no unit has come yet", Viewer{Still: true, List: List{Pills: Filter{}.Pills(nil, 10_000), Backends: storyBackends}}},
		{"list-nothing-found", "no unit is like that", storyNothing()},
		{"list-hostile", "texts that want to be more than text", storyList(Filter{Search: evil, Worker: evil, Labels: []string{evil}}, storyHostile().Unit)},
		{"unit-queued", "it waits its turn", storyUnit(Unit{Unit: storyQueued(), Waits: []string{"12 units of the queue go before it"}})},
		{"unit-scheduled", "it is for later", storyUnit(Unit{Unit: storyScheduled(), Waits: []string{"it may not start before 2 Jan 2026 04:04:05 UTC"}})},
		{"unit-paused", "it waits for people", storyUnit(Unit{Unit: storyQueued(), Waits: []string{
			`the queue "default" is paused`, "the backend claude refused its credentials; it goes on when they are mended"}})},
		{"unit-running", "it is at work", storyUnit(storyRunning())},
		{"unit-beginning", "it has begun, and nothing has come", storyUnit(storyBeginning())},
		{"unit-done", "60 steps, with a result in Markdown", storyUnit(storyDone(60))},
		{"unit-thousand-steps", "a transcript of which only the end is shown", storyUnit(storyDone(1000))},
		{"unit-json", "the result is JSON", storyUnit(storyJSON())},
		{"unit-no-transcript", "it is done, and no transcript was kept", storyUnit(storySilent())},
		{"unit-cached", "an earlier unit's result was taken over", storyUnit(storyCached())},
		{"unit-failed", "failed at the third run, after a lost one", storyUnit(storyFailed(0))},
		{"unit-lost-run", "the run whose worker process died is chosen", storyUnit(storyFailed(1))},
		{"unit-timed-out", "it was too slow", storyUnit(storyTimedOut())},
		{"unit-cancelled", "it was cancelled, and left a part", storyUnit(storyCancelled())},
		{"unit-hostile", "texts that want to be more than text, in every field", storyUnit(storyHostile())},
		{"unit-long-words", "words without a place to break", storyUnit(storyLongWords())},
		{"unit-cancel", "shall it be cancelled?", AskCancel(Unit{Unit: storyRunning().Unit})},
		{"unit-retry", "shall it run again, with changes?", AskRetry(Unit{Unit: storyFailed(0).Unit}, true)},
		{"compare", "two runs side by side", storyComparison()},
		{"compare-hostile", "two runs of texts that want to be more than text", storyHostileComparison()},
		{"batches", "batches in every status", storyBatches()},
		{"batches-empty", "no batch has come yet", Batches{Still: true, Pills: Batches{}.Choices(nil, 10_000)}},
		{"batches-nothing-found", "no batch is like that", storyNoBatches()},
		{"batch-enumerating", "its units are being made", storyBatch(work.BatchEnumerating)},
		{"batch-testing", "the first few run", storyBatch(work.BatchTesting)},
		{"batch-awaiting-approval", "a person decides, and sees what to expect", storyBatch(work.BatchAwaitingApproval)},
		{"batch-in-progress", "it is at work, some units failed", storyBatch(work.BatchInProgress)},
		{"batch-paused", "a rule has paused it", storyPausedBatch()},
		{"batch-finalizing", "the results are summed up", storyBatch(work.BatchFinalizing)},
		{"batch-cancelling", "it is being cancelled", storyBatch(work.BatchCancelling)},
		{"batch-completed", "every unit succeeded", storyBatch(work.BatchCompleted)},
		{"batch-completed-with-failures", "some units failed", storyBatch(work.BatchCompletedWithFailures)},
		{"batch-failed", "its items were no units", storyBatch(work.BatchFailed)},
		{"batch-cancelled", "it was rejected", storyBatch(work.BatchCancelled)},
		{"batch-expired", "its time was over", storyBatch(work.BatchExpired)},
		{"batch-hostile", "texts that want to be more than text, in every field", storyHostileBatch()},
		{"batch-approve", "shall the rest run?", AskApprove(storyBatch(work.BatchAwaitingApproval))},
		{"batch-resume", "shall it go on, with what was typed wrong?", AskResumeBatch(storyPausedBatch()).Typed(url.Values{"concurrency": {"many"}},
			"The units at once must be a whole number from 1 on.")},
		{"overview", "a busy day", storyOverview("24h")},
		{"overview-empty", "nothing has happened", Overview{Now: storyNow, Figures: work.Figures{Window: "1h", To: storyNow,
			From: storyNow.Add(-time.Hour), Bucket: 60, Series: []work.Interval{{From: storyNow}}}}},
		{"overview-hostile", "names that want to be more than names, and huge figures", storyHostileOverview()},
		{"processes", "worker processes and what they run", storyProcesses()},
		{"processes-hostile", "texts that want to be more than text", storyHostileProcesses()},
		{"unit-told", "others were told of its end", storyUnit(storyTold())},
		{"webhooks", "endpoints, and deliveries in every state", storyWebhooks()},
		{"webhooks-none", "nobody wants to be told", Webhooks{Now: storyNow, Status: "dead"}},
		{"processes-none", "no worker process is there", Processes{Now: storyNow}},
	}
}

// storyWord has no place to break.
var storyWord = strings.Repeat("Donaudampfschifffahrt", 150)

// storyNow is when all stories are told.
var storyNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var storyBackends = []string{"claude", "codex", "mock"}

func before(d time.Duration) *time.Time {
	t := storyNow.Add(-d)
	return &t
}

func storyList(f Filter, units ...work.Unit) Viewer {
	list := List{Filter: f, Backends: storyBackends, Classes: work.Classes(), Next: uuid.Max.String(),
		Pills: f.Pills(map[work.State]int{work.Queued: 2, work.Running: 1, work.Succeeded: 10_000, work.Failed: 12, work.TimedOut: 3},
			10_000)}
	for _, u := range units {
		card := Card{Unit: u, Now: storyNow, Query: f.Query()}
		if u.State == work.Running {
			run := storyRun(u, work.RunRunning, u.RunCount)
			card.Live = &run
		}
		list.Cards = append(list.Cards, card)
	}
	return Viewer{Still: true, List: list}
}

func storyFiltered() Viewer {
	v := storyList(Filter{Search: "contract", Status: "failed,timed_out", Backend: "claude", Since: "24h", Class: "crash", Labels: []string{"team:legal"}},
		storyFailed(0).Unit, storyTimedOut().Unit)
	v.List.Next = ""
	return v
}

func storyOfBatch() Viewer {
	b := storyBatch(work.BatchInProgress)
	v := storyUnit(Unit{Unit: storyQueued(), Batch: b.Title, Waits: []string{"other units of its batch go before it: 2242 of 5000 have finished, and 16 may be at work at once"}})
	v.List.Filter.Batch, v.List.Batch = b.ID.String(), &b
	v.Unit.BatchID, v.Unit.CustomID = &b.ID, "contract-17"
	return v
}

func storyNothing() Viewer {
	f := Filter{Search: "a task that nobody has"}
	return Viewer{Still: true, List: List{Filter: f, Pills: f.Pills(nil, 10_000), Backends: storyBackends}}
}

func storyUnit(u Unit) Viewer {
	u.Now = storyNow
	v := storyList(Filter{}, u.Unit)
	v.List.Cards[0].Chosen, v.List.Next, v.Unit = true, "", &u
	return v
}

func storyUnits() []work.Unit {
	return []work.Unit{
		storyScheduled(), storyQueued(), storyRunning().Unit, storyDone(60).Unit, storyFailed(0).Unit, storyTimedOut().Unit,
		storyCancelled().Unit, storyJSON().Unit, storyCached().Unit, storyLongWords().Unit,
	}
}

var storyTitles = []string{
	"Read the contract and name its dates", "Summarise the minutes of 3 March for the people who were not there", "Find the clause about notice",
	"Compare both offers", "Translate the letter into French, and keep its tone",
}

// madeUnit is unit n.
func madeUnit(n byte, state work.State) work.Unit {
	u := work.Unit{
		ID: uuid.UUID{0: 1, 6: 0x70, 8: 0x80, 15: n}, Title: storyTitles[int(n)%len(storyTitles)], State: state,
		CreatedAt: storyNow.Add(-time.Duration(n) * time.Minute), RunCount: 1, Cost: work.NewCost(0.0123, 0),
		Spec: work.Spec{Backend: "claude", Model: "small", Prompt: "Read {file_path} and name its dates",
			Payload: json.RawMessage(`{"file_path":"docs:contract.txt"}`), Queue: work.DefaultQueue, Priority: work.DefaultPriority,
			Timeout: work.DefaultTimeout, IdleTimeout: work.DefaultIdle},
	}
	if state == work.Queued {
		u.RunCount, u.Cost = 0, work.Cost{}
		return u
	}
	u.StartedAt = before(time.Duration(n) * time.Minute)
	if state.Final() {
		u.FinishedAt = before(time.Second)
	}
	return u
}

func storyRun(u work.Unit, status work.RunStatus, attempt int) work.Run {
	prompt, model := "Read docs:contract.txt and name its dates", "small-2026-01-01"
	r := work.Run{ID: uuid.UUID{0: 2, 14: u.ID[15], 15: byte(attempt)}, UnitID: u.ID, Attempt: attempt, Status: status,
		StartedAt: *before(time.Minute),
		Model:     &model, RenderedPrompt: &prompt, ToolCalls: 1}
	if status == work.RunRunning {
		live := "reads docs:contract.txt"
		r.LiveStatus = &live
		return r
	}
	cost := 0.0123
	r.CompletedAt, r.NumTurns, r.TotalCostUSD = before(time.Second), 2, &cost
	r.Usage = work.Usage{InputTokens: 1200, OutputTokens: 80, CacheReadTokens: 31_000}
	return r
}

// whole is a unit with one run.
func whole(u work.Unit, status work.RunStatus, steps ...transcript.Step) Unit {
	run := storyRun(u, status, 1)
	run.HasTranscript = len(steps) > 0
	run.Result = u.Output
	return NewUnit(u, []work.Run{run}, &run, steps, storyNow)
}

func storyQueued() work.Unit {
	u := madeUnit(1, work.Queued)
	expires := storyNow.Add(time.Hour)
	u.ExpiresAt = &expires
	return u
}

func storyScheduled() work.Unit {
	u := madeUnit(2, work.Queued)
	later := storyNow.Add(time.Hour)
	u.NotBefore = &later
	return u
}

func storyRunning() Unit {
	u := madeUnit(3, work.Running)
	u.Worker = "reader"
	made := madeSteps(8)
	return whole(u, work.RunRunning, made[:len(made)-1]...) // the last call has no answer yet
}

func storyBeginning() Unit { return whole(madeUnit(4, work.Running), work.RunRunning) }

func storyDone(steps int) Unit {
	u := madeUnit(5, work.Succeeded)
	output := "## Dates\n\nThe contract **begins** on 1 May 2026 and *ends* on 30 April 2028.\n\n" +
		"| date | what | clause |\n|---|---|---:|\n| 1 May 2026 | it begins | 2.1 |\n| 31 January 2028 | notice, at the latest | 9.3 |\n| 30 April 2028 | it ends | 2.1 |\n\n" +
		"1. Notice must be given in writing.\n2. Clause 9.4 contradicts 9.3:\n\n> notice at any time\n\nSee <https://example.com/contracts>, or run `grep -n notice contract.txt`:\n\n```\n212: notice shall be given\n```\n"
	summary := "The contract begins on 1 May 2026 and ends on 30 April 2028."
	u.Output, u.Summary, u.SystemPrompt, u.Labels = &output, &summary, "Name dates only. Quote the clause.", json.RawMessage(`{"team":"legal"}`)
	u.Files = work.Refs{"docs:contract.txt"}
	u.OutputSchema = json.RawMessage(`{"type":"object"}`)
	page := whole(u, work.RunSucceeded, madeSteps(steps)...)
	id := uuid.UUID{0: 3}
	page.Run.ToolCalls, page.Run.NumTurns = steps/3, steps/4
	page.Run.OutputFiles = []work.OutputFile{{ID: &id, Name: "dates.csv", Size: 120}, {Name: "scan.tiff", Size: 1 << 30, Reason: "larger than 10485760 bytes"}}
	return page
}

func storyJSON() Unit {
	u := madeUnit(6, work.Succeeded)
	output := `{"begins":"2026-05-01","ends":"2028-04-30","clauses":["2.1","9.3"]}`
	u.Output, u.Summary, u.Title, u.RunCount = &output, &output, "Give the dates as JSON", 2
	return whole(u, work.RunSucceeded, madeSteps(3)...)
}

func storySilent() Unit {
	u := madeUnit(7, work.Succeeded)
	output := "42"
	u.Output, u.Summary = &output, &output
	return whole(u, work.RunSucceeded)
}

func storyCached() Unit {
	u := madeUnit(12, work.Succeeded)
	output, from := "There is no clause about notice.", uuid.UUID{0: 2, 15: 99}
	u.Output, u.Summary, u.Cache, u.CachedFrom, u.CacheTTL, u.Cost = &output, &output, work.CacheHit, &from, 24*3600, work.Cost{}
	page := whole(u, work.RunSucceeded, transcript.Step{Number: 1, Time: *before(time.Second), Type: transcript.SystemText,
		Text: "From the cache: this is the result of run " + from.String() + " of 2026-01-01T12:00:00Z, which was asked the same. No model was called."})
	page.Run.TotalCostUSD, page.Run.Usage, page.Run.NumTurns, page.Run.ToolCalls = new(0.0), work.Usage{}, 0, 0
	return page
}

// storyFailed is a unit with three runs, of which the chosen one counts from
// the newest.
func storyFailed(chosen int) Unit {
	u := madeUnit(8, work.Failed)
	u.RunCount, u.Failures, u.Losses = 3, 2, 1
	u.Error = work.Fail(work.ClassCrash, "exit status 137; its last words: Killed")
	runs := []work.Run{storyRun(u, work.RunFailed, 3), storyRun(u, work.RunLost, 2), storyRun(u, work.RunFailed, 1)}
	runs[0].Error = u.Error
	runs[1].Error, runs[1].CostIncomplete = work.Fail(work.ClassInfra, "the worker process stopped giving signs of life"), true
	runs[2].Error = work.Fail(work.ClassInfra, "529 overloaded")
	runs[0].HasTranscript = true
	steps := madeSteps(6)
	steps[3].IsError, steps[3].Text = true, "contract.txt: no such file"
	if chosen > 0 {
		steps = nil
	}
	return NewUnit(u, runs, &runs[chosen], steps, storyNow)
}

func storyTimedOut() Unit {
	u := madeUnit(9, work.TimedOut)
	u.Error = work.Fail(work.ClassTimeout, "the run took longer than 1 h 00 min")
	return whole(u, work.RunTimedOut, madeSteps(5)[:3]...) // its last call was never answered
}

func storyCancelled() Unit {
	u := madeUnit(10, work.Cancelled)
	part := "The contract begins on 1 May 2026 and"
	u.Output, u.Summary = &part, &part
	return whole(u, work.RunCancelled, madeSteps(4)...)
}

func storyLongWords() Unit {
	word := storyWord
	u := madeUnit(11, work.Succeeded)
	u.Title, u.Prompt, u.Output, u.Summary, u.Model, u.Worker, u.Queue, u.Labels = word, word, &word, &word, word[:300], word[:200],
		word[:100], json.RawMessage(`{"`+word+`":"x"}`)
	page := whole(u, work.RunSucceeded, hostileSteps(word)...)
	page.Run.Model, page.Run.RenderedPrompt, page.Run.OutputFiles = &word, &word, []work.OutputFile{{Name: word, Size: 1, Reason: word}}
	page.Waits = []string{word}
	return page
}

// evil wants to run, to load, to be markup, to steer a terminal, to turn text
// around and to hide in it.
const evil = `"'><script>alert(1)</script><img src=//evil.example/x onerror=alert(1)></pre></textarea></title><svg onload=alert(1)>` +
	`[x](javascript:alert(1)) ![x](http://evil.example/?q=1) <a href=//evil.example>x</a> {{.}} ${{ env.HOME }} &lt;b&gt; </style>` +
	"<style>*{display:none}</style> \x1b[31mred\x1b[0m \x07 gnp\u202egpj.exe zero\u200bwidth \u2066isolate\u2069 \U000e0041tag"

func storyHostile() Unit {
	u := madeUnit(12, work.Failed)
	text := evil
	quoted, _ := json.Marshal(evil) // texts always can be
	u.Title, u.Prompt, u.SystemPrompt, u.Model, u.Worker, u.Backend, u.Queue, u.WorkingDirectory = evil, evil, evil, evil, evil, evil,
		evil, evil
	u.Output, u.Summary, u.Error = &text, &text, work.Fail(work.Class(evil), evil)
	u.Payload = json.RawMessage(fmt.Sprintf(`{%s:%s}`, quoted, quoted))
	u.Labels, u.OutputSchema, u.Files = u.Payload, u.Payload, work.Refs{evil}
	page := whole(u, work.RunFailed, hostileSteps(evil)...)
	id := uuid.UUID{0: 4}
	page.Run.Model, page.Run.RenderedPrompt, page.Run.LiveStatus, page.Run.Error = &text, &text, &text, u.Error
	page.Run.OutputFiles = []work.OutputFile{{ID: &id, Name: evil, Size: 1}, {Name: evil, Reason: evil}}
	page.Waits = []string{evil}
	return page
}

// hostileSteps are steps of every kind with a text in every field.
func hostileSteps(text string) []transcript.Step {
	return numbered([]transcript.Step{
		{Type: transcript.SystemText, Text: text},
		{Type: transcript.UserText, Text: text},
		{Type: transcript.Reasoning, Text: text},
		{Type: transcript.Action, Content: []transcript.Content{{Type: transcript.Text, Text: text},
			{Type: transcript.ToolCall, ID: text, Name: text, Args: text}}},
		{Type: transcript.ToolResult, CallID: text, Name: text, Text: text, IsError: true},
		{Type: transcript.ToolResult, CallID: "of no call", Name: text, Text: text, Parent: text},
	})
}

// madeSteps is a run of so many steps: it thinks, calls tools and goes on. One
// answer is long.
func madeSteps(n int) []transcript.Step {
	steps := []transcript.Step{
		{Type: transcript.SystemText, Text: "session begins"},
		{Type: transcript.Reasoning, Text: "I should read the contract before I say anything."},
	}
	for i := 1; len(steps) < n; i++ {
		id := fmt.Sprintf("call-%d", i)
		tool, args, answer := "Read", fmt.Sprintf(`{"path":"contract.txt","from":%d}`, 40*i), fmt.Sprintf("%d: The parties agree as follows.", 40*i)
		switch i % 5 {
		case 2:
			tool, args, answer = "Bash", `{"command":"grep -n notice contract.txt"}`, "212: notice shall be given\n240: no notice is needed"
		case 3:
			tool, args, answer = "Search", `{"query":"statutory notice period"}`, "3 results"
		}
		if i == 4 {
			answer = strings.Repeat("The quick brown fox reads every clause of the contract.\n", 100)
		}
		steps = append(steps, transcript.Step{Type: transcript.Action, Content: []transcript.Content{
			{Type: transcript.Text, Text: fmt.Sprintf("I look at part **%d**.", i)}, {Type: transcript.ToolCall, ID: id, Name: tool, Args: args}}},
			transcript.Step{Type: transcript.ToolResult, CallID: id, Name: tool, Text: answer})
		if i%7 == 0 {
			last := &steps[len(steps)-1]
			last.IsError, last.Text = true, "the file has no such part"
			steps = append(steps, transcript.Step{Type: transcript.UserText, Text: "Go on."})
		}
	}
	return numbered(steps[:n])
}

// numbered gives steps their numbers, and times that share out 59 seconds.
func numbered(steps []transcript.Step) []transcript.Step {
	for i := range steps {
		steps[i].Number = i + 1
		steps[i].Time = before(time.Minute).Add(59 * time.Second * time.Duration(i+1) / time.Duration(len(steps)))
	}
	return steps
}
