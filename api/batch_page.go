package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
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

// batchActions are what people do to batches, as actions are to units.
func (a *API) batchActions() {
	for verb, deed := range map[string]batchDeed{
		"approve": {page.AskApprove, page.Batch.CanApprove, a.approveByForm, "approved"},
		"cancel":  {page.AskCancelBatch, page.Batch.CanCancel, a.cancelByForm, "cancelled"},
		"pause":   {page.AskPauseBatch, page.Batch.CanPause, a.pauseByForm, "paused"},
		"resume":  {page.AskResumeBatch, page.Batch.CanResume, a.resumeByForm, "resumed"},
		"retry":   {page.AskRetryBatch, page.Batch.CanRetry, a.retryByForm, "retried"},
	} {
		a.echo.GET("/batch-list/:id/"+verb, a.askBatch(deed))
		a.echo.POST("/batch-list/:id/"+verb, a.batchForm(deed))
	}
}

// batchDeed is one thing that people do to a batch.
type batchDeed struct {
	ask  func(page.Batch) page.Ask
	can  func(page.Batch) bool
	do   func(ctx context.Context, id query.ByID, form url.Values) (wrong string, err error)
	done string // as doneParameter has it
}

func (a *API) askBatch(deed batchDeed) echo.HandlerFunc {
	return func(c echo.Context) error {
		shown, err := a.batchOf(c)
		if err != nil {
			return err
		}
		if !deed.can(shown) {
			why := fmt.Sprintf("It is %s.", strings.ReplaceAll(string(shown.Status), "_", " "))
			return a.ask(c, http.StatusConflict, page.Ask{Title: "That is not possible", Error: why, Back: shown.Path()})
		}
		return a.ask(c, http.StatusOK, deed.ask(shown))
	}
}

func (a *API) batchForm(deed batchDeed) echo.HandlerFunc {
	return func(c echo.Context) error {
		id, err := query.ID(c.Param("id"))
		if err != nil {
			return err
		}
		values, err := a.form(c)
		if err != nil {
			return err
		}
		wrong, err := deed.do(c.Request().Context(), query.ByID{ID: id.String()}, values)
		if wrong != "" {
			shown, err := a.batchOf(c)
			if err != nil {
				return err
			}
			return a.ask(c, http.StatusUnprocessableEntity, deed.ask(shown).Typed(values, wrong))
		}
		return a.acted(c, page.BatchPath(id), deed.done, err)
	}
}

func (a *API) approveByForm(ctx context.Context, id query.ByID, form url.Values) (string, error) {
	changes, wrong := batchChangesOf(form)
	if wrong != "" {
		return wrong, nil
	}
	_, err := a.approveBatch(ctx, &changeBatchInput{id, changes})
	return "", err
}

func (a *API) resumeByForm(ctx context.Context, id query.ByID, form url.Values) (string, error) {
	changes, wrong := batchChangesOf(form)
	if wrong != "" {
		return wrong, nil
	}
	_, err := a.resumeBatch(ctx, &changeBatchInput{id, changes})
	return "", err
}

func (a *API) pauseByForm(ctx context.Context, id query.ByID, form url.Values) (string, error) {
	by, _ := work.Cut(form.Get("by"), 200)
	why, _ := work.Cut(form.Get("why"), 1000)
	_, err := a.pauseBatch(ctx, &pauseBatchInput{id, &ops.NewPause{By: by, Why: why}})
	return "", err
}

func (a *API) cancelByForm(ctx context.Context, id query.ByID, form url.Values) (string, error) {
	why, _ := work.Cut(form.Get("why"), 1000)
	_, err := a.cancelBatch(ctx, &cancelBatchInput{id, &batchReason{Why: why}})
	return "", err
}

func (a *API) retryByForm(ctx context.Context, id query.ByID, _ url.Values) (string, error) {
	_, err := a.retryBatch(ctx, &retryBatchInput{id, nil})
	return "", err
}

// batchChangesOf reads what a form changes about a batch. A field that is empty
// changes nothing.
func batchChangesOf(form url.Values) (c *batchChanges, wrong string) {
	c = &batchChanges{}
	if text := strings.TrimSpace(form.Get("max_cost_usd")); text != "" {
		budget, err := strconv.ParseFloat(strings.TrimPrefix(text, "$"), 64)
		if err != nil || !(budget > 0 && budget <= 1e9) {
			return nil, "The cost must be a number above 0, such as 12.50."
		}
		c.MaxCostUSD = &budget
	}
	if text := strings.TrimSpace(form.Get("concurrency")); text != "" {
		most, err := strconv.Atoi(text)
		if err != nil || most < 1 || most > math.MaxInt32 {
			return nil, "The units at once must be a whole number from 1 on."
		}
		c.Concurrency = &most
	}
	return c, ""
}

// noticeOfBatch tells what was done to the batch of a page.
func (a *API) noticeOfBatch(ctx context.Context, verb, back string) (*page.Notice, error) {
	id, err := query.ID(strings.TrimPrefix(back, "/batch-list/"))
	if err != nil {
		return nil, err
	}
	b, err := a.Store.Batch(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	shown := page.Batch{Batch: b}
	n := &page.Notice{Close: shown.Path()}
	switch {
	case verb == "approved" && shown.CanPause():
		n.Text, n.Undo = "It is approved: the rest of its units run.", &page.Deed{Action: shown.To("pause"), Verb: "Pause it"}
	case verb == "approved":
		n.Text = "It is approved."
	case verb == "paused" && shown.CanResume():
		n.Text, n.Undo = "It is paused. Units that run go on to their end.", &page.Deed{Action: shown.To("resume"), Verb: "Resume it"}
	case verb == "resumed" && b.Paused == nil:
		n.Text = "It goes on."
	case verb == "cancelled" && b.Status == work.BatchCancelling:
		n.Text = "It is being cancelled. What its units have done so far is kept."
	case verb == "cancelled" && b.Status == work.BatchCancelled:
		n.Text = "It is cancelled."
	case verb == "cancelled":
		n.Text = "It ended before it could be cancelled."
	case verb == "retried":
		n.Text = "The units that had not succeeded went back into the queue."
	default:
		return nil, nil
	}
	return n, nil
}

func (a *API) batchesPage(c echo.Context) error {
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
	batches, next, err := a.Store.Batches(ctx, f)
	if err != nil {
		return err
	}
	f.Statuses = nil
	counts, err := a.Store.CountBatches(ctx, f, ops.MaxCounts)
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

func (a *API) batchPage(c echo.Context) error {
	if c.Request().Header.Get(partHeader) == "batch" {
		id, err := query.ID(c.Param("id"))
		if err != nil {
			return err
		}
		shown, err := a.kept.of(id, func() (page.Batch, error) { return a.batchOf(c) })
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
func (a *API) batchOf(c echo.Context) (page.Batch, error) {
	ctx := c.Request().Context()
	id, err := query.ID(c.Param("id"))
	if err != nil {
		return page.Batch{}, err
	}
	b, t, err := a.Store.TriedBatch(ctx, work.DefaultTenant, id)
	if err != nil {
		return page.Batch{}, err
	}
	shown := page.Batch{Batch: b, Now: time.Now()}
	if shown.Forecast, err = a.expected(ctx, b, t); err != nil {
		return shown, err
	}
	if b.Status == work.BatchTesting || b.Status == work.BatchInProgress {
		pace, err := a.Store.BatchPace(ctx, work.DefaultTenant, id, paceTime)
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
	groups, err := a.Store.BatchFailures(ctx, id, maxFailures)
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
func (a *API) expected(ctx context.Context, b work.Batch, t store.Trial) (*page.Forecast, error) {
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
