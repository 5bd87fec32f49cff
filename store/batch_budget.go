package store

import (
	"context"
	"fmt"
	"math"

	"piecework/internal/work"
)

// room is how many more units may be let go; a reason means that the batch is
// to be paused.
func (b *advancing) room(ctx context.Context, live, asleep int) (room int, why string, err error) {
	most := work.BatchWindow
	if b.Concurrency > 0 {
		most = min(most, b.Concurrency)
	}
	room = most - (live - asleep)
	if b.Status == work.BatchTesting {
		room = min(room, b.TestFirst-b.Released)
	}
	if b.Batch.StopWhen != nil {
		if why, err = b.brokenRule(ctx); err != nil || why != "" {
			return 0, why, err
		}
	}
	if b.MaxCostUSD == nil || room <= 0 {
		return room, "", err
	}
	spent, err := b.spent(ctx)
	if err != nil {
		return 0, "", err
	}
	left := *b.MaxCostUSD - spent.Cost
	room = min(room, spent.affordable(left, live))
	switch {
	case left <= 0 && spent.NotBegun > 0:
		why = fmt.Sprintf("the budget of $%.2f is spent: its units have cost $%.2f; resume it with a larger max_cost_usd, or cancel it", *b.MaxCostUSD, spent.Cost)
	case room <= 0 && live == 0 && spent.NotBegun > 0:
		why = fmt.Sprintf("the budget of $%.2f does not suffice for another unit: $%.2f is spent; resume it with a larger max_cost_usd, or cancel it",
			*b.MaxCostUSD, spent.Cost)
	}
	return room, why, nil
}

// spent is what the units of a batch have cost, and what that tells of the others.
type spent struct {
	Cost     float64 `db:"cost"`      // USD, with the syntheses'
	Priced   int     `db:"priced"`    // units that are over and tell what one costs
	Mean     float64 `db:"mean"`      // USD, of those
	NotBegun int     `db:"not_begun"` // queued units, held or not
	Patient  bool    `db:"patient"`   // what is held goes through the provider's batches
}

// spent looks at all units. A result that was taken from the cache, and a failure
// that cost nothing, tell nothing of the price of another unit.
func (b *advancing) spent(ctx context.Context) (s spent, err error) {
	err = b.tx.GetContext(ctx, &s, `SELECT coalesce(sum(cost_usd), 0) + (`+costOfSyntheses+`) AS cost,
			count(*) FILTER (WHERE tells) AS priced, coalesce(avg(cost_usd) FILTER (WHERE tells), 0) AS mean,
			count(*) FILTER (WHERE state = 'queued') AS not_begun,
			coalesce(bool_and(lane = 'batch' AND NOT runs_live) FILTER (WHERE held AND state = 'queued'), false) AS patient
		FROM (SELECT state, held, lane, runs_live, cost_usd,
				finished_at IS NOT NULL AND cache IS DISTINCT FROM 'hit' AND (state = 'succeeded' OR cost_usd > 0) AS tells
			FROM work_units WHERE batch_id = $1) AS u`, b.ID)
	return s, err
}

// affordable is how many units may begin besides those that are at work, when
// so much money is left. What a unit costs is known from those that are over;
// as long as few are, few begin. Patient units may wait a day for their answers:
// they do not begin by and by.
func (s spent) affordable(left float64, live int) int {
	known := max(1, 2*s.Priced) - live
	if s.Priced == 0 || s.Mean == 0 {
		return known
	}
	paid := int(math.Min(math.Floor(left/s.Mean+1e-9)-float64(live), work.BatchWindow))
	if s.Patient {
		return paid
	}
	return min(known, paid)
}

// brokenRule tells which of the batch's stop_when does not hold any more for
// the units that finished last, since a person let the batch go on.
func (b *advancing) brokenRule(ctx context.Context) (string, error) {
	rule := b.Batch.StopWhen
	var last struct {
		Count    int     `db:"count"`
		Failed   int     `db:"failed"`
		Refused  int     `db:"refused"`
		MeanCost float64 `db:"mean_cost"`
	}
	err := b.tx.GetContext(ctx, &last, `SELECT count(*), count(*) FILTER (WHERE state IN ('failed', 'timed_out')) AS failed,
			count(*) FILTER (WHERE error_class = 'refusal') AS refused, coalesce(avg(cost_usd), 0) AS mean_cost
		FROM (SELECT state, error_class, cost_usd FROM work_units WHERE batch_id = $1 AND state IN ('succeeded', 'failed', 'timed_out')
			AND finished_at > coalesce((SELECT resumed_at FROM batches WHERE id = $1), '-infinity')
			ORDER BY finished_at DESC LIMIT $2) AS u`, b.ID, rule.Window)
	if err != nil || last.Count < rule.Window {
		return "", err
	}
	over := func(limit *float64, value float64) bool { return limit != nil && value > *limit }
	switch n := float64(last.Count); {
	case over(rule.FailureRate, float64(last.Failed)/n):
		return fmt.Sprintf("%d of the last %d units failed; stop_when allows a failure_rate of %v", last.Failed, last.Count, *rule.FailureRate), nil
	case over(rule.RefusalRate, float64(last.Refused)/n):
		return fmt.Sprintf("the model declined %d of the last %d units; stop_when allows a refusal_rate of %v", last.Refused, last.Count, *rule.RefusalRate), nil
	case over(rule.MeanCostUSD, last.MeanCost):
		return fmt.Sprintf("the last %d units cost $%.4f each; stop_when allows a mean_cost_usd of %v", last.Count, last.MeanCost, *rule.MeanCostUSD), nil
	}
	return "", nil
}
