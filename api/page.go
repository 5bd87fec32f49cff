package api

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/hibiken/asynqmon"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"

	"piecework/api/web"
	"piecework/internal/work"
)

const (
	cspPage = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	// The API page and Asynqmon are programs of others with inline scripts and
	// styles. Asynqmon asks for fonts of another host: it does without.
	cspForeign = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; " +
		"img-src 'self' data:; frame-ancestors 'none'"
)

func (a *API) pages() {
	// Pages hold nothing that a stranger could guess at by their size: no
	// cookie protects them, and no secret is in them.
	small := middleware.GzipWithConfig(middleware.GzipConfig{Level: gzip.BestSpeed, MinLength: 1000})
	a.echo.GET("/", a.listPage, small)
	a.echo.GET("/cards", a.cardsPage, small)
	a.echo.GET("/live", a.followPage) // a stream: never compressed
	a.echo.GET("/units/:id", a.unitPage, small)
	a.echo.GET("/units/:id/steps", a.stepsPage, small)
	a.echo.GET("/overview", a.overviewPage, small)
	a.echo.GET("/worker-processes", a.processesPage, small)
	a.echo.GET("/webhooks", a.webhooksPage, small)
	a.echo.GET("/compare", a.comparePage, small)
	a.echo.GET("/batch-list", a.batchesPage, small)
	a.echo.GET("/batch-list/:id", a.batchPage, small)
	a.actions()
	a.batchActions()
	a.echo.GET("/stories", a.storiesPage, small)
	a.echo.GET("/stories/:name", a.storyPage, small)
	a.echo.GET("/static/*", serveAssets(web.Assets()), small)

	docs := v5emb.NewWithConfig(swgui.Config{HideCurl: false})("Piecework API", "/openapi.json", "/docs")
	a.echo.GET("/docs", echo.WrapHandler(docs), foreign)
	a.echo.GET("/docs/*", echo.WrapHandler(docs), foreign)

	// Asynqmon's own buttons change Redis only, and the ledger would not know:
	// it may look, not touch.
	dashboard := echo.WrapHandler(asynqmon.New(asynqmon.Options{
		RootPath: "/asynqmon", RedisConnOpt: a.Queue, ReadOnly: true,
	}))
	a.echo.GET("/asynqmon", dashboard, foreign)
	a.echo.GET("/asynqmon/*", dashboard, foreign, a.asksRedis)
}

// asksRedis refuses what would ask Redis one question after the other while it does
// not answer.
func (a *API) asksRedis(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !a.Queue.Up() && strings.HasPrefix(c.Request().URL.Path, "/asynqmon/api/") {
			return &work.Unavailable{What: "redis", RetryAfter: 2 * time.Second, Err: errors.New("it takes no writes")}
		}
		return next(c)
	}
}

func foreign(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", cspForeign)
		return next(c)
	}
}

// serveAssets serves what the pages load. A browser keeps it, and asks each
// time whether it is still the same.
func serveAssets(assets map[string]web.Asset) echo.HandlerFunc {
	return func(c echo.Context) error {
		asset, ok := assets[c.Param("*")]
		if !ok {
			return echo.ErrNotFound
		}
		h := c.Response().Header()
		h.Set("ETag", asset.Tag)
		h.Set("Cache-Control", "no-cache")
		if strings.Contains(c.Request().Header.Get("If-None-Match"), asset.Tag) {
			return c.NoContent(http.StatusNotModified)
		}
		return c.Blob(http.StatusOK, asset.Type, asset.Body)
	}
}

func (a *API) storiesPage(c echo.Context) error {
	return a.render(c, web.Storybook{Stories: web.Stories()})
}

func (a *API) storyPage(c echo.Context) error {
	for _, story := range web.Stories() {
		if story.Name == c.Param("name") {
			return a.render(c, story.Page)
		}
	}
	return work.ErrNotFound
}

func (a *API) render(c echo.Context, page web.Page) error { return a.renderAs(c, http.StatusOK, page) }

func (a *API) renderAs(c echo.Context, status int, page web.Page) error {
	var body bytes.Buffer
	if err := page.Render(&body); err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set("Content-Security-Policy", cspPage)
	h.Set("Cache-Control", "no-store") // what was true is not what is
	return c.HTMLBlob(status, body.Bytes())
}
