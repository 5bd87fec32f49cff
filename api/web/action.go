package web

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/ops"
	"piecework/api/problem"
	"piecework/api/query"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/store"
)

// mountActions adds what people do to units. GET says what would happen and asks;
// the form that it shows comes by POST to the same path and is answered with the way
// back. The script asks for parts instead: ask in a dialog, notice after the action.
func (a units) mountActions(e *echo.Echo) {
	e.GET("/units/:id/cancel", a.askCancel)
	e.POST("/units/:id/cancel", a.cancelForm)
	e.GET("/units/:id/retry", a.askRetry)
	e.POST("/units/:id/retry", a.retryForm)
	e.GET("/units/retry", a.askRetryAll)
	e.POST("/units/retry", a.retryAllForm)
}

// theUnit is the unit of a path as its page has it, without its runs.
func (a units) theUnit(c echo.Context) (page.Unit, error) {
	id, err := query.ID(c.Param("id"))
	if err != nil {
		return page.Unit{}, err
	}
	unit, err := a.Store.Units.Get(c.Request().Context(), work.DefaultTenant, id)
	return page.Unit{Unit: unit, Filter: filterOf(c)}, err
}

func (a units) askCancel(c echo.Context) error {
	u, err := a.theUnit(c)
	switch {
	case err != nil:
		return err
	case u.Stopping():
		return a.cannot(c, u, "It was asked to stop already and ends soon.")
	case !u.CanCancel():
		return a.cannot(c, u, "It has "+ops.Ended(u.State)+" already.")
	}
	return a.ask(c, http.StatusOK, page.AskCancel(u))
}

func (a units) cannot(c echo.Context, u page.Unit, why string) error {
	return a.ask(c, http.StatusConflict, page.Ask{Title: "That is not possible", Error: why, Back: u.Path()})
}

func (a units) cancelForm(c echo.Context) error {
	u, err := a.theUnit(c)
	if err != nil {
		return err
	}
	if _, err := a.form(c); err != nil {
		return err
	}
	err = a.Control.CancelUnit(c.Request().Context(), work.DefaultTenant, u.ID)
	return a.acted(c, u.Path(), "cancelled", err)
}

func (a units) askRetry(c echo.Context) error {
	u, err := a.theUnit(c)
	switch {
	case err != nil:
		return err
	case u.State == work.Succeeded:
		return a.cannot(c, u, "It has succeeded; submit it anew to have it done again.")
	case !u.CanRetry():
		return a.cannot(c, u, fmt.Sprintf("It is %s already.", u.State))
	}
	return a.ask(c, http.StatusOK, page.AskRetry(u, c.QueryParam("change") != ""))
}

func (a units) retryForm(c echo.Context) error {
	u, err := a.theUnit(c)
	if err != nil {
		return err
	}
	values, err := a.form(c)
	if err != nil {
		return err
	}
	changes, wrong := changesOf(u.Unit, values)
	if wrong != "" {
		ask := page.AskRetry(u, true)
		ask.Error = wrong
		ask.Change.Model, ask.Change.MaxTurns, ask.Change.OnDenied = values.Get("model"), values.Get("max_turns"), values.Get("on_denied")
		if !ask.Change.TooLong {
			ask.Change.Prompt = values.Get("prompt")
		}
		return a.ask(c, http.StatusUnprocessableEntity, ask)
	}
	err = a.Control.RetryUnit(c.Request().Context(), work.DefaultTenant, u.ID, changes)
	return a.acted(c, u.Path(), "retried", err)
}

// changesOf is what a form says otherwise than the unit: what is as it was
// must not count as changed, for the unit would lose its session.
func changesOf(u work.Unit, form url.Values) (changes store.Changes, wrong string) {
	if model := strings.TrimSpace(form.Get("model")); model != "" && model != u.Model {
		if utf8.RuneCountInString(model) > 200 {
			return changes, "The model's name is longer than 200 characters."
		}
		changes.Model = &model
	}
	if prompt := form.Get("prompt"); form.Has("prompt") && prompt != strings.ReplaceAll(u.Prompt, "\r\n", "\n") {
		if strings.TrimSpace(prompt) == "" {
			return changes, "The prompt is empty."
		}
		changes.Prompt = &prompt
	}
	if text := strings.TrimSpace(form.Get("max_turns")); text != "" && (u.MaxTurns == 0 || text != strconv.Itoa(u.MaxTurns)) {
		turns, err := strconv.Atoi(text)
		if err != nil || turns < 1 || turns > 10_000 {
			return changes, "The turns must be a whole number from 1 to 10000."
		}
		changes.MaxTurns = &turns
	}
	if denied := form.Get("on_denied"); denied != "" && denied != u.OnDenied {
		if denied != work.OnDeniedFail && denied != work.OnDeniedNote {
			return changes, "When a tool is denied must be fail or note."
		}
		changes.OnDenied = &denied
	}
	return changes, ""
}

// allOf is the units of the list that the query asks for, all of which can be
// run again.
func allOf(c echo.Context) (page.Filter, store.UnitFilter, error) {
	given, f, err := unitFilter(c)
	switch {
	case err != nil:
		return given, f, err
	case len(f.States) == 0 || slices.ContainsFunc(f.States, func(s work.State) bool { return !slices.Contains(store.Retryable, s) }):
		return given, f, problem.Parameter("status", "must be some of "+query.Joined(store.Retryable)+": only those can be run again")
	}
	return given, f, nil
}

// previewUnits is how many units a question lists.
const previewUnits = 20

func (a units) askRetryAll(c echo.Context) error {
	given, f, err := allOf(c)
	if err != nil {
		return err
	}
	p, err := a.Store.Units.PreviewRetry(c.Request().Context(), f, store.Changes{}, previewUnits)
	if err != nil {
		return err
	}
	if p.Count == 0 {
		return a.ask(c, http.StatusConflict, page.Ask{Title: "That is not possible", Error: "No unit is like this any more.", Back: "/" + given.Query()})
	}
	return a.ask(c, http.StatusOK, page.AskRetryAll(given, p.Count, store.MaxBulk, p.Cost, p.Units))
}

func (a units) retryAllForm(c echo.Context) error {
	given, f, err := allOf(c)
	if err != nil {
		return err
	}
	if _, err := a.form(c); err != nil {
		return err
	}
	moved, more, err := a.Control.RetryUnits(c.Request().Context(), f, store.Changes{})
	if err != nil {
		return err
	}
	done := fmt.Sprintf("retried:%d", len(moved))
	if more {
		done += "+"
	}
	return a.acted(c, "/"+given.Query(), done, nil)
}

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
