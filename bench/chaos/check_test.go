package chaos

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// kept is a history and a ledger in which every promise was kept: a unit that
// succeeded in its second run, after its worker process was killed, one that
// failed, one that was cancelled, and a batch of one. The end of the first and
// of the batch was told at the second try.
func kept() (History, Ledger) {
	at := func(s float64) time.Time {
		return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
	}
	when := func(s float64) *time.Time { t := at(s); return &t }
	text := "answer"
	h := History{
		{At: at(0), Kind: KindProcess, Target: "worker1", PID: 1, What: "started"},
		{At: at(0), Kind: KindProcess, Target: "worker2", PID: 2, What: "started"},
		{At: at(1), Kind: KindIntend, Request: "a", Want: &Want{Key: "k", Backend: "claude", Finals: []string{"succeeded"}, Output: text, Cost: 0.5, Steps: 3, Callback: fails}},
		{At: at(1), Kind: KindSubmit, Request: "a", Error: "no answer"},
		{At: at(2), Kind: KindSubmit, Request: "a", Status: 202, Unit: "A", Replayed: true},
		{At: at(2), Kind: KindMisuse, Request: "a", Status: 422},
		{At: at(2), Kind: KindIntend, Request: "b", Want: &Want{Finals: []string{"failed"}, Failures: 1, Delay: 1}},
		{At: at(2), Kind: KindSubmit, Request: "b", Status: 202, Unit: "B"},
		{At: at(2), Kind: KindIntend, Request: "c", Want: &Want{Finals: []string{"succeeded", "cancelled"}}},
		{At: at(2), Kind: KindSubmit, Request: "c", Status: 202, Unit: "C"},
		{At: at(2.5), Kind: KindCancel, Request: "c", Status: 202, Unit: "C"},
		{At: at(3), Kind: KindAgent, Unit: "A", Run: "A1", PID: 10},
		{At: at(4), Kind: KindFault, Fault: "kill worker", Target: "worker1", PID: 1},
		{At: at(4), Kind: KindProcess, Target: "worker1", PID: 1, What: "ended", Code: -1},
		{At: at(7), Kind: KindAgent, Unit: "A", Run: "A2", PID: 11},
		{At: at(9), Kind: KindSeen, Unit: "A", State: "succeeded", Finished: at(8).Format(time.RFC3339Nano)},
		{At: at(9), Kind: KindCalm},
		{At: at(9), Kind: KindDrained},
		{At: at(9), Kind: KindProcess, Target: "worker2", PID: 2, What: "asked"},
		{At: at(9), Kind: KindProcess, Target: "worker2", PID: 2, What: "ended"},
		{At: at(2), Kind: KindIntend, Request: "d", Want: &Want{Finals: []string{"succeeded"}, Batch: "batch"}},
		{At: at(2), Kind: KindBatch, Request: "batch", Status: 202, Unit: "D"},
		{At: at(2), Kind: KindMove, Request: "batch", Unit: "D", What: "pause", Status: 200},
		{At: at(8.1), Kind: KindMessage, Message: "msg_a", Unit: "A", What: "work_unit.succeeded", Digest: "a", Try: 1, Status: 500},
		{At: at(8.2), Kind: KindMessage, Message: "msg_a", Unit: "A", What: "work_unit.succeeded", Digest: "a", Try: 2, Status: 200},
		{At: at(8.3), Kind: KindMessage, Message: "msg_d", Unit: "D", What: "batch.completed", Digest: "d", Try: 2, Status: 200},
	}
	l := Ledger{
		Units: []Unit{
			{ID: "A", State: "succeeded", Request: "a", Key: "k", RunCount: 2, Losses: 1, FinalRun: "A2", Cost: 0.5, Created: at(1), Finished: when(8)},
			{ID: "B", State: "failed", Request: "b", RunCount: 1, Failures: 1, FinalRun: "B1", ErrorClass: "refusal", Created: at(2), Finished: when(5)},
			{ID: "C", State: "cancelled", Request: "c", Created: at(2), CancelAsked: when(2.4), Finished: when(2.4)},
			{ID: "D1", State: "succeeded", Request: "d", RunCount: 1, FinalRun: "D1R", Created: at(2), Finished: when(6), Batch: "D"},
		},
		Runs: []Run{
			{ID: "A1", Unit: "A", Status: "lost", Attempt: 1, PID: 1, Started: at(2.9), Steps: 1, Readable: 1},
			{ID: "A2", Unit: "A", Status: "succeeded", Attempt: 2, PID: 2, Cost: 0.5, Result: &text, Started: at(7), Steps: 3, Readable: 3},
			{ID: "B1", Unit: "B", Status: "failed", ErrorClass: "refusal", Attempt: 1, PID: 2, Started: at(4), Steps: 1, Readable: 1},
			{ID: "D1R", Unit: "D1", Status: "succeeded", Attempt: 1, PID: 2, Result: new(""), Started: at(5), Steps: 1, Readable: 1},
		},
		Batches: []Batch{{ID: "D", Request: "batch", Status: "completed", Total: 1, Succeeded: 1, Finished: when(6)}},
		Deliveries: []Delivery{
			{Message: "msg_a", Of: "A", Type: "work_unit.succeeded", State: "delivered", Attempts: 2},
			{Message: "msg_d", Of: "D", Type: "batch.completed", State: "delivered", Attempts: 2},
		},
		Moves: []Move{
			{At: at(1), Unit: "A", To: "queued"}, {At: at(2.9), Unit: "A", From: "queued", To: "running"},
			{At: at(6), Unit: "A", From: "running", To: "queued"}, {At: at(7), Unit: "A", From: "queued", To: "running"},
			{At: at(8), Unit: "A", From: "running", To: "succeeded", FinalRun: "A2"},
			{At: at(2), Unit: "B", To: "queued", Due: when(3)},
		},
		RunMoves: []RunMove{
			{At: at(2.9), Run: "A1", Unit: "A", To: "running", Attempt: 1}, {At: at(6), Run: "A1", Unit: "A", From: "running", To: "lost", Attempt: 1},
			{At: at(7), Run: "A2", Unit: "A", To: "running", Attempt: 2}, {At: at(8), Run: "A2", Unit: "A", From: "running", To: "succeeded", Attempt: 2},
			{At: at(4), Run: "B1", Unit: "B", To: "running", Attempt: 1}, {At: at(5), Run: "B1", Unit: "B", From: "running", To: "failed", Attempt: 1},
		},
	}
	return h, l
}

func TestCheckerIsContent(t *testing.T) {
	for _, v := range Check(kept()) {
		t.Error(v)
	}
}

// forgery is a change after which a promise is broken.
type forgery struct {
	promise, what string
	doctor        func(h *History, l *Ledger)
}

// Each of these breaks one thing in what is in order. The checker must say
// which promise that was.
var doctored = []forgery{
	{"accepted is kept", "a unit is gone", func(_ *History, l *Ledger) { l.Units = l.Units[1:] }},
	{"accepted is kept", "the answer named another's unit", func(h *History, _ *Ledger) { (*h)[9].Unit = "B" }},
	{"accepted ends", "a unit still waits", func(_ *History, l *Ledger) { l.Units[0].State, l.Units[0].Finished = "queued", nil }},
	{"accepted ends", "a unit ended too late", func(h *History, _ *Ledger) { *h = append(*h, Event{Kind: KindOpen, Unit: "A"}) }},
	{"accepted ends", "a unit failed that had retries left", func(_ *History, l *Ledger) {
		l.Units[0].State, l.Runs[1].Status = "failed", "failed"
	}},
	{"accepted ends", "nobody cancelled it", func(_ *History, l *Ledger) { l.Units[2].CancelAsked = nil }},
	{"accepted ends", "two deaths were taken for three", func(_ *History, l *Ledger) {
		l.Units[0].State, l.Units[0].ErrorClass, l.Runs[1].Status = "failed", "crash", "lost"
	}},
	{"accepted ends", "it was condemned while it waited for another", func(_ *History, l *Ledger) {
		condemn(l)
		l.Runs[4].Begun, l.Runs[4].PID, l.RunMoves = false, l.Runs[2].PID, l.RunMoves[4:5]
	}},
	{"final is final", "a unit ended twice", func(_ *History, l *Ledger) {
		l.Moves = append(l.Moves, Move{Unit: "A", From: "succeeded", To: "succeeded", FinalRun: "A1", Before: "A2"})
	}},
	{"final is final", "a unit came back to life", func(_ *History, l *Ledger) {
		l.Moves = append(l.Moves, Move{Unit: "A", From: "succeeded", To: "queued"})
	}},
	{"final is final", "the API showed another end", func(h *History, _ *Ledger) { (*h)[15].State = "failed" }},
	{"final is final", "the API showed another time", func(h *History, _ *Ledger) { (*h)[15].Finished = "2026-01-01T00:00:07Z" }},
	{"one unit per key", "the key made two units", func(_ *History, l *Ledger) {
		again := l.Units[0]
		again.ID = "A'"
		l.Units = append(l.Units, again)
	}},
	{"one unit per key", "the key was told to be two units", func(h *History, _ *Ledger) {
		*h = append(*h, Event{Kind: KindSubmit, Request: "a", Status: 202, Unit: "B"})
	}},
	{"one unit per key", "the key was taken with another body", func(h *History, _ *Ledger) { (*h)[5].Status = 202 }},
	{"one unit per request", "nobody asked for it", func(_ *History, l *Ledger) {
		l.Units = append(l.Units, Unit{ID: "D", Request: "d", State: "succeeded"})
	}},
	{"one unit per request", "it is there twice", func(_ *History, l *Ledger) {
		again := l.Units[1]
		again.ID = "B'"
		l.Units = append(l.Units, again)
	}},
	{"one result", "two runs succeeded", func(_ *History, l *Ledger) { l.Runs[0].Status = "succeeded" }},
	{"one result", "no run succeeded", func(_ *History, l *Ledger) { l.Runs[1].Status = "lost" }},
	{"one result", "an old run gave the result", func(_ *History, l *Ledger) { l.Units[0].FinalRun = "A1" }},
	{"one result", "no run gave the result", func(_ *History, l *Ledger) { l.Units[1].FinalRun = "" }},
	{"one result", "another's output", func(_ *History, l *Ledger) { other := "other"; l.Runs[1].Result = &other }},
	{"runs are numbered", "a number is left out", func(_ *History, l *Ledger) { l.Runs[1].Attempt = 3 }},
	{"runs are numbered", "a run is gone", func(_ *History, l *Ledger) { l.Runs = l.Runs[1:] }},
	{"runs are numbered", "a run is open", func(_ *History, l *Ledger) { l.Runs[0].Status = "running" }},
	{"runs are numbered", "the first began last", func(_ *History, l *Ledger) { l.Runs[0].Started = l.Runs[1].Started.Add(time.Second) }},
	{"one live run", "the next began too early", func(_ *History, l *Ledger) { l.RunMoves[1], l.RunMoves[2] = l.RunMoves[2], l.RunMoves[1] }},
	{"one live tree", "an agent was not alone", func(h *History, _ *Ledger) { (*h)[14].Crowded = true }},
	{"one live tree", "an agent was not alone after the frozen one was fenced", func(h *History, l *Ledger) {
		(*h)[12] = Event{At: (*h)[12].At, Kind: KindFault, Fault: "freeze worker", PID: 1, Seconds: 1}
		(*h)[13] = Event{Kind: KindCalm}
		(*h)[14].Crowded = true
		l.RunMoves = append(l.RunMoves, RunMove{At: (*h)[13].At, Run: "A1", Unit: "A", From: "lost", To: "fenced"})
	}},
	{"one live tree", "a run began three agents", func(h *History, _ *Ledger) { *h = append(*h, (*h)[14], (*h)[14]) }},
	{"one live tree", "an agent without a run", func(h *History, _ *Ledger) { (*h)[14].Run = "A9" }},
	{"failures are failures", "a loss used up a retry", func(_ *History, l *Ledger) {
		l.Units[0].Failures, l.Units[0].Losses = 1, 0
	}},
	{"failures are failures", "it was given up early", func(h *History, _ *Ledger) { (*h)[6].Want.Failures = 2 }},
	{"counters agree", "a loss was not counted", func(_ *History, l *Ledger) { l.Units[0].Losses = 0 }},
	{"counters agree", "a failure was not counted", func(_ *History, l *Ledger) { l.Units[1].Failures = 0 }},
	{"counters agree", "a crash was made up", func(_ *History, l *Ledger) { l.Units[1].Crashes = 1 }},
	{"cost is counted once", "it was counted twice", func(_ *History, l *Ledger) { l.Units[0].Cost = 1 }},
	{"cost is counted once", "a run's cost was added up", func(_ *History, l *Ledger) { l.Units[0].Cost, l.Runs[1].Cost = 1, 1 }},
	{"transcripts are kept", "it is gone", func(_ *History, l *Ledger) { l.Runs[1].Steps = -1 }},
	{"transcripts are kept", "it cannot be read", func(_ *History, l *Ledger) { l.Runs[1].Readable = 2 }},
	{"transcripts are kept", "it is cut", func(_ *History, l *Ledger) { l.Runs[1].Steps, l.Runs[1].Readable = 2, 2 }},
	{"cancel holds", "it began after it was cancelled", func(_ *History, l *Ledger) {
		l.Moves[2].Cancel = true
	}},
	{"cancel is kept", "it went on", func(h *History, l *Ledger) {
		(*h)[8].Want.Finals = []string{"failed"}
		l.Units[2].State = "failed"
	}},
	{"not before", "it began too early", func(_ *History, l *Ledger) { l.Runs[2].Started = l.Units[1].Created.Add(time.Millisecond) }},
	{"not before", "its time was too early", func(_ *History, l *Ledger) { l.Moves[5].Due = &l.Moves[5].At }},
	{"closed means dead", "its agent lived on", func(h *History, l *Ledger) { (*h)[15].Crowded, l.Runs[0].Status = true, "released" }},
	{"batches are whole", "it is gone", func(_ *History, l *Ledger) { l.Batches = nil }},
	{"batches are whole", "a unit of it is gone", func(_ *History, l *Ledger) { l.Units = l.Units[:3] }},
	{"batches are whole", "it has another's unit", func(_ *History, l *Ledger) { l.Units[1].Batch = "D" }},
	{"batches are whole", "it is there twice", func(_ *History, l *Ledger) {
		again := l.Batches[0]
		again.ID = "D'"
		l.Batches = append(l.Batches, again)
	}},
	{"batches are whole", "the answer named another", func(h *History, _ *Ledger) { (*h)[21].Unit = "D'" }},
	{"batches add up", "it goes on", func(_ *History, l *Ledger) { l.Batches[0].Status, l.Batches[0].Finished = "in_progress", nil }},
	{"batches add up", "a unit was not counted", func(_ *History, l *Ledger) { l.Batches[0].Total, l.Batches[0].Succeeded = 0, 0 }},
	{"batches add up", "a unit was counted as another", func(_ *History, l *Ledger) { l.Batches[0].Failed, l.Batches[0].Succeeded = 1, 0 }},
	{"batches add up", "its status is another", func(_ *History, l *Ledger) { l.Batches[0].Status = "cancelled" }},
	{"batches add up", "it was over too early", func(_ *History, l *Ledger) { l.Batches[0].Finished = &l.Units[1].Created }},
	{"ends are told", "the message is not there", func(_ *History, l *Ledger) { l.Deliveries = l.Deliveries[1:] }},
	{"ends are told", "there are two", func(_ *History, l *Ledger) { l.Deliveries = append(l.Deliveries, l.Deliveries[0]) }},
	{"ends are told", "nobody wants to hear it", func(_ *History, l *Ledger) {
		l.Deliveries = append(l.Deliveries, Delivery{Message: "msg_b", Of: "B", Type: "work_unit.failed", State: "dead", Attempts: 10})
	}},
	{"ends are told", "it waits", func(_ *History, l *Ledger) { l.Deliveries[0].State = "pending" }},
	{"ends are told", "it was given up", func(_ *History, l *Ledger) { l.Deliveries[0].State = "dead" }},
	{"ends are told", "nobody took it", func(h *History, _ *Ledger) { (*h)[24].Status = 500 }},
	{"ends are told", "the receiver was told of another end", func(_ *History, l *Ledger) { l.Deliveries[0].Type = "work_unit.failed" }},
	{"messages are true", "it is not signed", func(h *History, _ *Ledger) { (*h)[24].Error = "no signature fits" }},
	{"messages are true", "nobody has written it", func(h *History, _ *Ledger) { (*h)[24].Message = "msg_x" }},
	{"messages are true", "it tells of another unit", func(h *History, _ *Ledger) { (*h)[24].Unit = "B" }},
	{"messages are true", "it tells of another end", func(h *History, _ *Ledger) { (*h)[24].What = "work_unit.failed" }},
	{"messages are true", "it came too early", func(h *History, _ *Ledger) { (*h)[23].At = (*h)[0].At }},
	{"messages are true", "it has another body", func(h *History, _ *Ledger) { (*h)[24].Digest = "b" }},
	{"nothing leaks", "the key is in a table", func(_ *History, l *Ledger) { l.Leaks = []string{"1 row of work_units"} }},
	{"nothing leaks", "a prompt is in Redis", func(h *History, _ *Ledger) {
		*h = append(*h, Event{Kind: KindLeak, Target: "api1/redis", What: private})
	}},
	{"no orphans", "a process lives", func(h *History, _ *Ledger) { *h = append(*h, Event{Kind: KindOrphan, PID: 12}) }},
	{"workers end", "one had to be killed", func(h *History, _ *Ledger) {
		*h = append(*h, Event{Kind: KindProcess, Target: "worker2", PID: 2, What: "stuck"})
	}},
	{"workers end", "one ended by itself", func(h *History, _ *Ledger) { (*h)[12].PID = 7 }},
	{"workers end", "one failed", func(h *History, _ *Ledger) { (*h)[19].Code = 1 }},
	{"answers are right", "a fault was shown to a client", func(h *History, _ *Ledger) { (*h)[3].Status = 500 }},
	{"answers are right", "a cancel was not understood", func(h *History, _ *Ledger) { (*h)[10].Status = 404 }},
	{"deleted is gone", "it is there", func(h *History, _ *Ledger) {
		*h = append(*h, Event{Kind: KindDelete, Unit: "B", Status: 204})
	}},
	{"answers come in time", "an answer came late", func(h *History, _ *Ledger) {
		*h = append(*h, Event{At: (*h)[15].At, Kind: KindSlow, Door: "api1", What: "POST /work-units", Status: 202, Seconds: 39})
	}},
	{"answers come in time", "the machine stood still, but not for so long", func(h *History, _ *Ledger) {
		*h = append(*h, Event{At: (*h)[5].At, Kind: KindStall, Seconds: 2},
			Event{At: (*h)[15].At, Kind: KindSlow, Door: "api1", What: "POST /work-units", Status: 202, Seconds: 25})
	}},
	{"refusals have a cause", "all is well and requests are refused", func(h *History, _ *Ledger) {
		for range 9 {
			*h = append(*h, Event{At: (*h)[15].At.Add(time.Minute), Kind: KindSubmit, Request: "a", Door: "api1", Status: 503})
		}
	}},
	{"refusals have a cause", "only Redis was broken", func(h *History, _ *Ledger) {
		(*h)[12].Fault, (*h)[12].Target, (*h)[12].PID = "flush redis", "", 0
		for range 9 {
			*h = append(*h, Event{At: (*h)[12].At, Kind: KindSubmit, Request: "a", Door: "api1", Status: 503})
		}
	}},
	{"work is accepted", "everything was refused", func(h *History, l *Ledger) {
		for _, i := range []int{4, 7, 9, 21} {
			(*h)[i].Status = 503
		}
	}},
	{"losses have a cause", "runs are lost and nothing was broken", func(h *History, l *Ledger) {
		(*h)[12].Fault, (*h)[12].Target, (*h)[12].PID = "flush redis", "", 0
		(*h)[13].PID = 7
		for range 9 {
			l.Runs = append(l.Runs, l.Runs[0])
		}
	}},
	{"accepted ends", "three worker processes did not die, and it ended as if", func(h *History, l *Ledger) {
		condemn(l)
		(*h)[12].Fault, (*h)[12].Target, (*h)[12].PID = "flush redis", "", 0
		(*h)[13].PID = 7
	}},
	{"batch windows hold", "two ran where one may", func(_ *History, l *Ledger) {
		l.Batches[0].Concurrency, l.Units[1].Batch = 1, "D"
		l.Moves = append(l.Moves, Move{Unit: "B", From: "queued", To: "running"}, Move{Unit: "D1", From: "queued", To: "running"})
	}},
	{"budgets hold", "more was spent", func(_ *History, l *Ledger) { l.Batches[0].MaxCost, l.Runs[3].Cost = 0.5, 0.6 }},
	{"results are reused", "it has cost something", func(h *History, l *Ledger) {
		l.Units[3].CachedFrom, l.Runs[3].Cost, (*h)[20].Want.Cached = "D1R", 0.5, true
	}},
	{"results are reused", "it is another's", func(_ *History, l *Ledger) { l.Units[3].CachedFrom = "A2" }},
	{"results are reused", "it ran again", func(h *History, l *Ledger) {
		(*h)[2].Want.Cached, (*h)[20].Want.Cached, (*h)[20].Want.Output = true, true, "answer"
		l.Runs[3].Started = l.Units[0].Finished.Add(time.Minute)
	}},
	{"answers are right", "another body was not understood", func(h *History, _ *Ledger) { (*h)[5].Status = 500 }},
}

func TestCheckerFindsEachBrokenPromise(t *testing.T) {
	for _, d := range doctored {
		t.Run(d.promise+"/"+d.what, func(t *testing.T) {
			h, l := kept()
			d.doctor(&h, &l)
			found := Check(h, l)
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Promise == d.promise }) {
				t.Errorf("found %v", found)
			}
		})
	}
	for _, p := range Promises {
		if p.Test == "" && !slices.ContainsFunc(doctored, func(d forgery) bool { return d.promise == p.Name }) {
			t.Errorf("nothing shows that a broken promise %q is found", p.Name)
		}
	}
}

// A batch that is run again ends once more, and so do its units.
func TestCheckerAllowsABatchThatIsRunAgain(t *testing.T) {
	h, l := kept()
	h[20].Want.Again = true
	h = append(h, Event{Kind: KindSeen, Unit: "D1", State: "failed", Finished: "2026-01-01T00:00:04Z"})
	l.Moves = append(l.Moves, Move{At: l.Runs[3].Started, Unit: "D1", From: "failed", To: "queued"})
	l.Deliveries = append(l.Deliveries, l.Deliveries[1])
	for _, v := range Check(h, l) {
		t.Error(v)
	}
}

// condemn lets unit A end because three worker processes died with it.
func condemn(l *Ledger) {
	u := &l.Units[0]
	u.State, u.ErrorClass, u.RunCount, u.Losses, u.FinalRun, u.Cost = "failed", "crash", 3, 3, "A3", 0
	l.Moves[4].To = "failed"
	l.Runs[1].Status, l.Runs[1].Cost, l.Runs[1].Result = "fenced", 0, nil
	third := l.Runs[0]
	third.ID, third.Attempt, third.Started, third.Begun = "A3", 3, l.Runs[1].Started, true
	l.Runs = append(l.Runs, third)
}

// What is no fault of the product is not called one.
func TestCheckerAllows(t *testing.T) {
	for what, doctor := range map[string]func(h *History, l *Ledger){
		"one that its client has deleted": func(h *History, l *Ledger) {
			*h = append(*h, Event{Kind: KindDelete, Unit: "B", Status: 204})
			l.Units, l.Runs = slices.Delete(l.Units, 1, 2), slices.Delete(l.Runs, 2, 3)
		},
		"agents side by side on a machine that stood still": func(h *History, _ *Ledger) {
			(*h)[12] = Event{At: (*h)[12].At, Kind: KindStall, Seconds: 3}
			(*h)[13] = Event{Kind: KindCalm}
			(*h)[14].Crowded = true
		},
		"a unit condemned before it said a word": func(_ *History, l *Ledger) {
			condemn(l)
			l.Runs[4].Begun = false
		},
		"a unit that took three worker processes with it": func(_ *History, l *Ledger) {
			condemn(l)
		},
		"a run that failed while its unit was cancelled": func(_ *History, l *Ledger) {
			u := &l.Units[2]
			u.RunCount, u.FinalRun, u.CancelAsked = 1, "C1", u.Finished
			l.Runs = append(l.Runs, Run{ID: "C1", Unit: "C", Status: "released", Attempt: 1, Started: u.Created})
			u.Losses = 1
		},
	} {
		t.Run(what, func(t *testing.T) {
			h, l := kept()
			doctor(&h, &l)
			for _, v := range Check(h, l) {
				if strings.HasPrefix(what, "a unit") && (v.Promise == "final is final" || v.Promise == "ends are told") {
					continue // the API's answer and the message belong to the other end
				}
				t.Error(v)
			}
		})
	}
}

// Figures come from the same sources.
func TestMeasure(t *testing.T) {
	f := Measure(kept())
	if f.Accepted != 4 || f.Batches != 1 || f.Moves != 1 || f.Messages != 2 || f.Tries != 3 || f.Lost != 0 || f.Doubled != 0 || f.Faults != 1 || f.Extra != 1 || len(f.Redelivered) != 1 || f.Redelivered[0] != 3*time.Second {
		t.Errorf("%+v", f)
	}
}
