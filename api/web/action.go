package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

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
