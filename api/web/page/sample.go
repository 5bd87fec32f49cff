package page

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

func storyWebhooks() Webhooks {
	p := Webhooks{Now: storyNow, Next: uuid.Max.String()}
	for n, url := range []string{"https://crm.example.com/hooks", "https://old.example.com/" + strings.Repeat("long/", 30), evil} {
		e := work.Endpoint{ID: uuid.UUID{0: 7, 6: 0x70, 8: 0x80, 15: byte(n)}, URL: url, Description: "The CRM",
			Events: []string{"work_unit.failed", "batch.*"}, CreatedAt: *before(time.Hour)}
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
	work.BatchEnumerating:      {Queued: 1750},
	work.BatchTesting:          {Queued: 4980, Running: 8, Succeeded: 11, Failed: 1, Cost: work.NewCost(0.22, 0)},
	work.BatchAwaitingApproval: {Queued: 4980, Succeeded: 19, Failed: 1, Cost: work.NewCost(0.38, 0)},
	work.BatchInProgress: {Queued: 2740, Running: 16, Waiting: 2, Succeeded: 2204, Failed: 31, Cancelled: 4, Expired: 3,
		Cost: work.NewCost(41.53, 0)},
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
	b := Batch{Still: true, Now: storyNow, Batch: work.Batch{ID: uuid.UUID{0: 9, 6: 0x70, 8: 0x80,
		15: byte(slices.Index(work.BatchStatuses, status))}, Title: "Contracts of 2026: name the dates", Status: status,
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
		b.Failures = []Failure{{work.ClassRefusal, b.Bad() - 1, work.NewCost(0.31, 0),
			"the model declined: I cannot help with this document"}, {work.ClassTimeout, 1, work.NewCost(0.02, 1), "the run took longer than 1 h 00 min"}}
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
			b.Problems = append(b.Problems, work.BatchProblem{Line: 17 + i, CustomID: fmt.Sprintf("contract-%d", 17+i),
				Pointer: "#/timeout", Detail: "must be a number above 0"})
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
	b.Problems = []work.BatchProblem{{Line: 1, CustomID: evil, Pointer: evil, Detail: evil},
		{CustomID: strings.Repeat("Donaudampfschifffahrt", 20), Detail: strings.Repeat("x", 300)}}
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
	p.Backends = []work.Offer{{Name: "claude", Detail: storyWord[:300]},
		{Name: "codex", Available: true, Version: storyWord[:200],
			Limits: []work.ModelLimit{{Model: evil, Message: evil, Until: &storyLater}}},
		{Name: "mock", Available: true, Paused: &work.Pause{Class: work.ClassAuth, Message: evil}}}
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
	f := work.Figures{Window: name, From: w.Since(storyNow), To: storyNow, Bucket: work.Seconds(w.Bucket.Seconds()),
		Finished: map[work.State]int64{}}
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
	f.Runs = []work.Outcome{{Status: work.RunSucceeded, Count: 900, Cost: work.NewCost(40, 0)},
		{Status: work.RunFailed, Class: work.ClassInfra, Count: 70, Cost: work.NewCost(3, 0)},
		{Status: work.RunTimedOut, Class: work.ClassTimeout, Count: 12, Cost: work.NewCost(5, 0)},
		{Status: work.RunLost, Class: work.ClassInfra, Count: 4, Cost: work.NewCost(0, 4)},
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
				{Name: "claude", Available: true, Version: "2.1.329",
					Limits: []work.ModelLimit{{Model: "opus<4>", Message: "429: too many requests", Until: &storyLater},
						{Model: "haiku", PerSecond: 2}}}, {Name: "codex", Detail: "codex is not here: <install> it"},
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
		Backends: []Backend{{Name: "claude", Status: "available", Slots: 8,
			Shut: []Shut{{Model: "opus<4>", Class: work.ClassRateLimit, Message: "429: too many requests", Until: &storyLater,
				Processes: 1, Of: 2}}}, {Name: "anthropic", Status: "paused", Detail: "auth: 401: <key>"},
			{Name: "codex", Status: "unavailable", Detail: "codex is not here"}, {Name: "mock", Status: "unknown"}},
		Batches: map[work.BatchStatus]int{work.BatchInProgress: 2, work.BatchTesting: 1, work.BatchAwaitingApproval: 1,
			work.BatchCompleted: 40},
		Checks: []Check{{Name: "postgres", OK: true, Detail: "reachable, schema up to date"}, {Name: "redis", Detail: "takes no writes"}},
		Schedules: []work.Schedule{{Name: "daily", NextAt: later, LastAt: before(time.Hour), LastUnit: &unit},
			{Name: "weekly", Paused: true, NextAt: later}},
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
