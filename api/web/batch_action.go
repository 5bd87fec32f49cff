package web

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/query"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/store"
)

// mountActions adds what people do to batches.
func (a *batches) mountActions(e *echo.Echo) {
	for verb, action := range map[string]batchAction{
		"approve": {page.AskApprove, page.Batch.CanApprove, a.approveByForm, "approved"},
		"cancel":  {page.AskCancelBatch, page.Batch.CanCancel, a.cancelByForm, "cancelled"},
		"pause":   {page.AskPauseBatch, page.Batch.CanPause, a.pauseByForm, "paused"},
		"resume":  {page.AskResumeBatch, page.Batch.CanResume, a.resumeByForm, "resumed"},
		"retry":   {page.AskRetryBatch, page.Batch.CanRetry, a.retryByForm, "retried"},
	} {
		e.GET("/batch-list/:id/"+verb, a.askBatch(action))
		e.POST("/batch-list/:id/"+verb, a.batchForm(action))
	}
}

// batchAction is one thing that people do to a batch.
type batchAction struct {
	ask  func(page.Batch) page.Ask
	can  func(page.Batch) bool
	do   func(ctx context.Context, id uuid.UUID, form url.Values) (wrong string, err error)
	done string // as doneParameter has it
}

func (a *batches) askBatch(action batchAction) echo.HandlerFunc {
	return func(c echo.Context) error {
		shown, err := a.batchOf(c)
		if err != nil {
			return err
		}
		if !action.can(shown) {
			why := fmt.Sprintf("It is %s.", strings.ReplaceAll(string(shown.Status), "_", " "))
			return a.ask(c, http.StatusConflict, page.Ask{Title: "That is not possible", Error: why, Back: shown.Path()})
		}
		return a.ask(c, http.StatusOK, action.ask(shown))
	}
}

func (a *batches) batchForm(action batchAction) echo.HandlerFunc {
	return func(c echo.Context) error {
		id, err := query.ID(c.Param("id"))
		if err != nil {
			return err
		}
		values, err := a.form(c)
		if err != nil {
			return err
		}
		wrong, err := action.do(c.Request().Context(), id, values)
		if wrong != "" {
			shown, err := a.batchOf(c)
			if err != nil {
				return err
			}
			return a.ask(c, http.StatusUnprocessableEntity, action.ask(shown).Typed(values, wrong))
		}
		return a.acted(c, page.BatchPath(id), action.done, err)
	}
}

func (a *batches) approveByForm(ctx context.Context, id uuid.UUID, form url.Values) (string, error) {
	changes, wrong := batchChangesOf(form)
	if wrong != "" {
		return wrong, nil
	}
	return "", a.Control.ApproveBatch(ctx, work.DefaultTenant, id, changes)
}

func (a *batches) resumeByForm(ctx context.Context, id uuid.UUID, form url.Values) (string, error) {
	changes, wrong := batchChangesOf(form)
	if wrong != "" {
		return wrong, nil
	}
	return "", a.Control.ResumeBatch(ctx, work.DefaultTenant, id, changes)
}

func (a *batches) pauseByForm(ctx context.Context, id uuid.UUID, form url.Values) (string, error) {
	by, _ := work.Cut(form.Get("by"), 200)
	why, _ := work.Cut(form.Get("why"), 1000)
	return "", a.Control.PauseBatch(ctx, work.DefaultTenant, id, by, why)
}

func (a *batches) cancelByForm(ctx context.Context, id uuid.UUID, form url.Values) (string, error) {
	why, _ := work.Cut(form.Get("why"), 1000)
	return "", a.Control.CancelBatch(ctx, work.DefaultTenant, id, why)
}

func (a *batches) retryByForm(ctx context.Context, id uuid.UUID, _ url.Values) (string, error) {
	return "", a.Control.RetryBatch(ctx, work.DefaultTenant, id, nil)
}

// batchChangesOf reads what a form changes about a batch. A field that is empty
// changes nothing.
func batchChangesOf(form url.Values) (c store.BatchChanges, wrong string) {
	if text := strings.TrimSpace(form.Get("max_cost_usd")); text != "" {
		budget, err := strconv.ParseFloat(strings.TrimPrefix(text, "$"), 64)
		if err != nil || !(budget > 0 && budget <= 1e9) {
			return c, "The cost must be a number above 0, such as 12.50."
		}
		c.MaxCostUSD = &budget
	}
	if text := strings.TrimSpace(form.Get("concurrency")); text != "" {
		most, err := strconv.Atoi(text)
		if err != nil || most < 1 || most > math.MaxInt32 {
			return c, "The units at once must be a whole number from 1 on."
		}
		c.Concurrency = &most
	}
	return c, ""
}
