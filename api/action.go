package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"piecework/api/web"
	"piecework/internal/work"
	"piecework/store"
)

// actions are what people do on pages. GET tells what would happen and asks;
// the form that it shows comes by POST to the same path and is answered with
// the way back. The script asks for parts instead: ask in a dialog, notice
// after the deed.
func (a *API) actions() {
	a.echo.GET("/units/:id/cancel", a.askCancel)
	a.echo.POST("/units/:id/cancel", a.cancelForm)
	a.echo.GET("/units/:id/retry", a.askRetry)
	a.echo.POST("/units/:id/retry", a.retryForm)
	a.echo.GET("/units/retry", a.askRetryAll)
	a.echo.POST("/units/retry", a.retryAllForm)
	a.echo.POST("/webhooks/deliveries/:id/redeliver", a.redeliverForm)
	for _, kind := range []store.PauseKind{store.PauseQueue, store.PauseBackend} {
		path := "/operate/" + string(kind) + "s/:name/"
		a.echo.GET(path+"pause", a.askPause(kind))
		a.echo.POST(path+"pause", a.pauseForm(kind))
		a.echo.POST(path+"resume", a.resumeForm(kind))
	}
}

// maxForm is the size of a form at most, in bytes: a prompt that can be
// edited, each byte as three.
const maxForm = 512 << 10

// form reads what a form of the pages sends. Only here is a body anything but
// JSON or a file.
func (a *API) form(c echo.Context) (url.Values, error) {
	r := c.Request()
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, newProblem(http.StatusUnsupportedMediaType, "this path takes the forms of the pages; programs use /work-units, see /docs")
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), r.Body, maxForm))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the form is larger than %d bytes; use POST /work-units/{id}/retry for long prompts", maxForm))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, newProblem(http.StatusRequestTimeout, fmt.Sprintf("the form did not arrive within %s", a.bodyTime))
	case err != nil:
		return nil, newProblem(http.StatusBadRequest, "the form could not be read to its end")
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, newProblem(http.StatusBadRequest, "the form cannot be read: "+err.Error())
	}
	for name, all := range values {
		for i, text := range all {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return nil, newFieldsProblem(http.StatusBadRequest, ProblemError{Parameter: work.Clean(name), Detail: "must be UTF-8 without NUL characters"})
			}
			all[i] = strings.ReplaceAll(text, "\r\n", "\n") // browsers send every line's end so
		}
	}
	return values, nil
}

// ask shows a question with what follows from it: in a page, or for a dialog.
func (a *API) ask(c echo.Context, status int, ask web.Ask) error {
	if c.Request().Header.Get(partHeader) != "" {
		return a.renderAs(c, status, ask.Part())
	}
	return a.renderAs(c, status, ask)
}

// acted ends a deed: with the way back, where it is told by the query's done;
// for the script with the notice itself. A conflict is told as well.
func (a *API) acted(c echo.Context, back, done string, err error) error {
	var p *Problem
	switch {
	case err != nil && problemOf(err).Status == http.StatusConflict:
		p = problemOf(err)
	case err != nil:
		return err
	}
	script := c.Request().Header.Get(partHeader) != ""
	switch {
	case p != nil && !script:
		return a.ask(c, p.Status, web.Ask{Title: "That is not possible", Error: p.Detail, Back: back})
	case p != nil:
		return a.renderAs(c, p.Status, web.Part{Name: "notice", Data: web.Notice{Text: p.Detail, Wrong: true, Close: back}})
	case script:
		notice, err := a.notice(c.Request().Context(), done, back)
		if err != nil {
			return err
		}
		return a.render(c, web.Part{Name: "notice", Data: notice})
	}
	u, err := url.Parse(back)
	if err != nil {
		return err
	}
	query := u.Query()
	query.Set("done", done)
	u.RawQuery = query.Encode()
	return c.Redirect(http.StatusSeeOther, u.String())
}

// doneParameter says what was done just now: cancelled, retried, retried:57,
// redelivered, paused:queue:default. Who writes one by hand sees what is true all the same.
var doneParameter = regexp.MustCompile(`^(cancelled|retried|redelivered|paused|resumed|approved)(?::(queue|backend):([a-z0-9_-]{1,64})|:(\d{1,9})(\+?))?$`)

// notice tells what done says on the page back, nil when it says nothing.
func (a *API) notice(ctx context.Context, done, back string) (*web.Notice, error) {
	m := doneParameter.FindStringSubmatch(done)
	if m == nil {
		return nil, nil
	}
	n := &web.Notice{Close: back}
	switch verb, kind, name, count, more := m[1], m[2], m[3], m[4], m[5]; {
	case kind != "":
		pauses, err := a.Store.Pauses.List(ctx)
		if err != nil {
			return nil, err
		}
		s := web.Switch{Kind: kind, Name: name, Back: back}
		n.Text = fmt.Sprintf("The %s %s goes on.", kind, name)
		if p := viewPause(store.PauseOf(pauses, store.PauseKind(kind), name)); p != nil {
			undo := s.Resume()
			n.Text, n.Undo = fmt.Sprintf("The %s %s is %s.", kind, name, p.words()), &undo
		}
	case count != "":
		number, _ := strconv.Atoi(count)
		n.Text = web.Units(number) + " went back into the queue."
		if more != "" {
			n.Text += " Others are left: do it again for them."
		}
	case verb == "redelivered":
		n.Text = "It is delivered again."
	case strings.HasPrefix(back, "/units/"):
		return a.noticeOfUnit(ctx, verb, back)
	case strings.HasPrefix(back, "/batch-list/"):
		return a.noticeOfBatch(ctx, verb, back)
	default:
		return nil, nil
	}
	return n, nil
}

func (a *API) noticeOfUnit(ctx context.Context, verb, back string) (*web.Notice, error) {
	u, err := url.Parse(back)
	if err != nil {
		return nil, err
	}
	id, err := parseID(strings.TrimPrefix(u.Path, "/units/"))
	if err != nil {
		return nil, err
	}
	unit, err := a.Store.Units.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	page := web.Unit{Unit: unit}
	n := &web.Notice{Close: back}
	switch {
	case verb == "cancelled" && page.CanRetry():
		n.Text = "It is cancelled."
		if unit.State != work.Cancelled {
			n.Text = "It ended before it could be cancelled."
		}
		retry := url.URL{Path: u.Path + "/retry", RawQuery: u.RawQuery}
		n.Undo = &web.Deed{Action: retry.String(), Verb: "Retry"}
	case verb == "cancelled" && page.Stopping():
		n.Text = "It was asked to stop and ends soon. What it has done so far is kept."
	case verb == "retried" && unit.State == work.Queued:
		n.Text = "It is back in the queue."
	case verb == "retried":
		n.Text = "It went back into the queue."
	default:
		return nil, nil
	}
	return n, nil
}

// theUnit is the unit of a path as its page has it, without its runs.
func (a *API) theUnit(c echo.Context) (web.Unit, error) {
	id, err := parseID(c.Param("id"))
	if err != nil {
		return web.Unit{}, err
	}
	unit, err := a.Store.Units.Get(c.Request().Context(), work.DefaultTenant, id)
	return web.Unit{Unit: unit, Filter: filterOf(c)}, err
}

func (a *API) askCancel(c echo.Context) error {
	u, err := a.theUnit(c)
	switch {
	case err != nil:
		return err
	case u.Stopping():
		return a.cannot(c, u, "It was asked to stop already and ends soon.")
	case !u.CanCancel():
		return a.cannot(c, u, "It has "+ended(u.State)+" already.")
	}
	return a.ask(c, http.StatusOK, web.AskCancel(u))
}

func (a *API) cannot(c echo.Context, u web.Unit, why string) error {
	return a.ask(c, http.StatusConflict, web.Ask{Title: "That is not possible", Error: why, Back: u.Path()})
}

func (a *API) cancelForm(c echo.Context) error {
	u, err := a.theUnit(c)
	if err != nil {
		return err
	}
	if _, err := a.form(c); err != nil {
		return err
	}
	_, err = a.cancelUnit(c.Request().Context(), &ByID{u.ID.String()})
	return a.acted(c, u.Path(), "cancelled", err)
}

func (a *API) askRetry(c echo.Context) error {
	u, err := a.theUnit(c)
	switch {
	case err != nil:
		return err
	case u.State == work.Succeeded:
		return a.cannot(c, u, "It has succeeded; submit it anew to have it done again.")
	case !u.CanRetry():
		return a.cannot(c, u, fmt.Sprintf("It is %s already.", u.State))
	}
	return a.ask(c, http.StatusOK, web.AskRetry(u, c.QueryParam("change") != ""))
}

func (a *API) retryForm(c echo.Context) error {
	u, err := a.theUnit(c)
	if err != nil {
		return err
	}
	values, err := a.form(c)
	if err != nil {
		return err
	}
	body, wrong := changesOf(u.Unit, values)
	if wrong != "" {
		ask := web.AskRetry(u, true)
		ask.Error = wrong
		ask.Change.Model, ask.Change.MaxTurns, ask.Change.OnDenied = values.Get("model"), values.Get("max_turns"), values.Get("on_denied")
		if !ask.Change.TooLong {
			ask.Change.Prompt = values.Get("prompt")
		}
		return a.ask(c, http.StatusUnprocessableEntity, ask)
	}
	_, err = a.retryUnit(c.Request().Context(), &retryInput{ByID{u.ID.String()}, body})
	return a.acted(c, u.Path(), "retried", err)
}

// changesOf is what a form says otherwise than the unit: what is as it was
// must not count as changed, for the unit would lose its session.
func changesOf(u work.Unit, form url.Values) (body *retryBody, wrong string) {
	body = &retryBody{}
	if model := strings.TrimSpace(form.Get("model")); model != "" && model != u.Model {
		if utf8.RuneCountInString(model) > 200 {
			return nil, "The model's name is longer than 200 characters."
		}
		body.Model = &model
	}
	if prompt := form.Get("prompt"); form.Has("prompt") && prompt != strings.ReplaceAll(u.Prompt, "\r\n", "\n") {
		if strings.TrimSpace(prompt) == "" {
			return nil, "The prompt is empty."
		}
		body.Prompt = &prompt
	}
	if text := strings.TrimSpace(form.Get("max_turns")); text != "" && (u.MaxTurns == 0 || text != strconv.Itoa(u.MaxTurns)) {
		turns, err := strconv.Atoi(text)
		if err != nil || turns < 1 || turns > 10_000 {
			return nil, "The turns must be a whole number from 1 to 10000."
		}
		body.MaxTurns = &turns
	}
	if denied := form.Get("on_denied"); denied != "" && denied != u.OnDenied {
		if denied != work.OnDeniedFail && denied != work.OnDeniedNote {
			return nil, "When a tool is denied must be fail or note."
		}
		body.OnDenied = &denied
	}
	return body, ""
}

// allOf is the units of the list that the query asks for, all of which can be
// run again.
func allOf(c echo.Context) (web.Filter, store.UnitFilter, error) {
	given, f, err := unitFilter(c)
	switch {
	case err != nil:
		return given, f, err
	case len(f.States) == 0 || slices.ContainsFunc(f.States, func(s work.State) bool { return !slices.Contains(store.Retryable, s) }):
		return given, f, badParameter("status", "must be some of "+joined(store.Retryable)+": only those can be run again")
	}
	return given, f, nil
}

func (a *API) askRetryAll(c echo.Context) error {
	given, f, err := allOf(c)
	if err != nil {
		return err
	}
	p, err := a.Store.Units.PreviewRetry(c.Request().Context(), f, store.Changes{}, previewed)
	if err != nil {
		return err
	}
	if p.Count == 0 {
		return a.ask(c, http.StatusConflict, web.Ask{Title: "That is not possible", Error: "No unit is like this any more.", Back: "/" + given.Query()})
	}
	return a.ask(c, http.StatusOK, web.AskRetryAll(given, p.Count, store.MaxBulk, p.Cost, p.Units))
}

func (a *API) retryAllForm(c echo.Context) error {
	given, f, err := allOf(c)
	if err != nil {
		return err
	}
	if _, err := a.form(c); err != nil {
		return err
	}
	result, err := a.retryAll(c.Request().Context(), f, store.Changes{})
	if err != nil {
		return err
	}
	done := fmt.Sprintf("retried:%d", result.Body.Count)
	if result.Body.More {
		done += "+"
	}
	return a.acted(c, "/"+given.Query(), done, nil)
}

var queueName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// theSwitch is a queue or a backend of a path.
func theSwitch(c echo.Context, kind store.PauseKind, back string) (web.Switch, error) {
	s := web.Switch{Kind: string(kind), Name: c.Param("name"), Back: ownPath(back)}
	if kind == store.PauseBackend {
		return s, knownBackend(s.Name)
	}
	if !queueName.MatchString(s.Name) {
		return s, work.ErrNotFound
	}
	return s, nil
}

// ownPath is where a form leads back to: a page of this server, or else the
// first.
func ownPath(back string) string {
	u, err := url.Parse(back)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") ||
		strings.ContainsAny(back, "\\\t\r\n") {
		return "/"
	}
	query := u.Query()
	query.Del("done")
	return (&url.URL{Path: u.Path, RawQuery: query.Encode()}).String()
}

func (a *API) askPause(kind store.PauseKind) echo.HandlerFunc {
	return func(c echo.Context) error {
		s, err := theSwitch(c, kind, c.QueryParam("back"))
		if err != nil {
			return err
		}
		return a.ask(c, http.StatusOK, web.AskPause(s))
	}
}

func (a *API) pauseForm(kind store.PauseKind) echo.HandlerFunc {
	return func(c echo.Context) error {
		values, err := a.form(c)
		if err != nil {
			return err
		}
		s, err := theSwitch(c, kind, values.Get("back"))
		if err != nil {
			return err
		}
		by, _ := work.Cut(values.Get("by"), 200)
		why, _ := work.Cut(values.Get("why"), 1000)
		_, err = a.pause(c.Request().Context(), kind, s.Name, &newPause{By: by, Why: why})
		return a.acted(c, s.Back, fmt.Sprintf("paused:%s:%s", kind, s.Name), err)
	}
}

func (a *API) resumeForm(kind store.PauseKind) echo.HandlerFunc {
	return func(c echo.Context) error {
		values, err := a.form(c)
		if err != nil {
			return err
		}
		s, err := theSwitch(c, kind, values.Get("back"))
		if err != nil {
			return err
		}
		_, err = a.resume(c.Request().Context(), kind, s.Name)
		return a.acted(c, s.Back, fmt.Sprintf("resumed:%s:%s", kind, s.Name), err)
	}
}
