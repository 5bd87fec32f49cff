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

	"piecework/api/web"
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
		"approve": {web.AskApprove, web.Batch.CanApprove, a.approveByForm, "approved"},
		"cancel":  {web.AskCancelBatch, web.Batch.CanCancel, a.cancelByForm, "cancelled"},
		"pause":   {web.AskPauseBatch, web.Batch.CanPause, a.pauseByForm, "paused"},
		"resume":  {web.AskResumeBatch, web.Batch.CanResume, a.resumeByForm, "resumed"},
		"retry":   {web.AskRetryBatch, web.Batch.CanRetry, a.retryByForm, "retried"},
	} {
		a.echo.GET("/batch-list/:id/"+verb, a.askBatch(deed))
		a.echo.POST("/batch-list/:id/"+verb, a.batchForm(deed))
	}
}

// batchDeed is one thing that people do to a batch.
type batchDeed struct {
	ask  func(web.Batch) web.Ask
	can  func(web.Batch) bool
	do   func(ctx context.Context, id ByID, form url.Values) (wrong string, err error)
	done string // as doneParameter has it
}

func (a *API) askBatch(deed batchDeed) echo.HandlerFunc {
	return func(c echo.Context) error {
		page, err := a.batchOf(c)
		if err != nil {
			return err
		}
		if !deed.can(page) {
			why := fmt.Sprintf("It is %s.", strings.ReplaceAll(string(page.Status), "_", " "))
			return a.ask(c, http.StatusConflict, web.Ask{Title: "That is not possible", Error: why, Back: page.Path()})
		}
		return a.ask(c, http.StatusOK, deed.ask(page))
	}
}

func (a *API) batchForm(deed batchDeed) echo.HandlerFunc {
	return func(c echo.Context) error {
		id, err := parseID(c.Param("id"))
		if err != nil {
			return err
		}
		values, err := a.form(c)
		if err != nil {
			return err
		}
		wrong, err := deed.do(c.Request().Context(), ByID{id.String()}, values)
		if wrong != "" {
			page, err := a.batchOf(c)
			if err != nil {
				return err
			}
			return a.ask(c, http.StatusUnprocessableEntity, deed.ask(page).Typed(values, wrong))
		}
		return a.acted(c, web.BatchPath(id), deed.done, err)
	}
}

func (a *API) approveByForm(ctx context.Context, id ByID, form url.Values) (string, error) {
	changes, wrong := batchChangesOf(form)
	if wrong != "" {
		return wrong, nil
	}
	_, err := a.approveBatch(ctx, &changeBatchInput{id, changes})
	return "", err
}

func (a *API) resumeByForm(ctx context.Context, id ByID, form url.Values) (string, error) {
	changes, wrong := batchChangesOf(form)
	if wrong != "" {
		return wrong, nil
	}
	_, err := a.resumeBatch(ctx, &changeBatchInput{id, changes})
	return "", err
}

func (a *API) pauseByForm(ctx context.Context, id ByID, form url.Values) (string, error) {
	by, _ := work.Cut(form.Get("by"), 200)
	why, _ := work.Cut(form.Get("why"), 1000)
	_, err := a.pauseBatch(ctx, &pauseBatchInput{id, &newPause{By: by, Why: why}})
	return "", err
}

func (a *API) cancelByForm(ctx context.Context, id ByID, form url.Values) (string, error) {
	why, _ := work.Cut(form.Get("why"), 1000)
	_, err := a.cancelBatch(ctx, &cancelBatchInput{id, &batchReason{Why: why}})
	return "", err
}

func (a *API) retryByForm(ctx context.Context, id ByID, _ url.Values) (string, error) {
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
func (a *API) noticeOfBatch(ctx context.Context, verb, back string) (*web.Notice, error) {
	id, err := parseID(strings.TrimPrefix(back, "/batch-list/"))
	if err != nil {
		return nil, err
	}
	b, err := a.Store.Batches.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	page := web.Batch{Batch: b}
	n := &web.Notice{Close: page.Path()}
	switch {
	case verb == "approved" && page.CanPause():
		n.Text, n.Undo = "It is approved: the rest of its units run.", &web.Deed{Action: page.To("pause"), Verb: "Pause it"}
	case verb == "approved":
		n.Text = "It is approved."
	case verb == "paused" && page.CanResume():
		n.Text, n.Undo = "It is paused. Units that run go on to their end.", &web.Deed{Action: page.To("resume"), Verb: "Resume it"}
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
	page := web.Batches{Search: search, Status: c.QueryParam("status"), After: c.QueryParam("after")}
	f := store.BatchFilter{Tenant: work.DefaultTenant, Search: search, Limit: pageBatches}
	var err error
	if f.Statuses, err = parseStates(page.Status, work.BatchStatuses); err != nil {
		return err
	}
	if f.After, err = parseAfter(page.After); err != nil {
		return err
	}
	batches, next, err := a.Store.Batches.List(ctx, f)
	if err != nil {
		return err
	}
	f.Statuses = nil
	counts, err := a.Store.Batches.Count(ctx, f, maxCounts)
	if err != nil {
		return err
	}
	page.Pills = page.Choices(counts, maxCounts)
	if next != nil {
		page.Next = next.String()
	}
	now := time.Now()
	for _, b := range batches {
		page.Batches = append(page.Batches, web.Batch{Batch: b, Now: now})
	}
	if c.Request().Header.Get(partHeader) == "batches" {
		return a.render(c, page.Part())
	}
	return a.render(c, page)
}

func (a *API) batchPage(c echo.Context) error {
	if c.Request().Header.Get(partHeader) == "batch" {
		id, err := parseID(c.Param("id"))
		if err != nil {
			return err
		}
		page, err := a.kept.of(id, func() (web.Batch, error) { return a.batchOf(c) })
		if err != nil {
			return err
		}
		return a.render(c, page.Part())
	}
	page, err := a.batchOf(c)
	if err != nil {
		return err
	}
	if page.Notice, err = a.notice(c.Request().Context(), c.QueryParam("done"), page.Path()); err != nil {
		return err
	}
	return a.render(c, page)
}

// batchOf is the batch of a path as its page has it.
func (a *API) batchOf(c echo.Context) (web.Batch, error) {
	ctx := c.Request().Context()
	id, err := parseID(c.Param("id"))
	if err != nil {
		return web.Batch{}, err
	}
	b, t, err := a.Store.Batches.GetTested(ctx, work.DefaultTenant, id)
	if err != nil {
		return web.Batch{}, err
	}
	page := web.Batch{Batch: b, Now: time.Now()}
	if page.Forecast, err = a.expected(ctx, b, t); err != nil {
		return page, err
	}
	if b.Status == work.BatchTesting || b.Status == work.BatchInProgress {
		pace, err := a.Store.Batches.Pace(ctx, work.DefaultTenant, id, paceTime)
		if err != nil {
			return page, err
		}
		if pace.Seconds >= paceLeast.Seconds() {
			page.PerSecond = float64(pace.Finished) / pace.Seconds
		}
	}
	if page.Bad() == 0 {
		return page, nil
	}
	groups, err := a.Store.Batches.Failures(ctx, id, maxFailures)
	if err != nil {
		return page, err
	}
	for _, g := range groups {
		page.Failures = append(page.Failures, web.Failure{Class: g.Class, Count: g.Count, Cost: g.Cost, Message: g.Message})
	}
	if page.Bad() > maxFailures {
		page.FailedOf = maxFailures
	}
	return page, nil
}

// expected is what the rest of a batch will probably take: what an approval is
// asked for, and later what is left to pay.
func (a *API) expected(ctx context.Context, b work.Batch, t store.Tested) (*web.Forecast, error) {
	view, err := a.viewBatch(ctx, b, t)
	if err != nil {
		return nil, err
	}
	asRange := func(e expectation) web.Range { return web.Range(e) }
	asCost := func(e *expectation) *web.Range { return (*web.Range)(e) }
	if f := view.Forecast; f != nil {
		return &web.Forecast{Trial: f.Trial, Succeeded: f.Succeeded, Left: f.Left,
			CostUSD: asCost(f.CostUSD), RunTime: asRange(f.RunTime), Elapsed: asRange(f.Elapsed)}, nil
	}
	if b.Status != work.BatchInProgress || t.Finished < leastTrial {
		return nil, nil
	}
	left := b.Counts.Total - b.Counts.Finished()
	return &web.Forecast{Trial: t.Finished, Succeeded: t.Succeeded, Left: left, CostUSD: asCost(expectCost(left, t))}, nil
}
