package page

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
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

func storyWebhooks() Webhooks {
	p := Webhooks{Now: storyNow, Next: uuid.Max.String()}
	for n, url := range []string{"https://crm.example.com/hooks", "https://old.example.com/" + strings.Repeat("long/", 30), evil} {
		e := work.Endpoint{ID: uuid.UUID{0: 7, 6: 0x70, 8: 0x80, 15: byte(n)}, URL: url, Description: "The CRM", Events: []string{"work_unit.failed", "batch.*"}, CreatedAt: *before(time.Hour)}
		if n == 1 {
			e.DisabledAt, e.DisabledWhy = before(time.Minute), "the receiver answered 410"
		}
		p.Endpoints = append(p.Endpoints, e)
	}
	p.Endpoints[2].Description, p.Endpoints[2].Events = storyWord, work.Events
	p.Deliveries = storyDeliveries(uuid.UUID{0: 1, 6: 0x70, 8: 0x80, 15: 3})
	last := &p.Deliveries[len(p.Deliveries)-1]
	last.EventType, last.URL, last.LastError = "batch.completed_with_failures", "https://example.com/"+storyWord, &storyWord
	return p
}

func storyDeliveries(unit uuid.UUID) (list []work.Delivery) {
	failure, refused, evilError := 503, 307, evil
	next, text := storyNow.Add(5*time.Minute), "the receiver answered 503"
	for n, d := range []work.Delivery{
		{State: work.DeliveryPending, NextAt: &storyNow},
		{State: work.DeliveryPending, Attempts: 2, NextAt: &next, LastStatus: &failure, LastError: &text},
		{State: work.DeliveryDelivered, Attempts: 1, DeliveredAt: before(time.Minute)},
		{State: work.DeliveryDead, Attempts: 10, LastStatus: &refused, LastError: &evilError},
		{State: work.DeliveryCancelled},
	} {
		d.ID, d.UnitID, d.EventType, d.URL = uuid.UUID{0: 8, 6: 0x70, 8: 0x80, 15: byte(n)}, &unit, "work_unit.failed", "https://crm.example.com/hooks"
		d.CreatedAt = *before(time.Duration(n) * time.Minute)
		list = append(list, d)
	}
	return list
}

func storyTold() Unit {
	u := storySilent()
	u.Deliveries = storyDeliveries(u.ID)[1:4]
	return u
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
		Pills: f.Pills(map[work.State]int{work.Queued: 2, work.Running: 1, work.Succeeded: 10_000, work.Failed: 12, work.TimedOut: 3}, 10_000)}
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
	r := work.Run{ID: uuid.UUID{0: 2, 14: u.ID[15], 15: byte(attempt)}, UnitID: u.ID, Attempt: attempt, Status: status, StartedAt: *before(time.Minute),
		Model: &model, RenderedPrompt: &prompt, ToolCalls: 1}
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
	u.Title, u.Prompt, u.Output, u.Summary, u.Model, u.Worker, u.Queue, u.Labels = word, word, &word, &word, word[:300], word[:200], word[:100], json.RawMessage(`{"`+word+`":"x"}`)
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
	u.Title, u.Prompt, u.SystemPrompt, u.Model, u.Worker, u.Backend, u.Queue, u.WorkingDirectory = evil, evil, evil, evil, evil, evil, evil, evil
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
		{Type: transcript.Action, Content: []transcript.Content{{Type: transcript.Text, Text: text}, {Type: transcript.ToolCall, ID: text, Name: text, Args: text}}},
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

// storyComparison is two runs of which one did better.
func storyComparison() Comparison {
	a, b := storyDone(20), storyFailed(0)
	other := "Read docs:contract.txt and name all its dates\nBe brief."
	b.Run.RenderedPrompt = &other
	return Comparison{IDs: [2]string{a.Run.ID.String(), b.Run.ID.String()}, Sides: [2]*Unit{&a, &b}}
}

func storyHostileComparison() Comparison {
	a, b := storyHostile(), storyLongWords()
	return Comparison{IDs: [2]string{evil, evil}, Sides: [2]*Unit{&a, &b}}
}

// storyCounts are what the units of a batch have come to in each status.
var storyCounts = map[work.BatchStatus]work.BatchCounts{
	work.BatchEnumerating:           {Queued: 1750},
	work.BatchTesting:               {Queued: 4980, Running: 8, Succeeded: 11, Failed: 1, Cost: work.NewCost(0.22, 0)},
	work.BatchAwaitingApproval:      {Queued: 4980, Succeeded: 19, Failed: 1, Cost: work.NewCost(0.38, 0)},
	work.BatchInProgress:            {Queued: 2740, Running: 16, Waiting: 2, Succeeded: 2204, Failed: 31, Cancelled: 4, Expired: 3, Cost: work.NewCost(41.53, 0)},
	work.BatchFinalizing:            {Succeeded: 4951, Failed: 42, Expired: 7, Cost: work.NewCost(92.71, 0)},
	work.BatchCancelling:            {Running: 5, Succeeded: 1200, Failed: 14, Cancelled: 3781, Cost: work.NewCost(22.4, 0)},
	work.BatchCompleted:             {Succeeded: 5000, Cost: work.NewCost(93.1, 0)},
	work.BatchCompletedWithFailures: {Succeeded: 4951, Failed: 42, Expired: 7, Cost: work.NewCost(92.71, 0), PromptCacheHitRate: new(0.83)},
	work.BatchFailed:                {},
	work.BatchCancelled:             {Succeeded: 19, Failed: 1, Cancelled: 4980, Cost: work.NewCost(0.38, 0)},
	work.BatchExpired:               {Succeeded: 3100, Failed: 12, Expired: 1888, Cost: work.NewCost(58.02, 0)},
}

func storyBatch(status work.BatchStatus) Batch {
	file, budget, rate := uuid.UUID{0: 8}, 100.0, 0.2
	expires := storyNow.Add(20 * time.Hour)
	c := storyCounts[status]
	c.Total = c.Queued + c.Running + c.Waiting + c.Finished()
	b := Batch{Still: true, Now: storyNow, Batch: work.Batch{ID: uuid.UUID{0: 9, 6: 0x70, 8: 0x80, 15: byte(slices.Index(work.BatchStatuses, status))}, Title: "Contracts of 2026: name the dates", Status: status,
		Protocol: work.ProtocolNative, Source: json.RawMessage(`{"type":"csv","path":"docs:contracts.csv","on_invalid":"skip"}`), InputFile: &file,
		Unit:     json.RawMessage(`{"backend":"claude","model":"small","prompt":"Read {file_path} and name its dates","max_turns":10}`),
		Metadata: json.RawMessage(`{"case":"2026-17","team":"legal"}`), TestFirst: 20, Concurrency: 16, MaxCostUSD: &budget, ExpiresAt: &expires,
		StopWhen: &work.StopWhen{Window: 50, FailureRate: &rate}, Counts: c, CreatedAt: *before(3 * time.Hour)}}
	if status != work.BatchEnumerating && status != work.BatchFailed {
		b.EnumeratedAt = before(179 * time.Minute)
	}
	if c.Finished() > 20 {
		b.ApprovedAt = before(150 * time.Minute)
	}
	if b.Bad() > 1 {
		b.Failures = []Failure{{work.ClassRefusal, b.Bad() - 1, work.NewCost(0.31, 0), "the model declined: I cannot help with this document"}, {work.ClassTimeout, 1, work.NewCost(0.02, 1), "the run took longer than 1 h 00 min"}}
	}
	switch status {
	case work.BatchAwaitingApproval:
		b.Forecast = &Forecast{20, 19, 4980, &Range{71.2, 94.6, 118}, Range{61_000, 70_200, 79_400}, Range{3812, 4387, 4962}}
	case work.BatchInProgress:
		b.Forecast, b.PerSecond = &Forecast{2242, 2204, 2758, &Range{49, 51.1, 53.2}, Range{}, Range{}}, 0.74
	case work.BatchFinalizing, work.BatchCompleted:
		unit := uuid.UUID{0: 7}
		b.SynthesisUnit, b.Synthesis = &unit, json.RawMessage(`{"unit":{"prompt":"Sum the results up"},"despite_failures":true}`)
	case work.BatchFailed:
		b.Why, b.Rejected = "3 of its items are no units; the first is line 17", 62
		for i := range 60 {
			b.Problems = append(b.Problems, work.BatchProblem{Line: 17 + i, CustomID: fmt.Sprintf("contract-%d", 17+i), Pointer: "#/timeout", Detail: "must be a number above 0"})
		}
	case work.BatchCancelled:
		b.Why, b.CancelledAt = "too dear", before(time.Hour)
	case work.BatchExpired:
		b.Why = "1888 of its units had not finished when its time was over"
	}
	if status.Final() {
		b.FinishedAt = before(10 * time.Minute)
	}
	return b
}

func storyPausedBatch() Batch {
	b := storyBatch(work.BatchInProgress)
	b.ID[14], b.PerSecond = 1, 0
	b.Paused = &work.BatchPause{Since: *before(5 * time.Minute), By: work.BySystem, Why: "11 of the last 50 units failed; stop_when allows a failure_rate of 0.2"}
	return b
}

func storyHostileBatch() Batch {
	b := storyPausedBatch()
	quoted, _ := json.Marshal(evil) // texts always can be
	b.ID[14], b.Title, b.Why, b.Paused.By, b.Paused.Why, b.Rejected = 2, evil, evil, evil, evil, 2
	b.Source = json.RawMessage(fmt.Sprintf(`{"type":%s,"path":%[1]s}`, quoted))
	b.Unit = json.RawMessage(fmt.Sprintf(`{%s:%[1]s}`, quoted))
	b.Metadata, b.Synthesis = b.Unit, b.Unit
	b.Problems = []work.BatchProblem{{Line: 1, CustomID: evil, Pointer: evil, Detail: evil}, {CustomID: strings.Repeat("Donaudampfschifffahrt", 20), Detail: strings.Repeat("x", 300)}}
	b.Failures = []Failure{{work.Class(evil), 3, work.NewCost(1, 0), evil}}
	b.Notice = &Notice{Text: evil, Wrong: true, Close: b.Path()}
	return b
}

func storyNoBatches() Batches {
	page := Batches{Still: true, Search: "<b>quarterly", Status: "failed,expired"}
	page.Pills = page.Choices(nil, 10_000)
	return page
}

func storyBatches() Batches {
	page := Batches{Still: true, Next: uuid.Max.String()}
	counts := map[work.BatchStatus]int{}
	for i, status := range work.BatchStatuses {
		counts[status] = 1 + i%3
		b := storyBatch(status)
		b.CreatedAt = *before(time.Duration(i*i+1) * time.Hour)
		page.Batches = append(page.Batches, b)
	}
	hostile, untitled := storyHostileBatch(), storyBatch(work.BatchCompleted)
	untitled.ID[14], untitled.Title = 3, ""
	page.Batches = append(page.Batches, storyPausedBatch(), hostile, untitled)
	page.Pills = page.Choices(counts, 10_000)
	return page
}

func storyProcesses() Processes {
	page := Processes{Now: storyNow}
	for _, p := range storyCrew() {
		page.Processes = append(page.Processes, Process{Process: p})
	}
	held := storyRun(madeUnit(3, work.Running), work.RunRunning, 2)
	held.Title, held.WorkerType = "Read <this>", "claude"
	page.Processes[0].Runs = []work.Run{held}
	page.Processes[len(page.Processes)-1].Blocked = "the disk of /var/lib/piecework is full: free some space"
	return page
}

func storyHostileProcesses() Processes {
	p := storyCrew()[0]
	p.Hostname, p.Version, p.Queues = storyWord[:250], evil, []string{storyWord[:64], "default"}
	p.Backends = []work.Offer{{Name: "claude", Detail: storyWord[:300]}, {Name: "codex", Available: true, Version: storyWord[:200], Limits: []work.ModelLimit{{Model: evil, Message: evil, Until: &storyLater}}}, {Name: "mock", Available: true, Paused: &work.Pause{Class: work.ClassAuth, Message: evil}}}
	page := Processes{Now: storyNow, Processes: []Process{{Process: p}}}
	for _, text := range []string{evil, storyWord, storyRight} {
		run := storyRun(madeUnit(3, work.Running), work.RunRunning, 2)
		run.Title, run.WorkerType, run.LiveStatus = text, "claude", &text
		page.Processes[0].Runs = append(page.Processes[0].Runs, run)
	}
	return page
}

var storyLater = storyNow.Add(3 * time.Minute)

// storyRight is written from right to left.
const storyRight = "سجّل مواعيد العقد رقم 17 كلها (2026)"

// storyDay is made-up figures of a day.
func storyDay(name string) work.Figures {
	w, _ := work.WindowOf(name)
	f := work.Figures{Window: name, From: w.Since(storyNow), To: storyNow, Bucket: work.Seconds(w.Bucket.Seconds()), Finished: map[work.State]int64{}}
	for i := int64(0); !f.From.Add(time.Duration(i) * w.Bucket).After(storyNow); i++ {
		one := work.Interval{From: f.From.Add(time.Duration(i) * w.Bucket), Accepted: 40 + i*7%30, Finished: map[work.State]int64{
			work.Succeeded: 30 + i*5%20, work.Failed: i * 3 % 7, work.TimedOut: i % 2, work.Cancelled: i / 9}}
		one.Cost = work.Spent{Runs: 50, Cost: work.NewCost(1.5+float64(i)/10, int64(i%3)), Wasted: work.NewCost(0.4, 0)}
		f.Series = append(f.Series, one)
		f.Accepted += one.Accepted
		for state, n := range one.Finished {
			f.Finished[state] += n
		}
		f.Cost.Add(one.Cost)
	}
	f.Runs = []work.Outcome{{Status: work.RunSucceeded, Count: 900, Cost: work.NewCost(40, 0)}, {Status: work.RunFailed, Class: work.ClassInfra, Count: 70, Cost: work.NewCost(3, 0)},
		{Status: work.RunTimedOut, Class: work.ClassTimeout, Count: 12, Cost: work.NewCost(5, 0)}, {Status: work.RunLost, Class: work.ClassInfra, Count: 4, Cost: work.NewCost(0, 4)},
		{Status: work.RunReleased, Count: 2, Cost: work.NewCost(0.2, 0)}}
	f.Models = []work.Spent{{Name: `<b>model</b>`, Runs: 600, Cost: work.NewCost(60, 3), Wasted: work.NewCost(8, 3)}, {Runs: 20}}
	f.Backends = []work.Spent{{Name: "claude", Runs: 600, Cost: work.NewCost(60, 3), Wasted: work.NewCost(8, 3)}, {Name: "mock", Runs: 20}}
	f.Workers = []work.Spent{{Name: "reader", Runs: 10, Cost: work.NewCost(0.0123, 0)}}
	f.Wait = work.NewLatency("", map[int]int64{-5: 700, 3: 250, 20: 50})
	f.Run = []work.Latency{work.NewLatency("claude", map[int]int64{20: 500, 25: 90, 30: 10}), work.NewLatency("mock", map[int]int64{-20: 20})}
	return f
}

func storyCrew() []work.Process {
	return []work.Process{
		{ID: uuid.UUID{0: 5}, Hostname: "host-<1>", PID: 17, Version: "v1", Slots: 8, Running: 3, Queues: []string{"default", "urgent"}, Live: true,
			StartedAt: storyNow.Add(-time.Hour), BeatAt: storyNow.Add(-1200 * time.Millisecond), Backends: []work.Offer{
				{Name: "claude", Available: true, Version: "2.1.329", Limits: []work.ModelLimit{{Model: "opus<4>", Message: "429: too many requests", Until: &storyLater}, {Model: "haiku", PerSecond: 2}}}, {Name: "codex", Detail: "codex is not here: <install> it"},
				{Name: "anthropic", Available: true, Paused: &work.Pause{Class: work.ClassAuth, Message: "401: <key>"}}}},
		{ID: uuid.UUID{0: 6}, Hostname: "host-2", PID: 18, Version: "v1", Slots: 4, Queues: []string{"default"},
			StartedAt: storyNow.Add(-2 * time.Hour), BeatAt: storyNow.Add(-90 * time.Second)},
	}
}

func storyOverview(window string) Overview {
	wait, later, unit := work.Seconds(75), storyNow.Add(time.Hour), uuid.UUID{0: 7}
	return Overview{Figures: storyDay(window), Processes: storyCrew(), Now: storyNow,
		Queues: []Queue{{Name: "bulk", Due: 1200, Scheduled: 40, Paused: "paused since 2 Jan 2026 03:00:00 UTC by <ann>"},
			{Name: "default", Due: 3, Running: 3, Processes: 1, OldestWait: &wait}},
		Backends: []Backend{{Name: "claude", Status: "available", Slots: 8, Shut: []Shut{{Model: "opus<4>", Class: work.ClassRateLimit, Message: "429: too many requests", Until: &storyLater, Processes: 1, Of: 2}}}, {Name: "anthropic", Status: "paused", Detail: "auth: 401: <key>"},
			{Name: "codex", Status: "unavailable", Detail: "codex is not here"}, {Name: "mock", Status: "unknown"}},
		Batches:   map[work.BatchStatus]int{work.BatchInProgress: 2, work.BatchTesting: 1, work.BatchAwaitingApproval: 1, work.BatchCompleted: 40},
		Checks:    []Check{{Name: "postgres", OK: true, Detail: "reachable, schema up to date"}, {Name: "redis", Detail: "takes no writes"}},
		Schedules: []work.Schedule{{Name: "daily", NextAt: later, LastAt: before(time.Hour), LastUnit: &unit}, {Name: "weekly", Paused: true, NextAt: later}},
	}
}

func storyHostileOverview() Overview {
	p := storyOverview("1h")
	const huge = 1_234_567
	p.Accepted, p.Finished = huge, map[work.State]int64{work.Succeeded: huge, work.Failed: huge}
	p.Cost = work.Spent{Runs: huge, Cost: work.NewCost(huge, 0), Wasted: work.NewCost(huge/3, 0)}
	p.Series[0].Accepted, p.Series[0].Cost = huge, p.Cost
	p.Runs = []work.Outcome{{Status: work.RunFailed, Class: work.Class(storyWord[:100]), Count: huge, Cost: work.NewCost(huge, huge)}}
	p.Models, p.Workers = nil, nil
	for _, name := range []string{evil, storyWord[:200], storyRight} {
		p.Models = append(p.Models, work.Spent{Name: name, Runs: huge, Cost: work.NewCost(huge, huge), Wasted: work.NewCost(huge/3, huge)})
	}
	p.Queues = []Queue{{Name: storyWord[:64], Due: huge, Scheduled: huge, Running: 1234, Paused: "paused by " + evil}}
	p.Backends[1].Detail, p.Backends[2].Detail, p.Checks[1].Detail = storyWord[:300], evil, storyWord[:300]
	p.Backends[0].Shut[0].Model, p.Backends[0].Shut[0].Message = evil, storyWord[:300]
	p.Processes[0].Hostname = storyWord[:250]
	p.Schedules[0].Name, p.Schedules[1].Name = storyWord[:64], storyRight
	return p
}
