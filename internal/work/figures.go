package work

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Window is a stretch of time up to now that figures are asked for.
type Window struct {
	Name   string
	Length time.Duration
	Bucket time.Duration // of its series
}

// Windows lists every window, the shortest first. Buckets longer than an hour
// are whole hours: figures that are older are kept by the hour.
var Windows = []Window{
	{"1h", time.Hour, time.Minute},
	{"24h", 24 * time.Hour, time.Hour},
	{"7d", 7 * 24 * time.Hour, 6 * time.Hour},
	{"30d", 30 * 24 * time.Hour, 24 * time.Hour},
}

// DefaultWindow is the one that is meant when none is named.
const DefaultWindow = "24h"

// WindowOf finds a window by its name.
func WindowOf(name string) (Window, bool) {
	i := slices.IndexFunc(Windows, func(w Window) bool { return w.Name == name })
	if i < 0 {
		return Window{}, false
	}
	return Windows[i], true
}

// Since is when the window begins: with whole days (UTC) when it is longer
// than one, else with a whole bucket. The bucket or day that is going on counts.
func (w Window) Since(now time.Time) time.Time {
	whole := w.Bucket
	if w.Length > 24*time.Hour {
		whole = 24 * time.Hour
	}
	return now.UTC().Truncate(whole).Add(whole - w.Length)
}

// Figures are what happened in a window.
type Figures struct {
	Window string     `json:"window" enum:"1h,24h,7d,30d"`
	From   time.Time  `json:"from"`
	To     time.Time  `json:"to" doc:"When the figures were taken"`
	Bucket Seconds    `json:"bucket" doc:"Seconds that an interval of the series is long; the last is not over yet"`
	Series []Interval `json:"series" nullable:"false" doc:"Oldest first, without gaps"`

	Accepted int64           `json:"accepted" doc:"Units"`
	Finished map[State]int64 `json:"finished" doc:"Units by final state; one that was retried later counts as often as it ended"`
	Runs     []Outcome       `json:"runs" nullable:"false" doc:"Runs that ended, by status and error class, the most first"`

	Cost     Spent   `json:"cost" doc:"Of all runs that ended"`
	Models   []Spent `json:"models" nullable:"false" doc:"Cost by model, the highest first"`
	Backends []Spent `json:"backends" nullable:"false" doc:"Cost by backend, the highest first"`
	Workers  []Spent `json:"workers" nullable:"false" doc:"Cost by worker, the highest first; units without one are left out"`

	Wait Latency   `json:"wait" doc:"From when a unit could begin to its first run"`
	Run  []Latency `json:"run" nullable:"false" doc:"From the begin of a run to its end, by backend; runs that were lost, fenced or released are left out"`

	Untallied int64 `json:"-"` // events that were counted for these figures alone
}

// Interval is what happened in one bucket of a series.
type Interval struct {
	From     time.Time       `json:"from"`
	Accepted int64           `json:"accepted" doc:"Units"`
	Finished map[State]int64 `json:"finished" doc:"Units by final state"`
	Cost     Spent           `json:"cost" doc:"Of runs that ended"`
}

// Outcome counts runs that ended in one way.
type Outcome struct {
	Status RunStatus `json:"status"`
	Class  Class     `json:"class,omitempty" doc:"Of the error"`
	Count  int64     `json:"count"`
	Cost
}

// Spent is what runs have cost, in dollars.
type Spent struct {
	Name string `json:"name,omitempty"`
	Runs int64  `json:"runs"`
	Cost
	Wasted Cost `json:"wasted" doc:"The part of it that went to runs which failed, timed out, were lost or fenced"`
}

// Add counts more of the same.
func (s *Spent) Add(more Spent) {
	s.Runs += more.Runs
	s.Cost, s.Wasted = s.Plus(more.Cost), s.Wasted.Plus(more.Wasted)
}

// Wasted tells whether what a run has cost bought nothing. A run that was
// released goes on in the next, and one that was cancelled was wanted away.
func (s RunStatus) Wasted() bool {
	return s == RunFailed || s == RunTimedOut || s == RunLost || s == RunFenced
}

// Latency is how long things took, in seconds, within a tenth.
type Latency struct {
	Name  string  `json:"name,omitempty"`
	Count int64   `json:"count"`
	P50   Seconds `json:"p50"`
	P90   Seconds `json:"p90"`
	P99   Seconds `json:"p99"`
}

// Durations are counted in bins, each LatencyFactor as wide as the one before;
// bin 0 begins at a second. LatencyLeast is the shortest time told apart.
const (
	LatencyFactor = 1.2
	LatencyLeast  = 0.001
)

// NewLatency reads the percentiles from durations counted in bins.
func NewLatency(name string, bins map[int]int64) Latency {
	l := Latency{Name: name}
	for _, n := range bins {
		l.Count += n
	}
	order := slices.Sorted(maps.Keys(bins))
	at := func(part float64) Seconds {
		rank := int64(math.Ceil(part * float64(l.Count)))
		for _, bin := range order {
			if rank -= bins[bin]; rank <= 0 {
				return Seconds(math.Pow(LatencyFactor, float64(bin)+0.5)) // the middle of the bin
			}
		}
		return 0
	}
	l.P50, l.P90, l.P99 = at(0.5), at(0.9), at(0.99)
	return l
}
