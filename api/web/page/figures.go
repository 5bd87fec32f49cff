package page

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"piecework/internal/work"
)

// clock writes the begin of an interval, fine enough to tell it from its
// neighbours.
func (p Overview) clock(at time.Time, days bool) string {
	switch {
	case days:
		return at.UTC().Format("2 Jan")
	case p.To.Sub(p.From) > 25*time.Hour:
		return at.UTC().Format("2 Jan 15:04")
	}
	return at.UTC().Format("15:04")
}

func (p Overview) ticks(from []time.Time, days bool) []string {
	if len(from) < 3 {
		return nil
	}
	var ticks []string
	for _, at := range []time.Time{from[0], from[len(from)/2], from[len(from)-1]} {
		ticks = append(ticks, p.clock(at, days))
	}
	return ticks
}

// every is a length of time as an interval of a chart.
func every(s work.Seconds) string {
	switch s.Duration() {
	case time.Minute:
		return "minute"
	case time.Hour:
		return "hour"
	case 24 * time.Hour:
		return "day"
	}
	return span(s)
}

// Units is the chart of units per minute.
func (p Overview) Units() Columns {
	c := Columns{ID: "units", Title: "Units per minute", Desc: fmt.Sprintf("%s accepted and %s finished in the last %s; a column is one %s.",
		number(p.Accepted), number(sumOf(p.Finished)), p.Long(p.Window), every(p.Bucket)),
		Legend: []Key{{fillGood, "succeeded"}, {fillBad, "failed or timed out"}, {fillOther, "cancelled"}, {"mark", "accepted"}},
		Table: Table{Caption: "Units by " + every(p.Bucket) + ", UTC",
			Head: []string{"From", "Accepted", "Succeeded", "Failed", "Timed out", "Cancelled"}}}
	var stacks []stack
	var times []time.Time
	for _, i := range p.Series {
		minutes := float64(p.Bucket) / 60
		if end := i.From.Add(p.Bucket.Duration()); end.After(p.To) {
			minutes = max(p.To.Sub(i.From).Minutes(), 0.25) // it goes on
		}
		good, cancelled := i.Finished[work.Succeeded], i.Finished[work.Cancelled]
		bad := i.Finished[work.Failed] + i.Finished[work.TimedOut]
		name := p.clock(i.From, p.Bucket.Duration() >= 24*time.Hour)
		stacks = append(stacks, stack{
			parts: []piece{{fillGood, float64(good) / minutes}, {fillBad, float64(bad) / minutes},
				{fillOther, float64(cancelled) / minutes}},
			mark: float64(i.Accepted) / minutes,
			tip: fmt.Sprintf("%s: %s accepted, %s succeeded, %s failed or timed out, %s cancelled", name, number(i.Accepted), number(good),
				number(bad), number(cancelled)),
		})
		c.Table.Rows = append(c.Table.Rows, []string{name, number(i.Accepted), number(good), number(i.Finished[work.Failed]),
			number(i.Finished[work.TimedOut]), number(cancelled)})
		times = append(times, i.From)
	}
	c.draw(stacks, rate)
	c.Ticks = p.ticks(times, p.Bucket.Duration() >= 24*time.Hour)
	return c
}

func sumOf[K comparable](by map[K]int64) (sum int64) {
	for _, n := range by {
		sum += n
	}
	return sum
}

// Costs is the chart of cost over time: by day where the window is days.
func (p Overview) Costs() Columns {
	days := p.To.Sub(p.From) > 25*time.Hour
	what := every(p.Bucket)
	if days {
		what = "day"
	}
	c := Columns{ID: "cost", Title: "Cost by " + what, Desc: fmt.Sprintf("%s in the last %s, %s of it wasted.", p.Cost.CostText(),
		p.Long(p.Window), p.Cost.Wasted.CostText()),
		Legend: []Key{{fillGood, "useful"}, {fillBad, "wasted: runs that failed, timed out, were lost or fenced"}},
		Table:  Table{Caption: "Cost by " + what + ", UTC", Head: []string{"From", "Runs", "Cost", "Wasted", "Runs of unknown cost"}}}
	var sums []work.Spent
	var times []time.Time
	for _, i := range p.Series {
		name := p.clock(i.From, days)
		if len(sums) == 0 || sums[len(sums)-1].Name != name {
			sums, times = append(sums, work.Spent{Name: name}), append(times, i.From)
		}
		sums[len(sums)-1].Add(i.Cost)
	}
	var stacks []stack
	for _, s := range sums {
		stacks = append(stacks, stack{
			parts: []piece{{fillGood, s.Known() - s.Wasted.Known()}, {fillBad, s.Wasted.Known()}}, mark: -1,
			tip: fmt.Sprintf("%s: %s, %s of it wasted", s.Name, s.CostText(), s.Wasted.CostText()),
		})
		c.Table.Rows = append(c.Table.Rows, []string{s.Name, number(s.Runs), s.CostText(), s.Wasted.CostText(), number(s.Unpriced)})
	}
	c.draw(stacks, axisDollars)
	c.Ticks = p.ticks(times, days)
	return c
}

// axisDollars is a round sum: what is written on a scale.
func axisDollars(v float64) string {
	if v >= 10 {
		return "$" + number(int64(math.Round(v)))
	}
	return fmt.Sprintf("$%g", v)
}

// QueueBars is what waits and runs by queue.
func (p Overview) QueueBars() Bars {
	b := Bars{Caption: "Queues now", Name: "Queue", Head: []string{"Waiting", "Scheduled", "Running", "Oldest"},
		Legend: []Key{{fillBusy, "running"}, {fillGood, "waiting"}, {fillOther, "scheduled for later"}}}
	most := 0
	for _, q := range p.Queues {
		most = max(most, q.Running+q.Due+q.Scheduled)
	}
	for _, q := range p.Queues {
		wait := "–"
		if q.OldestWait != nil {
			wait = span(*q.OldestWait)
		}
		var note []string
		if q.Paused != "" {
			note = append(note, "Paused")
		}
		if q.Processes == 0 {
			note = append(note, "no worker process")
		}
		b.Rows = append(b.Rows, Row{Name: q.Name,
			Parts: bar(float64(most), piece{fillBusy, float64(q.Running)}, piece{fillGood, float64(q.Due)},
				piece{fillOther, float64(q.Scheduled)}),
			Cells: []string{number(q.Due), number(q.Scheduled), number(q.Running), wait}, Note: strings.Join(note, "; ")})
	}
	return b
}

// maxBars is how many rows a chart has; the rest is added up.
const maxBars = 12

// Outcomes is how runs ended.
func (p Overview) Outcomes() Bars {
	b := Bars{Caption: "How runs ended", Name: "Outcome", Head: []string{"Runs", "Share", "Cost"}}
	var all, most int64
	for _, o := range p.Runs {
		all, most = all+o.Count, max(most, o.Count)
	}
	for i, o := range p.Runs {
		name, fill := words(o.Status), fillOther
		if o.Class != "" && string(o.Class) != string(o.Status) {
			name += ": " + words(o.Class)
		}
		switch {
		case o.Status == work.RunSucceeded:
			fill = fillGood
		case o.Status.Wasted():
			fill = fillBad
		}
		if i == maxBars-1 && len(p.Runs) > maxBars {
			name, fill = "all others", fillOther
			for _, more := range p.Runs[maxBars:] {
				o.Count, o.Cost = o.Count+more.Count, o.Plus(more.Cost)
			}
		}
		b.Rows = append(b.Rows, Row{Name: name, Parts: bar(float64(most), piece{fill, float64(o.Count)}),
			Cells: []string{number(o.Count), share(float64(o.Count), float64(all)), o.CostText()}})
		if len(b.Rows) == maxBars {
			break
		}
	}
	return b
}

// Spendings are the charts of cost by model, backend and worker.
func (p Overview) Spendings() []Bars {
	charts := []Bars{spendings("Cost by model", "Model", p.Models), spendings("Cost by backend", "Backend", p.Figures.Backends)}
	if len(p.Workers) > 0 {
		charts = append(charts, spendings("Cost by worker", "Worker", p.Workers))
	}
	return charts
}

func spendings(caption, name string, all []work.Spent) Bars {
	b := Bars{Caption: caption, Name: name, Head: []string{"Runs", "Cost", "Wasted"}}
	if len(all) > maxBars {
		rest := work.Spent{Name: "all others"}
		for _, s := range all[maxBars-1:] {
			rest.Add(s)
		}
		all = append(slices.Clone(all[:maxBars-1]), rest)
	}
	most := 0.0
	for _, s := range all {
		most = max(most, s.Known())
	}
	for _, s := range all {
		row := Row{Name: show(s.Name), Parts: bar(most, piece{fillGood, s.Known() - s.Wasted.Known()}, piece{fillBad, s.Wasted.Known()}),
			Cells: []string{number(s.Runs), s.CostText(), s.Wasted.CostText()}}
		if s.Name == "" {
			row.Name = "not named"
		}
		if s.Unpriced > 0 {
			row.Note = number(s.Unpriced) + " of unknown cost"
		}
		b.Rows = append(b.Rows, row)
	}
	return b
}

// Latencies is how long units waited and runs took, on one scale: its bars end
// at the 99th percentile, and change at the 90th and the median.
func (p Overview) Latencies() Bars {
	b := Bars{Caption: "How long things took", Name: "What", Head: []string{"Count", "p50", "p90", "p99"},
		Legend: []Key{{fillGood, "half took up to here"}, {fillBusy, "nine of ten"}, {fillOther, "99 of 100"}}}
	all := []work.Latency{p.Wait}
	all[0].Name = "wait to begin"
	for _, l := range p.Run {
		l.Name = "run: " + l.Name
		all = append(all, l)
	}
	longest := work.Seconds(0)
	for _, l := range all {
		longest = max(longest, l.P99)
	}
	for _, l := range all {
		row := Row{Name: l.Name, Cells: []string{"0", "–", "–", "–"}}
		if l.Count > 0 {
			row.Parts = bar(float64(longest), piece{fillGood, float64(l.P50)}, piece{fillBusy, float64(l.P90 - l.P50)},
				piece{fillOther, float64(l.P99 - l.P90)})
			row.Cells = []string{number(l.Count), span(l.P50), span(l.P90), span(l.P99)}
		}
		b.Rows = append(b.Rows, row)
	}
	return b
}

// Crew is the worker processes with their slots.
func (p Overview) Crew() Bars {
	b := Bars{Caption: "Worker processes", Name: "Process", Head: []string{"Busy", "Slots"}}
	most := 0
	for _, w := range p.Processes {
		most = max(most, w.Slots)
	}
	for i, w := range p.Processes {
		if i == maxBars {
			b.Rows = append(b.Rows, Row{Name: fmt.Sprintf("and %s more", number(len(p.Processes)-maxBars)), Cells: []string{"", ""}})
			break
		}
		row := Row{Name: fmt.Sprintf("%s (pid %d)", show(w.Hostname), w.PID),
			Parts: bar(float64(most), piece{fillBusy, float64(w.Running)}, piece{fillFree, float64(max(w.Slots-w.Running, 0))}),
			Cells: []string{number(w.Running), number(w.Slots)}}
		if !w.Live {
			row.Note = "gives no sign of life"
		}
		b.Rows = append(b.Rows, row)
	}
	return b
}
