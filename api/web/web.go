// Package web has the pages: their handlers here, and in page what they show.
//
//	web.go           Pages and their routes, assets, Asynqmon, the API page
//	form.go          forms: how they are read, asked for and answered
//	notice.go        what was done just now
//	list.go          the list of units
//	unit.go          one unit, with one of its runs
//	script.go        the steps that a page shows, read while the transcript goes by
//	action.go        cancel and retry units
//	batch.go         the list of batches, and one of them
//	batch_cache.go   the pages of batches as they were made last
//	switch.go        pause and resume queues and backends
//	compare.go       two runs side by side
//	overview.go      what happened lately; what runs where
//	webhook.go       endpoints and deliveries
package web

import (
	"bytes"
	"compress/gzip"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynqmon"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/swaggest/swgui"
	"github.com/swaggest/swgui/v5emb"

	"piecework/api/ops"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

const (
	cspPage = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	// The API page and Asynqmon are programs of others with inline scripts and
	// styles. Asynqmon asks for fonts of another host: it does without.
	cspForeign = "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; " +
		"img-src 'self' data:; frame-ancestors 'none'"
)

// Options is what the pages need.
type Options struct {
	Store    *store.Store
	Queue    *queue.Client
	Ops      *ops.Operations
	Control  *jobs.Control
	BodyTime time.Duration // that a form may take to arrive
}

// site is what all pages share.
type site struct{ Options }

// Pages are all of them.
type Pages struct {
	*site
	batches *batches
}

// New makes them.
func New(o Options) *Pages {
	s := &site{o}
	return &Pages{site: s, batches: &batches{site: s}}
}

// BatchChanged makes the page of a batch anew when it is asked for next.
func (a *Pages) BatchChanged(id uuid.UUID) { a.batches.cache.drop(id) }

// Mount adds the routes; live streams what a page shows.
func (a *Pages) Mount(e *echo.Echo, live echo.HandlerFunc) {
	// Pages hold nothing that a stranger could guess at by their size: no
	// cookie protects them, and no secret is in them.
	small := middleware.GzipWithConfig(middleware.GzipConfig{Level: gzip.BestSpeed, MinLength: 1000})
	units, overviews, hooks := units{a.site}, overviews{a.site}, webhooks{a.site}
	e.GET("/", units.listPage, small)
	e.GET("/cards", units.cardsPage, small)
	e.GET("/live", live) // never compressed
	e.GET("/units/:id", units.unitPage, small)
	e.GET("/units/:id/steps", units.stepsPage, small)
	units.mountActions(e)
	e.GET("/overview", overviews.overviewPage, small)
	e.GET("/worker-processes", overviews.processesPage, small)
	e.GET("/webhooks", hooks.webhooksPage, small)
	e.POST("/webhooks/deliveries/:id/redeliver", hooks.redeliverForm)
	e.GET("/compare", comparisons{a.site}.comparePage, small)
	e.GET("/batch-list", a.batches.batchesPage, small)
	e.GET("/batch-list/:id", a.batches.batchPage, small)
	a.batches.mountActions(e)
	for _, kind := range []store.PauseKind{store.PauseQueue, store.PauseBackend} {
		switches{a.site}.mount(e, kind)
	}
	e.GET("/stories", a.storiesPage, small)
	e.GET("/stories/:name", a.storyPage, small)
	e.GET("/static/*", serveAssets(page.Assets()), small)

	docs := v5emb.NewWithConfig(swgui.Config{HideCurl: false})("Piecework API", "/openapi.json", "/docs")
	e.GET("/docs", echo.WrapHandler(docs), foreign)
	e.GET("/docs/*", echo.WrapHandler(docs), foreign)

	// Asynqmon's own buttons change Redis only, and the ledger would not know:
	// it may look, not touch.
	dashboard := echo.WrapHandler(asynqmon.New(asynqmon.Options{
		RootPath: "/asynqmon", RedisConnOpt: a.Queue, ReadOnly: true,
	}))
	e.GET("/asynqmon", dashboard, foreign)
	e.GET("/asynqmon/*", dashboard, foreign, a.asksRedis)
}

// asksRedis refuses what would ask Redis one question after the other while it does
// not answer.
func (a *site) asksRedis(next echo.HandlerFunc) echo.HandlerFunc {
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
func serveAssets(assets map[string]page.Asset) echo.HandlerFunc {
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

func (a *site) storiesPage(c echo.Context) error {
	return a.render(c, page.Storybook{Stories: page.Stories()})
}

func (a *site) storyPage(c echo.Context) error {
	for _, story := range page.Stories() {
		if story.Name == c.Param("name") {
			return a.render(c, story.Page)
		}
	}
	return work.ErrNotFound
}

func (a *site) render(c echo.Context, shown page.Page) error {
	return a.renderAs(c, http.StatusOK, shown)
}

func (a *site) renderAs(c echo.Context, status int, shown page.Page) error {
	var body bytes.Buffer
	if err := shown.Render(&body); err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set("Content-Security-Policy", cspPage)
	h.Set("Cache-Control", "no-store") // what was true is not what is
	return c.HTMLBlob(status, body.Bytes())
}
