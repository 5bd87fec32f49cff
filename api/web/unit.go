package web

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/store"
)

// What the list shows at most.
const (
	maxSearch = 200 // bytes of a search that are looked for
	pageCards = 50
	pageRuns  = 100 // of one unit
	pageTold  = 20  // deliveries about one unit
)

func (a units) unitPage(c echo.Context) error {
	id, err := query.ID(c.Param("id"))
	if err != nil {
		return err
	}
	part := c.Request().Header.Get(partHeader)
	unit, err := a.unitOf(c, id, part != "head")
	if err != nil {
		return err
	}
	if part == "unit" || part == "head" {
		return a.render(c, page.Part{Name: part, Data: unit})
	}
	list, err := a.list(c, id)
	if err != nil {
		return err
	}
	notice, err := a.notice(c.Request().Context(), c.QueryParam("done"), unit.Path())
	if err != nil {
		return err
	}
	return a.render(c, page.Viewer{List: list, Unit: &unit, Notice: notice})
}

// stepsPage is steps of a run, for the script.
func (a units) stepsPage(c echo.Context) error {
	id, err := query.ID(c.Param("id"))
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	_, run, err := a.chosenRun(ctx, id, c.QueryParam("run"))
	if err != nil {
		return err
	}
	if run == nil {
		return work.ErrNotFound
	}
	if asked := c.QueryParam("n"); asked != "" {
		script, err := a.script(ctx, *run, func(s *page.Script) []int { return s.Asked(asked) })
		if err != nil {
			return err
		}
		return a.render(c, script.Of(asked, c.QueryParam("whole") != ""))
	}
	at, err := parseStep(c)
	if err != nil {
		return err
	}
	script, err := a.script(ctx, *run, func(s *page.Script) []int { return s.Around(at) })
	if err != nil {
		return err
	}
	return a.render(c, script.At(at))
}

// unitOf is the right column as the query asks for it, with or without the
// transcript.
func (a units) unitOf(c echo.Context, id uuid.UUID, whole bool) (page.Unit, error) {
	ctx := c.Request().Context()
	at, err := parseStep(c)
	if err != nil {
		return page.Unit{}, err
	}
	unit, err := a.Store.Units.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return page.Unit{}, err
	}
	runs, run, err := a.chosenRun(ctx, id, c.QueryParam("run"))
	if err != nil {
		return page.Unit{}, err
	}
	shown := page.NewUnit(unit, runs, run, nil, time.Now())
	shown.Filter, shown.At = filterOf(c), at
	if run != nil && whole {
		if shown.Script, err = a.script(ctx, *run, func(s *page.Script) []int { return s.Around(at) }); err != nil {
			return shown, err
		}
	}
	if unit.BatchID != nil {
		if shown.Batch, err = a.Store.Batches.Title(ctx, work.DefaultTenant, *unit.BatchID); err != nil {
			return shown, err
		}
	}
	shown.Deliveries, _, err = a.Store.Deliveries.List(ctx, store.DeliveryFilter{Tenant: work.DefaultTenant, Unit: id, Limit: pageTold})
	if err != nil {
		return shown, err
	}
	if unit.State == work.Queued || unit.State == work.Waiting {
		e, err := a.Ops.Explain(ctx, id)
		if err != nil && !errors.Is(err, work.ErrNotFound) {
			return shown, err
		}
		for _, r := range e.Reasons {
			shown.Waits = append(shown.Waits, r.Detail)
			if r.Held != "" {
				held := page.Switch{Kind: string(r.Held), Name: unit.Queue, Paused: true, Back: shown.Path()}
				if r.Held == store.PauseBackend {
					held.Name = unit.Backend
				}
				if !slices.Contains(shown.Held, held) {
					shown.Held = append(shown.Held, held)
				}
			}
		}
	}
	return shown, nil
}

// chosenRun is a unit's runs, newest first, and the one of an attempt, or the
// newest; nil when there is none.
func (a *site) chosenRun(ctx context.Context, unit uuid.UUID, attempt string) ([]work.Run, *work.Run, error) {
	runs, _, err := a.Store.Runs.List(ctx, store.RunFilter{Tenant: work.DefaultTenant, Unit: unit, Limit: pageRuns})
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(runs, func(a, b work.Run) int { return b.Attempt - a.Attempt })
	for _, r := range runs {
		if attempt == "" || strconv.Itoa(r.Attempt) == attempt {
			run, err := a.Store.Runs.Get(ctx, work.DefaultTenant, r.ID)
			return runs, &run, err
		}
	}
	if attempt != "" {
		return nil, nil, work.ErrNotFound
	}
	return runs, nil, nil
}

func parseStep(c echo.Context) (int, error) {
	text := c.QueryParam("at")
	if text == "" {
		return 0, nil
	}
	at, err := strconv.Atoi(text)
	if err != nil || at < 1 {
		return 0, problem.Parameter("at", "must be the number of a step")
	}
	return at, nil
}

// script is the transcript of a run for a page that needs some of its steps.
func (a units) script(ctx context.Context, run work.Run, needs func(*page.Script) []int) (*page.Script, error) {
	return readScript(run, func() (io.Reader, error) { return a.Store.Transcripts.Open(ctx, work.DefaultTenant, run.ID) }, needs)
}
