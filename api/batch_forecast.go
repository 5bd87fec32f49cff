package api

import (
	"math"

	"piecework/store"
)

// forecast is what the rest of a batch will probably take, with the range in
// which it lies nineteen times out of twenty if the trial was like the rest.
type forecast struct {
	Trial     int          `json:"trial" doc:"Units that have run"`
	Succeeded int          `json:"succeeded" doc:"Of those"`
	Left      int          `json:"left" doc:"Units that have not"`
	CostUSD   *expectation `json:"cost_usd" doc:"Of those that are left; null when it is not known what units cost"`
	RunTime   expectation  `json:"run_time" doc:"Seconds of all their runs, one after the other"`
	Elapsed   expectation  `json:"elapsed" doc:"Seconds until the last has ended, with the slots that there are now"`
}

type expectation struct {
	Low  float64 `json:"low"`
	Mean float64 `json:"mean"`
	High float64 `json:"high"`
}

// expect is the sum of n further values, when those of a trial lie so: both
// their own chance and that of the trial count.
func expect(n int, trial store.Spread) expectation {
	if trial.N == 0 {
		return expectation{}
	}
	sum := float64(n) * trial.Mean
	off := studentT(trial.N-1) * math.Sqrt(trial.Variance*(float64(n)+float64(n)*float64(n)/float64(trial.N)))
	return expectation{Low: max(sum-off, 0), Mean: sum, High: sum + off}
}

// expectCost is what n further units will probably cost; nil: nobody knows.
func expectCost(n int, t store.Tested) *expectation {
	if t.Cost == nil {
		return nil
	}
	return new(expect(n, *t.Cost))
}

// studentT is the two-sided 95 % quantile of Student's distribution; of none
// there is nothing to say but that it is wide.
func studentT(freedom int) float64 {
	table := []float64{12.71, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09}
	if freedom < len(table) {
		return table[freedom]
	}
	return 1.96 + 2.5/float64(freedom)
}

func (e expectation) over(n float64) expectation {
	return expectation{Low: e.Low / n, Mean: e.Mean / n, High: e.High / n}
}
