package web

import (
	"context"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"piecework/api/ops"
	"piecework/api/query"
	"piecework/api/view"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/store"
)

// What the pages of batches show at most.
const (
	pageBatches = 25
	maxFailures = 10_000           // failed units of a batch that are grouped
	paceTime    = 5 * time.Minute  // that the rate looks back
	paceLeast   = 10 * time.Second // before there is a rate
	leastTrial  = 3                // units that are over before the rest is foretold
)

// batches are the pages of batches.
type batches struct {
	*site
	cache batchCache
}

func (a *batches) batchesPage(c echo.Context) error {
	ctx := c.Request().Context()
	search, _ := work.Cut(strings.TrimSpace(c.QueryParam("q")), maxSearch)
	shown := page.Batches{Search: search, Status: c.QueryParam("status"), After: c.QueryParam("after")}
	f := store.BatchFilter{Tenant: work.DefaultTenant, Search: search, Limit: pageBatches}
	var err error
	if f.Statuses, err = query.States(shown.Status, work.BatchStatuses); err != nil {
		return err
	}
	if f.After, err = query.After(shown.After); err != nil {
		return err
	}
	batches, next, err := a.Store.Batches.List(ctx, f)
	if err != nil {
		return err
	}
	f.Statuses = nil
	counts, err := a.Store.Batches.Count(ctx, f, ops.MaxCounts)
	if err != nil {
		return err
	}
	shown.Pills = shown.Choices(counts, ops.MaxCounts)
	if next != nil {
		shown.Next = next.String()
	}
	now := time.Now()
	for _, b := range batches {
		shown.Batches = append(shown.Batches, page.Batch{Batch: b, Now: now})
	}
	if c.Request().Header.Get(partHeader) == "batches" {
		return a.render(c, shown.Part())
	}
	return a.render(c, shown)
}

func (a *batches) batchPage(c echo.Context) error {
	if c.Request().Header.Get(partHeader) == "batch" {
		id, err := query.ID(c.Param("id"))
		if err != nil {
			return err
		}
		shown, err := a.cache.of(id, func() (page.Batch, error) { return a.batchOf(c) })
		if err != nil {
			return err
		}
		return a.render(c, shown.Part())
	}
	shown, err := a.batchOf(c)
	if err != nil {
		return err
	}
	if shown.Notice, err = a.notice(c.Request().Context(), c.QueryParam("done"), shown.Path()); err != nil {
		return err
	}
	return a.render(c, shown)
}

// batchOf is the batch of a path as its page has it.
func (a *batches) batchOf(c echo.Context) (page.Batch, error) {
	ctx := c.Request().Context()
	id, err := query.ID(c.Param("id"))
	if err != nil {
		return page.Batch{}, err
	}
	b, t, err := a.Store.Batches.GetTested(ctx, work.DefaultTenant, id)
	if err != nil {
		return page.Batch{}, err
	}
	shown := page.Batch{Batch: b, Now: time.Now()}
	if shown.Forecast, err = a.expected(ctx, b, t); err != nil {
		return shown, err
	}
	if b.Status == work.BatchTesting || b.Status == work.BatchInProgress {
		pace, err := a.Store.Batches.Pace(ctx, work.DefaultTenant, id, paceTime)
		if err != nil {
			return shown, err
		}
		if pace.Seconds >= paceLeast.Seconds() {
			shown.PerSecond = float64(pace.Finished) / pace.Seconds
		}
	}
	if shown.Bad() == 0 {
		return shown, nil
	}
	groups, err := a.Store.Batches.Failures(ctx, id, maxFailures)
	if err != nil {
		return shown, err
	}
	for _, g := range groups {
		shown.Failures = append(shown.Failures, page.Failure{Class: g.Class, Count: g.Count, Cost: g.Cost, Message: g.Message})
	}
	if shown.Bad() > maxFailures {
		shown.FailedOf = maxFailures
	}
	return shown, nil
}

// expected is what the rest of a batch will probably take: what an approval is
// asked for, and later what is left to pay.
func (a *batches) expected(ctx context.Context, b work.Batch, t store.Tested) (*page.Forecast, error) {
	f, err := view.ForecastOf(ctx, a.Store, b, t)
	if err != nil {
		return nil, err
	}
	asRange := func(e view.Expectation) page.Range { return page.Range(e) }
	asCost := func(e *view.Expectation) *page.Range { return (*page.Range)(e) }
	if f != nil {
		return &page.Forecast{Trial: f.Trial, Succeeded: f.Succeeded, Left: f.Left,
			CostUSD: asCost(f.CostUSD), RunTime: asRange(f.RunTime), Elapsed: asRange(f.Elapsed)}, nil
	}
	if b.Status != work.BatchInProgress || t.Finished < leastTrial {
		return nil, nil
	}
	left := b.Counts.Total - b.Counts.Finished()
	return &page.Forecast{Trial: t.Finished, Succeeded: t.Succeeded, Left: left, CostUSD: asCost(view.ExpectCost(left, t))}, nil
}
