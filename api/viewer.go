package api

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/web"
	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// What the list shows at most.
const (
	maxSearch = 200    // bytes of a search that are looked for
	maxCounts = 10_000 // units of one state, or units that were searched for, that are counted
	pageCards = 50
	pageRuns  = 100 // of one unit
	pageTold  = 20  // deliveries about one unit
)

// partHeader is how the script asks for a part of a page: list, cards, unit or
// head.
const partHeader = "X-Part"

func (a *API) listPage(c echo.Context) error {
	list, err := a.list(c, uuid.Nil)
	if err != nil {
		return err
	}
	if part := c.Request().Header.Get(partHeader); part == "list" || part == "cards" {
		return a.render(c, web.Part{Name: part, Data: list})
	}
	notice, err := a.notice(c.Request().Context(), c.QueryParam("done"), "/"+list.Filter.Query())
	if err != nil {
		return err
	}
	return a.render(c, web.Viewer{List: list, Notice: notice})
}

func (a *API) unitPage(c echo.Context) error {
	id, err := parseID(c.Param("id"))
	if err != nil {
		return err
	}
	part := c.Request().Header.Get(partHeader)
	unit, err := a.unitOf(c, id, part != "head")
	if err != nil {
		return err
	}
	if part == "unit" || part == "head" {
		return a.render(c, web.Part{Name: part, Data: unit})
	}
	list, err := a.list(c, id)
	if err != nil {
		return err
	}
	notice, err := a.notice(c.Request().Context(), c.QueryParam("done"), unit.Path())
	if err != nil {
		return err
	}
	return a.render(c, web.Viewer{List: list, Unit: &unit, Notice: notice})
}

// cardsPage is the cards of the units that the script has seen change.
func (a *API) cardsPage(c echo.Context) error {
	var ids []uuid.UUID
	for text := range strings.SplitSeq(c.QueryParam("ids"), ",") {
		id, err := uuid.Parse(text)
		if err != nil || len(ids) == 2*pageCards {
			return badParameter("ids", "must be at most "+strconv.Itoa(2*pageCards)+" ids of units, with commas between")
		}
		ids = append(ids, id)
	}
	list := web.List{Filter: filterOf(c)}
	f := store.UnitFilter{Tenant: work.DefaultTenant, IDs: ids, Limit: len(ids)}
	if _, err := a.fill(c.Request().Context(), &list, f, uuid.Nil); err != nil {
		return err
	}
	return a.render(c, web.Part{Name: "cards", Data: list})
}

// stepsPage is steps of a run, for the script.
func (a *API) stepsPage(c echo.Context) error {
	id, err := parseID(c.Param("id"))
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
		script, err := a.script(ctx, *run, func(s *web.Script) []int { return s.Asked(asked) })
		if err != nil {
			return err
		}
		return a.render(c, script.Of(asked, c.QueryParam("whole") != ""))
	}
	at, err := parseStep(c)
	if err != nil {
		return err
	}
	script, err := a.script(ctx, *run, func(s *web.Script) []int { return s.Around(at) })
	if err != nil {
		return err
	}
	return a.render(c, script.At(at))
}

func filterOf(c echo.Context) web.Filter {
	search, _ := work.Cut(strings.TrimSpace(c.QueryParam("q")), maxSearch)
	f := web.Filter{
		Search: search, Status: c.QueryParam("status"), Batch: c.QueryParam("batch"), Backend: c.QueryParam("backend"), Worker: c.QueryParam("worker"),
		Class: c.QueryParam("class"), Since: c.QueryParam("since"),
	}
	for _, label := range c.QueryParams()["label"] {
		if label != "" {
			f.Labels = append(f.Labels, label)
		}
	}
	return f
}

// unitFilter is the list's filter as the query has it, for people and for the
// store.
func unitFilter(c echo.Context) (web.Filter, store.UnitFilter, error) {
	given := filterOf(c)
	in := ByFilter{Status: given.Status, Batch: given.Batch, Worker: given.Worker, Backend: given.Backend, Class: given.Class, Label: given.Labels, Search: given.Search}
	f, err := in.filter()
	if err != nil || given.Since == "" {
		return given, f, err
	}
	back, err := time.ParseDuration(given.Since)
	if err != nil || back <= 0 {
		return given, f, badParameter("since", "must be a time such as 24h")
	}
	f.Since = time.Now().Add(-back)
	return given, f, nil
}

// list is the left column as the query asks for it.
func (a *API) list(c echo.Context, chosen uuid.UUID) (web.List, error) {
	ctx := c.Request().Context()
	given, f, err := unitFilter(c)
	list := web.List{Filter: given, Backends: backend.Names, Classes: work.Classes()}
	if err != nil {
		return list, err
	}
	if f.After, err = parseAfter(c.QueryParam("after")); err != nil {
		return list, err
	}
	if f.Batch != uuid.Nil {
		title, err := a.Store.Batches.Title(ctx, work.DefaultTenant, f.Batch)
		if err != nil {
			return list, err
		}
		list.Batch = &web.Batch{Batch: work.Batch{ID: f.Batch, Title: title}}
	}
	f.Limit = pageCards
	next, err := a.fill(ctx, &list, f, chosen)
	if err != nil {
		return list, err
	}
	if next != nil {
		list.Next = next.String()
	}
	f.States, f.After = nil, uuid.Nil
	counts, err := a.countUnits(ctx, f, given)
	if err != nil {
		return list, err
	}
	list.Pills, list.CountedAt = given.Pills(counts.byState, counts.most), counts.at
	return list, nil
}

// unitCounts are units by state.
type unitCounts struct {
	byState map[work.State]int
	most    int // a count that is not below it may be higher
	at      time.Time
}

// countUnits counts the units of a filter by state. Those of all units are kept for a
// few seconds when they are many.
func (a *API) countUnits(ctx context.Context, f store.UnitFilter, given web.Filter) (unitCounts, error) {
	ask := func(ctx context.Context) (c unitCounts, rows int64, err error) {
		c.at = time.Now()
		c.most = maxCounts
		var whole bool
		if c.byState, whole, err = a.Store.Units.Count(ctx, f, maxCounts); !whole {
			c.most = 0
		}
		for _, n := range c.byState {
			rows += int64(n)
		}
		return c, rows, err
	}
	given.Status = ""
	if given.Query() == (web.Filter{}).Query() {
		return a.unitCounts.get(ctx, ask)
	}
	c, _, err := ask(ctx)
	return c, err
}

// fill gives the list the cards of a filter and tells where it goes on.
func (a *API) fill(ctx context.Context, list *web.List, f store.UnitFilter, chosen uuid.UUID) (*uuid.UUID, error) {
	units, next, err := a.Store.Units.List(ctx, f)
	if err != nil {
		return nil, err
	}
	var running []uuid.UUID
	for _, u := range units {
		if u.State == work.Running {
			running = append(running, u.ID)
		}
	}
	var live map[uuid.UUID]work.Run
	if len(running) > 0 {
		if live, err = a.Store.Runs.Live(ctx, running); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	for _, u := range units {
		card := web.Card{Unit: u, Query: list.Filter.Query(), Chosen: u.ID == chosen, Now: now}
		if run, ok := live[u.ID]; ok {
			card.Live = &run
		}
		list.Cards = append(list.Cards, card)
	}
	return next, nil
}

// unitOf is the right column as the query asks for it, with or without the
// transcript.
func (a *API) unitOf(c echo.Context, id uuid.UUID, whole bool) (web.Unit, error) {
	ctx := c.Request().Context()
	at, err := parseStep(c)
	if err != nil {
		return web.Unit{}, err
	}
	unit, err := a.Store.Units.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return web.Unit{}, err
	}
	runs, run, err := a.chosenRun(ctx, id, c.QueryParam("run"))
	if err != nil {
		return web.Unit{}, err
	}
	page := web.NewUnit(unit, runs, run, nil, time.Now())
	page.Filter, page.At = filterOf(c), at
	if run != nil && whole {
		if page.Script, err = a.script(ctx, *run, func(s *web.Script) []int { return s.Around(at) }); err != nil {
			return page, err
		}
	}
	if unit.BatchID != nil {
		if page.Batch, err = a.Store.Batches.Title(ctx, work.DefaultTenant, *unit.BatchID); err != nil {
			return page, err
		}
	}
	page.Deliveries, _, err = a.Store.Deliveries.List(ctx, store.DeliveryFilter{Tenant: work.DefaultTenant, Unit: id, Limit: pageTold})
	if err != nil {
		return page, err
	}
	if unit.State == work.Queued || unit.State == work.Waiting {
		e, err := a.explain(ctx, id)
		if err != nil && !errors.Is(err, work.ErrNotFound) {
			return page, err
		}
		for _, r := range e.Reasons {
			page.Waits = append(page.Waits, r.Detail)
			if r.held != "" {
				held := web.Switch{Kind: string(r.held), Name: unit.Queue, Paused: true, Back: page.Path()}
				if r.held == store.PauseBackend {
					held.Name = unit.Backend
				}
				if !slices.Contains(page.Held, held) {
					page.Held = append(page.Held, held)
				}
			}
		}
	}
	return page, nil
}

// chosenRun is a unit's runs, newest first, and the one of an attempt, or the
// newest; nil when there is none.
func (a *API) chosenRun(ctx context.Context, unit uuid.UUID, attempt string) ([]work.Run, *work.Run, error) {
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
		return 0, badParameter("at", "must be the number of a step")
	}
	return at, nil
}
