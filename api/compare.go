package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/web"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// pageChoices is how many units are offered for a comparison.
const pageChoices = 20

// comparePage shows two runs side by side. A unit stands for its newest run.
func (a *API) comparePage(c echo.Context) error {
	ctx := c.Request().Context()
	page := web.Comparison{}
	status := http.StatusOK
	for i, name := range []string{"a", "b"} {
		page.IDs[i] = strings.TrimSpace(c.QueryParam(name))
		if page.IDs[i] == "" {
			continue
		}
		side, err := a.side(ctx, page.IDs[i])
		switch {
		case errors.Is(err, work.ErrNotFound):
			page.Wrong, status = fmt.Sprintf("There is no run and no unit with the id %.100q.", page.IDs[i]), http.StatusNotFound
		case err != nil:
			return err
		default:
			page.Sides[i] = &side
		}
	}
	if text := c.QueryParam("from"); text != "" {
		from, err := strconv.Atoi(text)
		if err != nil || from < 0 {
			return badParameter("from", "must be a number of steps")
		}
		page.From = from
	}
	if !page.Both() {
		if err := a.candidates(ctx, &page); err != nil {
			return err
		}
	}
	return a.renderAs(c, status, page)
}

// side is a run, or a unit with its newest run.
func (a *API) side(ctx context.Context, text string) (web.Unit, error) {
	id, err := parseID(text)
	if err != nil {
		return web.Unit{}, err
	}
	var chosen *work.Run
	run, err := a.Store.Runs.Get(ctx, work.DefaultTenant, id)
	switch {
	case err == nil:
		id, chosen = run.UnitID, &run
	case !errors.Is(err, work.ErrNotFound):
		return web.Unit{}, err
	}
	unit, err := a.Store.Units.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return web.Unit{}, err
	}
	runs, newest, err := a.chosenRun(ctx, id, "")
	if err != nil {
		return web.Unit{}, err
	}
	if chosen == nil {
		chosen = newest
	}
	var steps []transcript.Step
	if chosen != nil {
		if steps, err = a.steps(ctx, *chosen); err != nil {
			return web.Unit{}, err
		}
	}
	return web.NewUnit(unit, runs, chosen, steps, time.Now()), nil
}

// candidates lists what the side that is there could be compared with: the unit's
// other runs, then the newest units.
func (a *API) candidates(ctx context.Context, page *web.Comparison) error {
	there := page.A()
	if there == nil {
		there = page.B()
	}
	var unit uuid.UUID
	if there != nil {
		unit = there.ID
		for _, r := range there.Runs {
			if r.ID != there.Run.ID {
				page.Choices = append(page.Choices, web.OtherRun(*there, r))
			}
		}
	}
	units, _, err := a.Store.Units.List(ctx, store.UnitFilter{Tenant: work.DefaultTenant, Limit: pageChoices + 1})
	if err != nil {
		return err
	}
	for _, u := range units {
		if u.ID != unit {
			page.Choices = append(page.Choices, web.OtherUnit(u, time.Now()))
		}
	}
	return nil
}

// steps is a whole transcript, for a comparison of all of it.
func (a *API) steps(ctx context.Context, run work.Run) ([]transcript.Step, error) {
	if !run.HasTranscript {
		return nil, nil
	}
	stored, err := a.Store.Transcripts.Open(ctx, work.DefaultTenant, run.ID)
	if err != nil {
		return nil, err
	}
	return transcript.Decode(stored)
}
