package view

import (
	"context"
	"math"

	"piecework/internal/work"
	"piecework/store"
)

// Forecast is what the rest of a batch will probably take, with the range in
// which it lies nineteen times out of twenty if the trial was like the rest.
type Forecast struct {
	Trial     int          `json:"trial" doc:"Units that have run"`
	Succeeded int          `json:"succeeded" doc:"Of those"`
	Left      int          `json:"left" doc:"Units that have not"`
	CostUSD   *Expectation `json:"cost_usd" doc:"Of those that are left; null when it is not known what units cost"`
	RunTime   Expectation  `json:"run_time" doc:"Seconds of all their runs, one after the other"`
	Elapsed   Expectation  `json:"elapsed" doc:"Seconds until the last has ended, with the slots that there are now"`
}

// ForecastOf looks ahead for a batch that awaits approval; nil for others.
func ForecastOf(ctx context.Context, s *store.Store, b work.Batch, t store.Tested) (*Forecast, error) {
	if b.Status != work.BatchAwaitingApproval {
		return nil, nil
	}
	processes, err := s.Processes.List(ctx)
	if err != nil {
		return nil, err
	}
	slots := 0
	for _, p := range processes {
		if p.Live {
			slots += p.Slots
		}
	}
	if b.Concurrency > 0 {
		slots = min(slots, b.Concurrency)
	}
	f := Forecast{Trial: t.Finished, Succeeded: t.Succeeded, Left: t.Left, CostUSD: ExpectCost(t.Left, t),
		RunTime: expect(t.Left, t.Time)}
	f.Elapsed = f.RunTime.over(float64(max(min(slots, t.Left), 1)))
	return &f, nil
}

// Expectation is a figure and its range.
type Expectation struct {
	Low  float64 `json:"low"`
	Mean float64 `json:"mean"`
	High float64 `json:"high"`
}

// expect is the sum of n further values, when those of a trial lie so: both
// their own chance and that of the trial count.
func expect(n int, trial store.Spread) Expectation {
	if trial.N == 0 {
		return Expectation{}
	}
	sum := float64(n) * trial.Mean
	off := studentT(trial.N-1) * math.Sqrt(trial.Variance*(float64(n)+float64(n)*float64(n)/float64(trial.N)))
	return Expectation{Low: max(sum-off, 0), Mean: sum, High: sum + off}
}

// ExpectCost is what n further units will probably cost; nil: nobody knows.
func ExpectCost(n int, t store.Tested) *Expectation {
	if t.Cost == nil {
		return nil
	}
	return new(expect(n, *t.Cost))
}

// studentT is the two-sided 95 % quantile of Student's distribution; of none
// there is nothing to say but that it is wide.
func studentT(freedom int) float64 {
	table := []float64{12.71, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10,
		2.09}
	if freedom < len(table) {
		return table[freedom]
	}
	return 1.96 + 2.5/float64(freedom)
}

func (e Expectation) over(n float64) Expectation {
	return Expectation{Low: e.Low / n, Mean: e.Mean / n, High: e.High / n}
}
