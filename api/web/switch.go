package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"

	"github.com/labstack/echo/v4"

	"piecework/api/ops"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/store"
)

// switches pause and resume queues and backends.
type switches struct{ *site }

var queueName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// theSwitch is a queue or a backend of a path.
func theSwitch(c echo.Context, kind store.PauseKind, back string) (page.Switch, error) {
	s := page.Switch{Kind: string(kind), Name: c.Param("name"), Back: ownPath(back)}
	if kind == store.PauseBackend {
		return s, ops.KnownBackend(s.Name)
	}
	if !queueName.MatchString(s.Name) {
		return s, work.ErrNotFound
	}
	return s, nil
}

func (a switches) askPause(kind store.PauseKind) echo.HandlerFunc {
	return func(c echo.Context) error {
		s, err := theSwitch(c, kind, c.QueryParam("back"))
		if err != nil {
			return err
		}
		return a.ask(c, http.StatusOK, page.AskPause(s))
	}
}

// changeForm pauses or resumes; done is how the page back tells it.
func (a switches) changeForm(kind store.PauseKind, done string,
	change func(ctx context.Context, name string, form url.Values) error) echo.HandlerFunc {
	return func(c echo.Context) error {
		values, err := a.form(c)
		if err != nil {
			return err
		}
		s, err := theSwitch(c, kind, values.Get("back"))
		if err != nil {
			return err
		}
		err = change(c.Request().Context(), s.Name, values)
		return a.acted(c, s.Back, fmt.Sprintf("%s:%s:%s", done, kind, s.Name), err)
	}
}

// mount adds the routes of a kind of switches.
func (a switches) mount(e *echo.Echo, kind store.PauseKind) {
	path := "/operate/" + string(kind) + "s/:name/"
	e.GET(path+"pause", a.askPause(kind))
	e.POST(path+"pause", a.changeForm(kind, "paused", func(ctx context.Context, name string, form url.Values) error {
		by, _ := work.Cut(form.Get("by"), 200)
		why, _ := work.Cut(form.Get("why"), 1000)
		_, err := a.Ops.Pause(ctx, kind, name, &ops.NewPause{By: by, Why: why})
		return err
	}))
	e.POST(path+"resume", a.changeForm(kind, "resumed", func(ctx context.Context, name string, _ url.Values) error {
		_, err := a.Ops.Resume(ctx, kind, name)
		return err
	}))
}
