package web

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/api/web/page"
	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// partHeader is how the script asks for a part of a page: list, cards, unit or
// head.
const partHeader = "X-Part"

// units are the pages of units: the list, and one of them.
type units struct{ *site }

func (a units) listPage(c echo.Context) error {
	list, err := a.list(c, uuid.Nil)
	if err != nil {
		return err
	}
	if part := c.Request().Header.Get(partHeader); part == "list" || part == "cards" {
		return a.render(c, page.Part{Name: part, Data: list})
	}
	notice, err := a.notice(c.Request().Context(), c.QueryParam("done"), "/"+list.Filter.Query())
	if err != nil {
		return err
	}
	return a.render(c, page.Viewer{List: list, Notice: notice})
}

// cardsPage is the cards of the units that the script has seen change.
func (a units) cardsPage(c echo.Context) error {
	var ids []uuid.UUID
	for text := range strings.SplitSeq(c.QueryParam("ids"), ",") {
		id, err := uuid.Parse(text)
		if err != nil || len(ids) == 2*pageCards {
			return problem.Parameter("ids", "must be at most "+strconv.Itoa(2*pageCards)+" ids of units, with commas between")
		}
		ids = append(ids, id)
	}
	list := page.List{Filter: filterOf(c)}
	f := store.UnitFilter{Tenant: work.DefaultTenant, IDs: ids, Limit: len(ids)}
	if _, err := a.fill(c.Request().Context(), &list, f, uuid.Nil); err != nil {
		return err
	}
	return a.render(c, page.Part{Name: "cards", Data: list})
}

func filterOf(c echo.Context) page.Filter {
	search, _ := work.Cut(strings.TrimSpace(c.QueryParam("q")), maxSearch)
	f := page.Filter{
		Search: search, Status: c.QueryParam("status"), Batch: c.QueryParam("batch"), Backend: c.QueryParam("backend"),
		Worker: c.QueryParam("worker"),
		Class:  c.QueryParam("class"), Since: c.QueryParam("since"),
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
func unitFilter(c echo.Context) (page.Filter, store.UnitFilter, error) {
	given := filterOf(c)
	in := query.Units{Status: given.Status, Batch: given.Batch, Worker: given.Worker, Backend: given.Backend, Class: given.Class,
		Label: given.Labels, Search: given.Search}
	f, err := in.Filter()
	if err != nil || given.Since == "" {
		return given, f, err
	}
	back, err := time.ParseDuration(given.Since)
	if err != nil || back <= 0 {
		return given, f, problem.Parameter("since", "must be a time such as 24h")
	}
	f.Since = time.Now().Add(-back)
	return given, f, nil
}

// list is the left column as the query asks for it.
func (a units) list(c echo.Context, chosen uuid.UUID) (page.List, error) {
	ctx := c.Request().Context()
	given, f, err := unitFilter(c)
	list := page.List{Filter: given, Backends: backend.Names, Classes: work.Classes()}
	if err != nil {
		return list, err
	}
	if f.After, err = query.After(c.QueryParam("after")); err != nil {
		return list, err
	}
	if f.Batch != uuid.Nil {
		title, err := a.Store.Batches.Title(ctx, work.DefaultTenant, f.Batch)
		if err != nil {
			return list, err
		}
		list.Batch = &page.Batch{Batch: work.Batch{ID: f.Batch, Title: title}}
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
	any := given
	any.Status = ""
	counts, err := a.Ops.CountUnits(ctx, f, any.Query() == (page.Filter{}).Query())
	if err != nil {
		return list, err
	}
	list.Pills, list.CountedAt = given.Pills(counts.ByState, counts.Most), counts.At
	return list, nil
}

// fill gives the list the cards of a filter and tells where it goes on.
func (a units) fill(ctx context.Context, list *page.List, f store.UnitFilter, chosen uuid.UUID) (*uuid.UUID, error) {
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
		card := page.Card{Unit: u, Query: list.Filter.Query(), Chosen: u.ID == chosen, Now: now}
		if run, ok := live[u.ID]; ok {
			card.Live = &run
		}
		list.Cards = append(list.Cards, card)
	}
	return next, nil
}
