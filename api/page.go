package api

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/hibiken/asynqmon"
	"github.com/labstack/echo/v4"
	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"

	"piecework/api/web"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

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
	a.echo.GET("/static/*", echo.WrapHandler(http.StripPrefix("/static/", http.FileServerFS(web.Static()))))

	docs := v5emb.NewWithConfig(swgui.Config{HideCurl: false})("Piecework API", "/openapi.json", "/docs")
	a.echo.GET("/docs", echo.WrapHandler(docs), foreign)
	a.echo.GET("/docs*", echo.WrapHandler(docs), foreign)

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

func (a *API) openapi(c echo.Context) error {
	doc, err := a.OpenAPI()
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, "application/json", doc)
}

func (a *API) listPage(c echo.Context) error {
	after, err := parseAfter(c.QueryParam("after"))
	if err != nil {
		return err
	}
	search := strings.TrimSpace(c.QueryParam("q"))
	units, next, err := a.Store.Units(c.Request().Context(),
		store.UnitFilter{Tenant: work.DefaultTenant, Search: search, After: after, Limit: 50})
	if err != nil {
		return err
	}
	page := web.List{Units: units, Search: search}
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
	page := web.Unit{Unit: view.Unit}
	for _, run := range view.Runs {
		blob, err := a.Store.Transcript(ctx, work.DefaultTenant, run.ID)
		if err != nil {
			return err
		}
		steps, err := transcript.Decode(blob)
		if err != nil {
			return err
		}
		page.Runs = append(page.Runs, web.Run{Run: run, Steps: steps})
	}
	return a.render(c, page)
}

func (a *API) render(c echo.Context, page web.Page) error {
	var body bytes.Buffer
	if err := page.Render(&body); err != nil {
		return err
	}
	c.Response().Header().Set("Content-Security-Policy", cspPage)
	return c.HTMLBlob(http.StatusOK, body.Bytes())
}
