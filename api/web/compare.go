package web

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

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/api/web/page"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// pageChoices is how many units are offered for a comparison.
const pageChoices = 20

// comparisons are the pages that compare two runs.
type comparisons struct{ *site }

// comparePage shows two runs side by side. A unit stands for its newest run.
func (a comparisons) comparePage(c echo.Context) error {
	ctx := c.Request().Context()
	shown := page.Comparison{}
	status := http.StatusOK
	for i, name := range []string{"a", "b"} {
		shown.IDs[i] = strings.TrimSpace(c.QueryParam(name))
		if shown.IDs[i] == "" {
			continue
		}
		side, err := a.side(ctx, shown.IDs[i])
		switch {
		case errors.Is(err, work.ErrNotFound):
			shown.Wrong, status = fmt.Sprintf("There is no run and no unit with the id %.100q.", shown.IDs[i]), http.StatusNotFound
		case err != nil:
			return err
		default:
			shown.Sides[i] = &side
		}
	}
	if text := c.QueryParam("from"); text != "" {
		from, err := strconv.Atoi(text)
		if err != nil || from < 0 {
			return problem.Parameter("from", "must be a number of steps")
		}
		shown.From = from
	}
	if !shown.Both() {
		if err := a.candidates(ctx, &shown); err != nil {
			return err
		}
	}
	return a.renderAs(c, status, shown)
}

// side is a run, or a unit with its newest run.
func (a comparisons) side(ctx context.Context, text string) (page.Unit, error) {
	id, err := query.ID(text)
	if err != nil {
		return page.Unit{}, err
	}
	var chosen *work.Run
	run, err := a.Store.Runs.Get(ctx, work.DefaultTenant, id)
	switch {
	case err == nil:
		id, chosen = run.UnitID, &run
	case !errors.Is(err, work.ErrNotFound):
		return page.Unit{}, err
	}
	unit, err := a.Store.Units.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return page.Unit{}, err
	}
	runs, newest, err := a.chosenRun(ctx, id, "")
	if err != nil {
		return page.Unit{}, err
	}
	if chosen == nil {
		chosen = newest
	}
	var steps []transcript.Step
	if chosen != nil {
		if steps, err = a.steps(ctx, *chosen); err != nil {
			return page.Unit{}, err
		}
	}
	return page.NewUnit(unit, runs, chosen, steps, time.Now()), nil
}

// candidates lists what the side that is there could be compared with: the unit's
// other runs, then the newest units.
func (a comparisons) candidates(ctx context.Context, shown *page.Comparison) error {
	there := shown.A()
	if there == nil {
		there = shown.B()
	}
	var unit uuid.UUID
	if there != nil {
		unit = there.ID
		for _, r := range there.Runs {
			if r.ID != there.Run.ID {
				shown.Choices = append(shown.Choices, page.OtherRun(*there, r))
			}
		}
	}
	units, _, err := a.Store.Units.List(ctx, store.UnitFilter{Tenant: work.DefaultTenant, Limit: pageChoices + 1})
	if err != nil {
		return err
	}
	for _, u := range units {
		if u.ID != unit {
			shown.Choices = append(shown.Choices, page.OtherUnit(u, time.Now()))
		}
	}
	return nil
}

// steps is a whole transcript, for a comparison of all of it.
func (a comparisons) steps(ctx context.Context, run work.Run) ([]transcript.Step, error) {
	if !run.HasTranscript {
		return nil, nil
	}
	stored, err := a.Store.Transcripts.Open(ctx, work.DefaultTenant, run.ID)
	if err != nil {
		return nil, err
	}
	return transcript.Decode(stored)
}
