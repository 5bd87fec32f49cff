package store

import (
	"context"
	"fmt"
	"math"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// room is how many more units may be let go; a reason means that the batch is
// to be paused.
func (b *advancing) room(ctx context.Context, n admitted) (room int, why string, err error) {
	most := work.BatchWindow
	if b.Concurrency > 0 {
		most = min(most, b.Concurrency)
	}
	room = most - (n.Live - n.Asleep)
	full := room == 0
	if b.Status == work.BatchTesting {
		room = min(room, b.TestFirst-b.Released)
	}
	rule := b.Batch.StopWhen
	var known knownCosts
	if b.MaxCostUSD != nil || rule != nil && rule.MeanCostUSD != nil {
		if known, err = b.knownCosts(ctx); err != nil {
			return 0, "", err
		}
	}
	if rule != nil {
		if why, err = b.brokenRule(ctx, known); err != nil || why != "" {
			return 0, why, err
		}
	}
	if b.MaxCostUSD == nil {
		return room, "", nil
	}
	if full && n.Again == 0 && known.without+known.fresh == 0 {
		return room, "", nil // no run has ended since the last look
	}
	spent, err := b.spent(ctx)
	if err != nil {
		return 0, "", err
	}
	if spent.NotBegun > 0 || len(b.Synthesis) > 0 {
		if why := known.stop("max_cost_usd", spent.Priced); why != "" {
			return 0, why, nil
		}
	}
	text := work.Dollars(spent.Cost) + " is spent"
	if known.cut > 0 {
		spent.Cost += float64(known.cut) * spent.Dearest
		text = fmt.Sprintf("%s is spent, of which %d runs that were cut off count %s each", work.Dollars(spent.Cost), known.cut, work.Dollars(spent.Dearest))
	}
	left := exact(*b.MaxCostUSD - spent.Cost)
	paid := spent.affordable(left, n.Live)
	room = min(room, paid)
	if spent.NotBegun > 0 && (left <= 0 || paid <= 0 && n.Live == 0) {
		why = fmt.Sprintf("the budget of %s does not suffice for another unit: %s; resume it with a larger max_cost_usd, or cancel it",
			work.Dollars(*b.MaxCostUSD), text)
	}
	return room, why, nil
}

// exact is an amount in dollars without the noise of binary sums: ten times ten
// cents are not quite a dollar, and what is left of it is nothing.
func exact(usd float64) float64 { return math.Round(usd*1e9) / 1e9 }

// spent is what the units of a batch have cost, and what that tells of the others.
type spent struct {
	Cost     float64 `db:"cost"`      // USD, as far as it is known, with the syntheses'
	Priced   int     `db:"priced"`    // units that are over and tell what one costs
	Mean     float64 `db:"mean"`      // USD, of those
	Dearest  float64 `db:"dearest"`   // USD, of those
	NotBegun int     `db:"not_begun"` // queued units, held or not
	Patient  bool    `db:"patient"`   // what is held goes through the provider's batches
}

// spent looks at all units. A result that was taken from the cache, and a failure
// that cost nothing, tell nothing of the price of another unit.
func (b *advancing) spent(ctx context.Context) (s spent, err error) {
	err = b.tx.GetContext(ctx, &s, `SELECT coalesce(sum(cost_usd), 0) AS cost, count(*) FILTER (WHERE tells) AS priced,
			coalesce(avg(cost_usd) FILTER (WHERE tells), 0) AS mean, coalesce(max(cost_usd) FILTER (WHERE tells), 0) AS dearest,
			count(*) FILTER (WHERE state = 'queued') AS not_begun,
			coalesce(bool_and(lane = 'batch' AND NOT runs_live) FILTER (WHERE held AND state = 'queued'), false) AS patient
		FROM (SELECT state, held, lane, runs_live, cost_usd, finished_at IS NOT NULL AND `+tellsPrice+` AS tells FROM work_units WHERE batch_id = $1) AS u`, b.ID)
	if err != nil {
		return s, err
	}
	syntheses, err := costOfSyntheses(ctx, b.tx, b.ID)
	s.Cost += syntheses.Known()
	return s, err
}

// tellsPrice holds for a unit that is over if its cost tells what another costs.
const tellsPrice = `(cache IS DISTINCT FROM 'hit' AND unpriced_runs = 0 AND (state = 'succeeded' OR cost_usd > 0))`

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

// knownCosts tells how far the costs of a batch's runs are known.
type knownCosts struct {
	cut     int       // runs that were lost or cut off before their cost was known
	fresh   int       // of those: since a person last let the batch go on
	without int       // runs that ended since then and have no cost: their model has no price
	unit    uuid.UUID // the first of these
	model   string    // of that unit's run
}

func (b *advancing) knownCosts(ctx context.Context) (k knownCosts, err error) {
	var rows []struct {
		Unit  uuid.UUID `db:"unit_id"`
		Model string    `db:"model"`
		Cut   bool      `db:"cut"`
		Fresh bool      `db:"fresh"`
	}
	err = b.tx.SelectContext(ctx, &rows, `SELECT r.unit_id, coalesce(r.model, '') AS model, r.cost_incomplete OR r.total_cost_usd IS NOT NULL AS cut,
			r.completed_at > coalesce(b.resumed_at, '-infinity') AS fresh
		FROM work_units u JOIN worker_runs r ON r.unit_id = u.id JOIN batches b ON b.id = u.batch_id
		WHERE u.batch_id = $1 AND u.unpriced_runs > 0 AND r.status <> 'running' AND `+unpriced("r")+` ORDER BY r.id`, b.ID)
	for _, r := range rows {
		switch {
		case r.Cut:
			k.cut++
			if r.Fresh {
				k.fresh++
			}
		case r.Fresh:
			if k.without++; k.without == 1 {
				k.unit, k.model = r.Unit, r.Model
			}
		}
	}
	return k, err
}

// maxCut is how many runs may be cut off before the cost of one is known.
const maxCut = 3

// stop tells why a limit on costs cannot be kept; empty: it can. A run without a
// cost is reason enough. One that was lost or cut off is like others of which the
// cost is known, if there are any.
func (k knownCosts) stop(limit string, priced int) string {
	switch {
	case k.without > 0:
		model := "its model"
		if k.model != "" {
			model = "the model " + k.model
		}
		return fmt.Sprintf("%s cannot be kept: what a run of unit %s has cost is not known, for %s has no price; "+
			"give it one (--prices or --unknown-price of the worker processes) and resume the batch, or cancel it", limit, k.unit, model)
	case priced == 0 && k.fresh >= maxCut:
		return fmt.Sprintf("%s cannot be kept: %d runs were cut off before their cost was known, and it is known of no other; resume the batch, or cancel it", limit, k.cut)
	}
	return ""
}

// brokenRule tells which of the batch's stop_when does not hold any more for
// the units that finished last, since a person let the batch go on.
func (b *advancing) brokenRule(ctx context.Context, known knownCosts) (string, error) {
	rule := b.Batch.StopWhen
	var last struct {
		Count    int     `db:"count"`
		Failed   int     `db:"failed"`
		Refused  int     `db:"refused"`
		Denied   int     `db:"denied"`
		Priced   int     `db:"priced"`
		MeanCost float64 `db:"mean_cost"`
	}
	err := b.tx.GetContext(ctx, &last, `SELECT count(*), count(*) FILTER (WHERE state IN ('failed', 'timed_out')) AS failed,
			count(*) FILTER (WHERE error_class = 'refusal') AS refused, count(*) FILTER (WHERE denials > 0) AS denied, count(*) FILTER (WHERE `+tellsPrice+`) AS priced,
			coalesce(avg(cost_usd) FILTER (WHERE cache IS DISTINCT FROM 'hit'), 0) AS mean_cost
		FROM (SELECT state, error_class, denials, cost_usd, cache, unpriced_runs FROM work_units WHERE batch_id = $1 AND state IN ('succeeded', 'failed', 'timed_out')
			AND finished_at > coalesce((SELECT resumed_at FROM batches WHERE id = $1), '-infinity')
			ORDER BY finished_at DESC LIMIT $2) AS u`, b.ID, rule.Window)
	if err != nil {
		return "", err
	}
	if rule.MeanCostUSD != nil {
		var left bool
		err = b.tx.GetContext(ctx, &left, `SELECT EXISTS (SELECT FROM work_units WHERE batch_id = $1 AND state = 'queued')`, b.ID)
		if err != nil {
			return "", err
		}
		if why := known.stop("mean_cost_usd of stop_when", last.Priced); left && why != "" {
			return why, nil
		}
	}
	if last.Count < rule.Window {
		return "", nil
	}
	over := func(limit *float64, value float64) bool { return limit != nil && value > *limit }
	switch n := float64(last.Count); {
	case over(rule.FailureRate, float64(last.Failed)/n):
		return fmt.Sprintf("%d of the last %d units failed; stop_when allows a failure_rate of %v", last.Failed, last.Count, *rule.FailureRate), nil
	case over(rule.RefusalRate, float64(last.Refused)/n):
		return fmt.Sprintf("the model declined %d of the last %d units; stop_when allows a refusal_rate of %v", last.Refused, last.Count, *rule.RefusalRate), nil
	case over(rule.DenialRate, float64(last.Denied)/n):
		return fmt.Sprintf("a tool was denied in %d of the last %d units; stop_when allows a denial_rate of %v", last.Denied, last.Count, *rule.DenialRate), nil
	case over(rule.MeanCostUSD, last.MeanCost):
		return fmt.Sprintf("the last %d units cost %s each; stop_when allows a mean_cost_usd of %v", last.Count, work.Dollars(last.MeanCost), *rule.MeanCostUSD), nil
	}
	return "", nil
}

// Tested is what the units of a batch that were run first have cost.
type Tested struct {
	Finished  int
	Succeeded int
	Cost      *Spread // USD, of those that tell what another costs; nil when that is not known
	Time      Spread  // seconds from start to end
	Left      int     // units that have not begun
}

// Spread is how N values lie: their mean and their variance.
type Spread struct {
	N              int
	Mean, Variance float64
}

// with is the spread of the values of both.
func (s Spread) with(o Spread) Spread {
	n := s.N + o.N
	if n < 2 {
		return Spread{N: n, Mean: s.Mean + o.Mean} // the one that there is
	}
	off, share := o.Mean-s.Mean, float64(o.N)/float64(n)
	squares := s.Variance*float64(max(s.N-1, 0)) + o.Variance*float64(max(o.N-1, 0)) + off*off*float64(s.N)*share
	return Spread{n, s.Mean + off*share, squares / float64(n-1)}
}

// GetTested returns one batch with what its units have come to, and what to
// expect of the rest, from one look at the units. There is no rest of a batch
// that is over.
func (s *Batches) GetTested(ctx context.Context, tenant string, id uuid.UUID) (b work.Batch, t Tested, err error) {
	ctx = pg.Allow(ctx, pg.LongLimit)
	row, err := s.row(ctx, tenant, id)
	if err != nil {
		return b, t, err
	}
	if b, err = row.batch(); err != nil || row.Counts != nil {
		return b, t, err
	}
	var rows []struct {
		State work.State `db:"state"`
		Count int        `db:"count"`
		costRow
		Done     int     `db:"done"`
		Priced   int     `db:"priced"`
		Dark     int     `db:"dark"` // nothing is known of their cost
		MeanCost float64 `db:"mean_cost"`
		CostVar  float64 `db:"cost_var"`
		MeanTime float64 `db:"mean_time"`
		TimeVar  float64 `db:"time_var"`
	}
	err = s.db.SelectContext(ctx, &rows, `SELECT state, count(*), `+sumOfCosts+`, count(took) AS done, count(*) FILTER (WHERE tells) AS priced,
			count(*) FILTER (WHERE took IS NOT NULL AND unpriced_runs > 0 AND cost_usd = 0) AS dark,
			coalesce(avg(cost_usd) FILTER (WHERE tells), 0) AS mean_cost, coalesce(var_samp(cost_usd) FILTER (WHERE tells), 0) AS cost_var,
			coalesce(avg(took), 0) AS mean_time, coalesce(var_samp(took), 0) AS time_var
		FROM (SELECT state, cost_usd, unpriced_runs, date_part('epoch', finished_at - started_at) AS took,
				finished_at IS NOT NULL AND started_at IS NOT NULL AND `+tellsPrice+` AS tells FROM work_units WHERE batch_id = $1) AS u GROUP BY state`, id)
	if err != nil {
		return b, t, pg.Translate(fmt.Errorf("look at the test of batch %s: %w", id, err))
	}
	var cost Spread
	dark := 0
	for _, r := range rows {
		b.Counts.Add(r.State, r.Count)
		b.Counts.Cost = b.Counts.Plus(r.cost())
		dark += r.Dark
		cost = cost.with(Spread{r.Priced, r.MeanCost, r.CostVar})
		t.Time = t.Time.with(Spread{r.Done, r.MeanTime, r.TimeVar})
	}
	syntheses, err := costOfSyntheses(ctx, s.db, id)
	if err != nil {
		return b, t, err
	}
	b.Counts.Cost = b.Counts.Plus(syntheses)
	if cost.N > 0 && dark == 0 {
		t.Cost = &cost
	}
	t.Finished, t.Succeeded, t.Left = t.Time.N, b.Counts.Succeeded, b.Counts.Queued
	return b, t, nil
}
