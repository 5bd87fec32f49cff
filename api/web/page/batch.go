package page

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// batchList is where the pages of batches begin; /batches is for programs.
const batchList = "/batch-list"

// Legend says what the parts of progress bars mean.
func (Batches) Legend() (keys []Key) {
	for _, s := range (Batch{}).Segments() {
		keys = append(keys, Key{s.Fill, s.Name})
	}
	return keys
}

// Batch is one batch, on its page or in the list. The list does without what
// would cost a look at the batch's units.
type Batch struct {
	work.Batch
	Now       time.Time
	Forecast  *Forecast     // what the rest will probably take; nil when that is not known
	PerSecond float64       // units that ended lately; 0: not known
	Failures  []Failure     // the largest group first
	FailedOf  int           // so many failed units were looked at; 0: all
	Age       time.Duration // of all this, when it was asked for
	Notice    *Notice
	Still     bool
}

// Milliseconds is its age, rounded up.
func (b Batch) Milliseconds() int64 { return (b.Age + time.Millisecond - 1).Milliseconds() }

// Render writes the page.
func (b Batch) Render(w io.Writer) error { return render(w, "batch.html", b) }

// Part is what changes about the page.
func (b Batch) Part() Part { return Part{Name: "batch", Data: b} }

// Forecast is what the rest of a batch will probably take.
type Forecast struct {
	Trial, Succeeded, Left int
	CostUSD                *Range // nil: not known
	RunTime, Elapsed       Range  // seconds; zero: not known
}

// Range is where a value lies nineteen times out of twenty.
type Range struct{ Low, Mean, High float64 }

// Failure is how many units failed with an error of one class.
type Failure struct {
	Class   work.Class
	Count   int
	Cost    work.Cost
	Message string // of one of them
}

// Name is the batch's title.
func (b Batch) Name() string { return cmp.Or(b.Title, "Untitled batch") }

// Path is the batch's page.
func (b Batch) Path() string { return BatchPath(b.ID) }

// BatchPath is the page of a batch.
func BatchPath(id uuid.UUID) string { return batchList + "/" + id.String() }

// To is the page of a verb for the batch.
func (b Batch) To(verb string) string { return b.Path() + "/" + verb }

// Units is the list of its units.
func (b Batch) Units() string { return b.unitsIn("", "") }

func (b Batch) unitsIn(status, class string) string {
	return "/" + Filter{Batch: b.ID.String(), Status: status, Class: class}.Query()
}

// OfClass is the list of its units that ended with an error of a class.
func (b Batch) OfClass(c work.Class) string {
	return b.unitsIn(string(work.Failed)+","+string(work.TimedOut), string(c))
}

// Segment is a part of the progress bar: the units in some states.
type Segment struct {
	Name, Fill string
	Count      int
	Units      string // the list of them
}

// Segments are the parts of the progress bar, from left to right.
func (b Batch) Segments() []Segment {
	c := b.Counts
	part := func(name, fill string, count int, states ...work.State) Segment {
		names := make([]string, len(states))
		for i, s := range states {
			names[i] = string(s)
		}
		return Segment{name, fill, count, b.unitsIn(strings.Join(names, ","), "")}
	}
	return []Segment{
		part("succeeded", fillGood, c.Succeeded, work.Succeeded),
		part("failed or timed out", fillBad, c.Failed+c.Expired, work.Failed, work.TimedOut),
		part("cancelled", fillOther, c.Cancelled, work.Cancelled),
		part("running", fillBusy, c.Running+c.Waiting, work.Running, work.Waiting),
		part("queued", fillFree, c.Queued, work.Queued),
	}
}

// Bar draws the segments.
func (b Batch) Bar() []Rect {
	var pieces []piece
	for _, s := range b.Segments() {
		pieces = append(pieces, piece{s.Fill, float64(s.Count)})
	}
	return bar(float64(b.Counts.Total), pieces...)
}

// Says is the bar in words.
func (b Batch) Says() string {
	if b.Counts.Total == 0 {
		return "no units"
	}
	var parts []string
	for _, s := range b.Segments() {
		if s.Count > 0 {
			parts = append(parts, number(s.Count)+" "+s.Name)
		}
	}
	return fmt.Sprintf("%s of %s over: %s", number(b.Counts.Finished()), Units(b.Counts.Total), strings.Join(parts, ", "))
}

// Over is how much of it is over.
func (b Batch) Over() string { return share(float64(b.Counts.Finished()), float64(b.Counts.Total)) }

// Bad is how many units failed or timed out.
func (b Batch) Bad() int { return b.Counts.Failed + b.Counts.Expired }

// Cost is what it has cost, against what it may.
func (b Batch) Cost() string {
	if b.MaxCostUSD == nil {
		return b.Counts.CostText()
	}
	return b.Counts.CostText() + " of " + work.Dollars(*b.MaxCostUSD)
}

// left is how many units are not over.
func (b Batch) left() int { return b.Counts.Total - b.Counts.Finished() }

// Sums are the figures to see first.
func (b Batch) Sums() []Sum {
	c := b.Counts
	cost := "no limit"
	if b.MaxCostUSD != nil {
		cost = fmt.Sprintf("%s of %s at most", share(c.Known(), *b.MaxCostUSD), work.Dollars(*b.MaxCostUSD))
	}
	sums := []Sum{{"Over", b.Over(), fmt.Sprintf("%s of %s", number(c.Finished()), Units(c.Total))}}
	if done := c.Succeeded + b.Bad(); done > 0 {
		sums = append(sums, Sum{"Succeeded", share(float64(c.Succeeded), float64(done)), fmt.Sprintf("%s failed or timed out", number(b.Bad()))})
	}
	if c.Denied > 0 {
		sums = append(sums, Sum{"Tools denied", number(c.Denied), "of " + Units(c.Total)})
	}
	sums = append(sums, Sum{"Cost", c.CostText(), cost})
	if hits := c.PromptCacheHitRate; hits != nil {
		sums = append(sums, Sum{"Prompt cache", share(*hits, 1), "of the input came from it"})
	}
	if f := b.Forecast; f != nil && f.CostUSD != nil && b.Status == work.BatchInProgress {
		whole := Range{f.CostUSD.Low + c.Known(), f.CostUSD.Mean + c.Known(), f.CostUSD.High + c.Known()}
		sums = append(sums, Sum{"Cost at the end", "≈ " + work.Dollars(whole.Mean),
			fmt.Sprintf("%s to %s", work.Dollars(whole.Low), work.Dollars(whole.High))})
	}
	if b.PerSecond > 0 {
		sums = append(sums, Sum{"Rate", rate(b.PerSecond*60) + " / min", "units, lately"})
		if b.Paused == nil && b.left() > 0 {
			sums = append(sums, Sum{"Time left", "≈ " + span(work.Seconds(float64(b.left())/b.PerSecond)), "at this rate"})
		}
	}
	if b.FinishedAt != nil {
		sums = append(sums, Sum{"Took", lasted(b.FinishedAt.Sub(b.CreatedAt)), "from submission to end"})
	}
	return sums
}

// Waits tell what it waits for, or why it ended as it did.
func (b Batch) Waits() (list []string) {
	if p := b.Paused; p != nil {
		who := "paused since " + work.When(p.Since)
		if p.By != "" {
			who += " by " + p.By
		}
		if p.Why != "" {
			who += ": " + p.Why
		}
		list = append(list, "It is "+who+". Units that run go on to their end.")
	}
	switch b.Status {
	case work.BatchEnumerating:
		list = append(list, fmt.Sprintf("Its units are being made, %s so far. None begins before all are there.", number(b.Counts.Total)))
	case work.BatchTesting:
		list = append(list, fmt.Sprintf("The first %s run. Then a person says whether the others may.", Units(b.TestFirst)))
	case work.BatchAwaitingApproval:
		list = append(list, fmt.Sprintf("The first %s have run. A person says whether the other %s may.", Units(b.Counts.Finished()), number(b.left())))
	case work.BatchFinalizing:
		list = append(list, "Its units are over. The unit that sums them up is at work.")
	case work.BatchCancelling:
		list = append(list, fmt.Sprintf("It is being cancelled: %s not over yet.", verbed(b.left())))
	}
	if b.Why != "" {
		list = append(list, b.Why)
	}
	return list
}

// verbed is "1 unit is", "2 units are".
func verbed(n int) string {
	if n == 1 {
		return "1 unit is"
	}
	return Units(n) + " are"
}

// Expected is a forecast as rows of a table: what, from, probably, to.
func (f Forecast) Expected() (rows [][]string) {
	seconds := func(v float64) string { return span(work.Seconds(v)) }
	row := func(name string, r Range, write func(float64) string) {
		rows = append(rows, []string{name, write(r.Low), write(r.Mean), write(r.High)})
	}
	if f.CostUSD != nil {
		row("Cost", *f.CostUSD, work.Dollars)
	} else {
		rows = append(rows, []string{"Cost", "unknown", "unknown", "unknown"})
	}
	row("Time of all runs", f.RunTime, seconds)
	row("Time until the end", f.Elapsed, seconds)
	return rows
}

// Heading says of what the forecast is.
func (f Forecast) Heading() string {
	return fmt.Sprintf("What the other %s will probably take", Units(f.Left))
}

// Settings are what the batch was given.
func (b Batch) Settings() (list []Setting) {
	add := func(name, value string) {
		if value != "" {
			list = append(list, Setting{name, value})
		}
	}
	var source struct{ Type, Path string }
	_ = json.Unmarshal(b.Source, &source) // what it cannot tell is in the JSON
	switch {
	case b.Protocol != work.ProtocolNative && b.Protocol != "":
		add("source", "a file that came through the "+string(b.Protocol)+" interface")
	case source.Type == "units":
		add("source", "units that were submitted with it")
	case source.Type != "":
		add("source", source.Type+" of "+source.Path)
	}
	if b.TestFirst > 0 {
		add("test first", Units(b.TestFirst))
	}
	if b.Concurrency > 0 {
		add("units at once", number(b.Concurrency))
	}
	if b.MaxCostUSD != nil {
		add("max cost", work.Dollars(*b.MaxCostUSD))
	}
	add("stop when", b.rules())
	if b.ExpiresAt != nil {
		add("expires", work.When(*b.ExpiresAt))
	}
	for _, t := range []struct {
		name string
		at   *time.Time
	}{{"enumerated", b.EnumeratedAt}, {"approved", b.ApprovedAt}, {"asked to cancel", b.CancelledAt}, {"finished", b.FinishedAt}} {
		if t.at != nil {
			add(t.name, work.When(*t.at))
		}
	}
	return list
}

// rules are the batch's stop_when in words.
func (b Batch) rules() string {
	if b.StopWhen == nil {
		return ""
	}
	var rules []string
	for _, r := range []struct {
		limit *float64
		says  func(float64) string
	}{
		{b.StopWhen.FailureRate, func(v float64) string { return "more than " + share(v, 1) + " fail" }},
		{b.StopWhen.RefusalRate, func(v float64) string { return "more than " + share(v, 1) + " are refused" }},
		{b.StopWhen.DenialRate, func(v float64) string { return "a tool is denied in more than " + share(v, 1) }},
		{b.StopWhen.MeanCostUSD, func(v float64) string { return "they cost more than " + work.Dollars(v) + " each" }},
	} {
		if r.limit != nil {
			rules = append(rules, r.says(*r.limit))
		}
	}
	return fmt.Sprintf("of the last %s %s", Units(b.StopWhen.Window), strings.Join(rules, ", or "))
}

// Template is what is the same in all its units; Wish is its synthesis; Extra
// is its metadata. Each is empty when there is none.
func (b Batch) Template() string { return laidOut(b.Unit) }

// Wish is the unit that sums it up, as it was asked for.
func (b Batch) Wish() string { return laidOut(b.Synthesis) }

// Extra is its metadata.
func (b Batch) Extra() string { return laidOut(b.Metadata) }

func laidOut(raw json.RawMessage) string {
	if slices.Contains([]string{"", "{}", "null"}, string(bytes.TrimSpace(raw))) {
		return ""
	}
	return pretty(raw)
}

// maxProblems is how many refused items are shown.
const maxProblems = 50

// Refused are the first of the items that no unit was made of.
func (b Batch) Refused() []work.BatchProblem { return b.Problems[:min(len(b.Problems), maxProblems)] }

// Unsaid is how many more there are.
func (b Batch) Unsaid() int { return max(b.Rejected-len(b.Refused()), 0) }

// CanApprove tells whether a person is asked to let the rest run.
func (b Batch) CanApprove() bool { return b.Status == work.BatchAwaitingApproval }

// CanCancel tells whether it can be cancelled.
func (b Batch) CanCancel() bool { return !b.Status.Final() && b.Status != work.BatchCancelling }

// CanPause tells whether it can be paused.
func (b Batch) CanPause() bool { return b.goesOn() && b.Paused == nil }

// CanResume tells whether it can be resumed.
func (b Batch) CanResume() bool { return b.goesOn() && b.Paused != nil }

func (b Batch) goesOn() bool {
	return b.Status == work.BatchTesting || b.Status == work.BatchInProgress
}

// again is how many units a retry would run.
func (b Batch) again() int { return b.Counts.Failed + b.Counts.Expired + b.Counts.Cancelled }

// CanRetry tells whether there are units to run again.
func (b Batch) CanRetry() bool {
	return b.again() > 0 && (b.Status.Final() || b.Status == work.BatchInProgress)
}

// Results tells whether there are any to read.
func (b Batch) Results() bool { return b.Counts.Finished() > 0 }

// limits are what an approval or a resume may change.
func (b Batch) limits() []Field {
	budget, most := "", ""
	if b.MaxCostUSD != nil {
		budget = strconv.FormatFloat(*b.MaxCostUSD, 'f', -1, 64)
	}
	if b.Concurrency > 0 {
		most = strconv.Itoa(b.Concurrency)
	}
	return []Field{
		{Name: "max_cost_usd", Label: "Cost of the whole batch at most, in USD", Value: budget, Hint: "no limit", Mode: "decimal"},
		{Name: "concurrency", Label: "Units at once at most", Value: most, Hint: "as many as there are slots for", Mode: "numeric"},
	}
}
