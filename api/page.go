package api

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/hibiken/asynqmon"
	"github.com/labstack/echo/v4"
	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"

	"piecework/api/web"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// maxSearch is how much of a search the list page looks for, in bytes.
const maxSearch = 200

const (
	cspPage = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	// The API page and Asynqmon are programs of others with inline scripts and
	// styles. Asynqmon asks for fonts of another host: it does without.
	cspForeign = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; " +
		"img-src 'self' data:; frame-ancestors 'none'"
)

func (a *API) pages() {
	a.echo.GET("/", a.listPage)
	a.echo.GET("/units/:id", a.unitPage)
	a.echo.StaticFS("/static", web.Static())

	docs := v5emb.NewWithConfig(swgui.Config{HideCurl: false})("Piecework API", "/openapi.json", "/docs")
	a.echo.GET("/docs", echo.WrapHandler(docs), foreign)
	a.echo.GET("/docs/*", echo.WrapHandler(docs), foreign)

	// Asynqmon's own buttons change Redis only, and the ledger would not know:
	// it may look, not touch.
	dashboard := echo.WrapHandler(asynqmon.New(asynqmon.Options{
		RootPath: "/asynqmon", RedisConnOpt: a.Bell, ReadOnly: true,
	}))
	a.echo.GET("/asynqmon", dashboard, foreign)
	a.echo.GET("/asynqmon/*", dashboard, foreign)
}

func foreign(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", cspForeign)
		return next(c)
	}
}

func (a *API) listPage(c echo.Context) error {
	after, err := parseAfter(c.QueryParam("after"))
	if err != nil {
		return err
	}
	search, _ := work.Cut(strings.TrimSpace(c.QueryParam("q")), maxSearch)
	units, next, err := a.Store.Units(c.Request().Context(),
		store.UnitFilter{Tenant: work.DefaultTenant, Search: search, After: after, Limit: 50})
	if err != nil {
		return err
	}
	page := web.List{Units: units, Search: search, Now: time.Now()}
	if next != nil {
		page.Next = next.String()
	}
	return a.render(c, page)
}

func (a *API) unitPage(c echo.Context) error {
	id, err := parseID(c.Param("id"))
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	view, err := a.viewUnit(ctx, id)
	if err != nil {
		return err
	}
	page := web.Unit{Unit: view.Unit, Now: time.Now()}
	if view.State == work.Queued {
		e, err := a.explain(ctx, id)
		if err != nil {
			return err
		}
		for _, r := range e.Reasons {
			page.Waits = append(page.Waits, r.Detail)
		}
	}
	for _, run := range view.Runs {
		steps, err := a.steps(ctx, run)
		if err != nil {
			return err
		}
		page.Runs = append(page.Runs, web.NewRun(run, steps))
	}
	return a.render(c, page)
}

func (a *API) steps(ctx context.Context, run work.Run) ([]transcript.Step, error) {
	if !run.HasTranscript {
		return nil, nil
	}
	blob, err := a.Store.Transcript(ctx, work.DefaultTenant, run.ID)
	if err != nil {
		return nil, err
	}
	return transcript.Decode(blob)
}

func (a *API) render(c echo.Context, page web.Page) error {
	var body bytes.Buffer
	if err := page.Render(&body); err != nil {
		return err
	}
	c.Response().Header().Set("Content-Security-Policy", cspPage)
	return c.HTMLBlob(http.StatusOK, body.Bytes())
}
