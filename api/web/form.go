package web

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/api/web/page"
	"piecework/internal/work"
)

// maxForm is the size of a form at most, in bytes: a prompt that can be
// edited, each byte as three.
const maxForm = 512 << 10

// form reads what a form of the pages sends. Only here is a body anything but
// JSON or a file.
func (a *site) form(c echo.Context) (url.Values, error) {
	r := c.Request()
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, problem.New(http.StatusUnsupportedMediaType, "this path takes the forms of the pages; programs use /work-units, see /docs")
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), r.Body, maxForm))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the form is larger than %d bytes; use POST /work-units/{id}/retry for long prompts", maxForm))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, problem.New(http.StatusRequestTimeout, fmt.Sprintf("the form did not arrive within %s", a.BodyTime))
	case err != nil:
		return nil, problem.New(http.StatusBadRequest, "the form could not be read to its end")
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, problem.New(http.StatusBadRequest, "the form cannot be read: "+err.Error())
	}
	for name, all := range values {
		for i, text := range all {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return nil, problem.Fields(http.StatusBadRequest, problem.Field{Parameter: work.Clean(name), Detail: "must be UTF-8 without NUL characters"})
			}
			all[i] = strings.ReplaceAll(text, "\r\n", "\n") // browsers send every line's end so
		}
	}
	return values, nil
}

// ask shows a question with what follows from it: in a page, or for a dialog.
func (a *site) ask(c echo.Context, status int, ask page.Ask) error {
	if c.Request().Header.Get(partHeader) != "" {
		return a.renderAs(c, status, ask.Part())
	}
	return a.renderAs(c, status, ask)
}

// acted ends a deed: with the way back, where it is told by the query's done;
// for the script with the notice itself. A conflict is told as well.
func (a *site) acted(c echo.Context, back, done string, err error) error {
	var p *problem.Problem
	switch {
	case err != nil && problem.Of(err).Status == http.StatusConflict:
		p = problem.Of(err)
	case err != nil:
		return err
	}
	script := c.Request().Header.Get(partHeader) != ""
	switch {
	case p != nil && !script:
		return a.ask(c, p.Status, page.Ask{Title: "That is not possible", Error: p.Detail, Back: back})
	case p != nil:
		return a.renderAs(c, p.Status, page.Part{Name: "notice", Data: page.Notice{Text: p.Detail, Wrong: true, Close: back}})
	case script:
		notice, err := a.notice(c.Request().Context(), done, back)
		if err != nil {
			return err
		}
		return a.render(c, page.Part{Name: "notice", Data: notice})
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
