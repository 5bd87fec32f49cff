package store

import "piecework/internal/work"

// unpriced is the condition that the cost of a run is not known, or not all of
// it, for a run that is over. alias is a row with the columns of worker_runs.
func unpriced(alias string) string {
	return `(` + alias + `.total_cost_usd IS NULL OR ` + alias + `.cost_incomplete)`
}

// costColumns are the two columns of work_units that a costRow reads, and
// sumOfCosts adds them up.
const (
	costColumns = `cost_usd, unpriced_runs`
	sumOfCosts  = `coalesce(sum(cost_usd), 0) AS cost_usd, coalesce(sum(unpriced_runs), 0)::bigint AS unpriced_runs`
)

// costRow is a cost as the ledger has it: what is known, and of how many runs
// it is not all.
type costRow struct {
	Known    float64 `db:"cost_usd"`
	Unpriced int64   `db:"unpriced_runs"`
}

func (r costRow) cost() work.Cost { return work.NewCost(r.Known, r.Unpriced) }
