package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store/pg"
)

// Trial is what the units of a batch that were run first have cost.
type Trial struct {
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
func (s *Batches) GetTested(ctx context.Context, tenant string, id uuid.UUID) (b work.Batch, t Trial, err error) {
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
		return b, t, pg.Translate(fmt.Errorf("look at the trial of batch %s: %w", id, err))
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
