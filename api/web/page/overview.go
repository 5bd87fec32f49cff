package page

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"piecework/internal/work"
)

// Overview is what happened in a window, and how things stand.
type Overview struct {
	work.Figures
	Queues    []Queue
	Processes []work.Process
	Backends  []Backend
	Checks    []Check
	Schedules []work.Schedule
	Batches   map[work.BatchStatus]int
	Now       time.Time
}

// Queue is one queue as it is now.
type Queue struct {
	Name                               string
	Due, Scheduled, Running, Processes int
	OldestWait                         *work.Seconds
	Paused                             string // why; empty: it goes on
}

// Backend is one backend over all live worker processes.
type Backend struct {
	Name, Status string
	Slots        int
	Detail       string // what is wrong with it
	Shut         []Shut
}

// Shut is what keeps units of one model, or of all of a backend, from beginning in
// some worker processes.
type Shut struct {
	Model     string // for people; empty: all models
	Class     work.Class
	Message   string     // of one of the processes
	Until     *time.Time // the latest; nil: unknown
	Processes int        // where it is so
	Of        int        // where the backend can run
}

// Check is one thing that the server stands on.
type Check struct {
	Name   string
	OK     bool
	Detail string
}

// Render writes the page.
func (p Overview) Render(w io.Writer) error { return render(w, "overview.html", p) }

// Processes is every worker process with what it runs.
type Processes struct {
	Processes []Process
	Now       time.Time
}

// Process is a worker process with its runs.
type Process struct {
	work.Process
	Runs []work.Run
}

// Render writes the page.
func (p Processes) Render(w io.Writer) error { return render(w, "processes.html", p) }

// Beat is how long ago the process last gave a sign of life.
func (p Process) Beat(now time.Time) string {
	return span(work.Seconds(max(now.Sub(p.BeatAt), 0).Seconds()))
}

// Busy draws the slots that are taken.
func (p Process) Busy() []Rect {
	return bar(float64(max(p.Slots, len(p.Runs))), piece{fillBusy, float64(len(p.Runs))})
}

// BatchLine says how many batches are not over; empty: none.
func (p Overview) BatchLine() string {
	awaiting, live := p.Batches[work.BatchAwaitingApproval], 0
	for status, n := range p.Batches {
		if !status.Final() && status != work.BatchAwaitingApproval {
			live += n
		}
	}
	if live+awaiting == 0 {
		return ""
	}
	text := fmt.Sprintf("%s batches in progress, %s await approval", number(live), number(awaiting))
	if live == 1 {
		text = strings.Replace(text, "batches", "batch", 1)
	}
	if awaiting == 1 {
		text = strings.Replace(text, "await ", "awaits ", 1)
	}
	return text
}

// Windows are the windows to choose from.
func (p Overview) Windows() []work.Window { return work.Windows }

// Long is a window's name in full.
func (p Overview) Long(name string) string {
	return map[string]string{"1h": "hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}[name]
}

// Sum is a figure of the top of the page.
type Sum struct{ Name, Value, Note string }

// Sums are the figures to see first.
func (p Overview) Sums() []Sum {
	ended := p.Finished[work.Succeeded] + p.Finished[work.Failed] + p.Finished[work.TimedOut]
	good := "none ended"
	if ended > 0 {
		good = fmt.Sprintf("%s failed or timed out", number(p.Finished[work.Failed]+p.Finished[work.TimedOut]))
	}
	due, scheduled, running, slots := 0, 0, 0, 0
	for _, q := range p.Queues {
		due, scheduled, running = due+q.Due, scheduled+q.Scheduled, running+q.Running
	}
	for _, w := range p.Processes {
		if w.Live {
			slots += w.Slots
		}
	}
	waiting := "none scheduled"
	if scheduled > 0 {
		waiting = number(scheduled) + " scheduled"
	}
	cost := "none wasted"
	if wasted := p.Cost.Wasted; wasted.Known() > 0 {
		cost = fmt.Sprintf("%s wasted (%s)", wasted.CostText(), share(wasted.Known(), p.Cost.Known()))
	} else if wasted.Unpriced > 0 {
		cost = "wasted: unknown"
	}
	return []Sum{
		{"Waiting now", number(due), waiting},
		{"Running now", number(running), fmt.Sprintf("of %s slots", number(slots))},
		{"Accepted", number(p.Accepted), "units"},
		{"Succeeded", share(float64(p.Finished[work.Succeeded]), float64(ended)), good},
		{"Cost", p.Cost.CostText(), cost},
	}
}

func share(part, whole float64) string {
	if whole <= 0 {
		return "–"
	}
	v := part / whole * 100
	if v > 0 && v < 0.95 || v > 99.05 && v < 100 {
		return fmt.Sprintf("%.1f %%", v)
	}
	return fmt.Sprintf("%.0f %%", v)
}

// Troubles are the checks that failed.
func (p Overview) Troubles() (bad []Check) {
	for _, c := range p.Checks {
		if !c.OK {
			bad = append(bad, c)
		}
	}
	return bad
}

// Pauses are what does not go on because somebody said so.
func (p Overview) Pauses() (held []Check) {
	for _, q := range p.Queues {
		if q.Paused != "" {
			held = append(held, Check{Name: "Queue " + q.Name, Detail: q.Paused})
		}
	}
	for _, b := range p.Backends {
		if b.Status == "paused" {
			held = append(held, Check{Name: "Backend " + b.Name, Detail: b.Detail})
		}
	}
	return held
}

// Here are the backends that units can have, or could without a pause.
func (p Overview) Here() []Backend {
	return slices.DeleteFunc(slices.Clone(p.Backends), Backend.absent)
}

// Absent are the others.
func (p Overview) Absent() []Backend {
	return slices.DeleteFunc(slices.Clone(p.Backends), func(b Backend) bool { return !b.absent() })
}

func (b Backend) absent() bool { return b.Status != "available" && b.Status != "paused" }
