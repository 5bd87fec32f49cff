package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/internal/work"
	"piecework/store"
)

// Problem is an error as RFC 9457 has it.
type Problem struct {
	Type      string         `json:"type" doc:"about:blank, or a URI that names the kind of problem"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail" doc:"What happened and what to do"`
	RequestID string         `json:"request_id,omitempty" doc:"Names this request in the server's log"`
	Errors    []ProblemError `json:"errors,omitempty" doc:"Each field at fault"`

	retryAfter int
}

// ProblemError is one field at fault.
type ProblemError struct {
	Pointer   string `json:"pointer,omitempty" doc:"JSON pointer into the body (RFC 6901)"`
	Parameter string `json:"parameter,omitempty" doc:"Name of a query parameter, path part or header"`
	Detail    string `json:"detail"`
}

func (p *Problem) Error() string             { return p.Detail }
func (p *Problem) GetStatus() int            { return p.Status }
func (p *Problem) ContentType(string) string { return "application/problem+json" }
func (p *Problem) GetHeaders() http.Header {
	if p.retryAfter == 0 {
		return nil
	}
	return http.Header{"Retry-After": {strconv.Itoa(p.retryAfter)}}
}

func newProblem(status int, detail string, errs ...ProblemError) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Errors: errs}
}

// problem is the one place where an error becomes an answer. What a caller
// may not see is logged here and nowhere else.
func (a *API) problem(ctx context.Context, err error) *Problem {
	p := a.problemOf(err)
	p.RequestID = requestIDFrom(ctx)
	if p.Status == http.StatusInternalServerError && ctx.Err() == nil {
		a.Log.Error("request failed", "err", err, "request_id", p.RequestID)
	}
	return p
}

func (a *API) problemOf(err error) *Problem {
	var p *Problem
	var invalid *work.Invalid
	var away *work.Unavailable
	var route *echo.HTTPError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &invalid):
		status := http.StatusUnprocessableEntity
		if invalid.Status != 0 {
			status = invalid.Status
		}
		return newProblem(status, invalid.Detail, ProblemError{Pointer: invalid.Pointer, Detail: invalid.Detail})
	case errors.Is(err, store.ErrKeyReused):
		p := newProblem(http.StatusUnprocessableEntity, "this Idempotency-Key came before with another body; use a new key for new work",
			ProblemError{Parameter: "Idempotency-Key", Detail: "used before with another body"})
		p.Type, p.Title = "/problems/idempotency-key-reused", "Idempotency key reused"
		return p
	case errors.Is(err, work.ErrNotFound):
		return newProblem(http.StatusNotFound, "there is no such thing here; check the id")
	case errors.Is(err, work.ErrConflict):
		return newProblem(http.StatusConflict, strings.TrimPrefix(err.Error(), work.ErrConflict.Error()+": "))
	case errors.As(err, &away):
		p := newProblem(http.StatusServiceUnavailable, away.What+" cannot be reached; nothing was changed, try again")
		p.retryAfter = max(int(away.RetryAfter.Seconds()), 1)
		return p
	case errors.As(err, &route):
		return newProblem(route.Code, routeDetail(route))
	}
	return newProblem(http.StatusInternalServerError, "something failed here; the server's log has it under the request id")
}

func routeDetail(e *echo.HTTPError) string {
	switch e.Code {
	case http.StatusNotFound:
		return "no such path; /docs lists them all"
	case http.StatusMethodNotAllowed:
		return "this path does not take that method; /docs lists what it takes"
	}
	return fmt.Sprint(e.Message)
}

// answerError answers for everything outside the native routes.
func (a *API) answerError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	p := a.problem(c.Request().Context(), err)
	p.RequestID = requestID(c)
	body, err := json.Marshal(p)
	if err != nil {
		a.Log.Error("encode problem", "err", err)
	}
	for name, values := range p.GetHeaders() {
		c.Response().Header()[name] = values
	}
	if err := c.Blob(p.Status, "application/problem+json", body); err != nil {
		a.Log.Debug("answer", "err", err)
	}
}

// useProblems makes huma speak problem+json the way we do. Huma keeps this
// choice in a package variable.
var useProblems = sync.OnceFunc(func() {
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		p := humaProblem(status, msg, errs)
		if ctx != nil {
			p.RequestID = requestIDFrom(ctx.Context())
		}
		return p
	}
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError { return humaProblem(status, msg, errs) }
})

func humaProblem(status int, msg string, errs []error) *Problem {
	p := newProblem(status, msg)
	for _, err := range errs {
		var detailed huma.ErrorDetailer
		if !errors.As(err, &detailed) {
			p.Errors = append(p.Errors, ProblemError{Detail: err.Error()})
			continue
		}
		p.Errors = append(p.Errors, fieldError(detailed.ErrorDetail()))
	}
	if len(p.Errors) > 0 {
		first := p.Errors[0]
		p.Detail = strings.TrimLeft(first.Pointer+first.Parameter+": ", ": #/") + first.Detail
	}
	return p
}

func fieldError(d *huma.ErrorDetail) ProblemError {
	place, rest, _ := strings.Cut(d.Location, ".")
	e := ProblemError{Detail: d.Message}
	if place != "body" {
		e.Parameter = rest
		return e
	}
	e.Pointer = "#"
	for part := range strings.FieldsFuncSeq(rest, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		e.Pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(part)
	}
	if d.Message == "unexpected property" {
		e.Detail = unknownField(rest)
	}
	return e
}

// later are fields that other versions of Piecework know.
var later = map[string]string{
	"files":        "uploads are not supported by this server; name files in the payload's file_path or file_paths",
	"callback_url": "webhooks are not supported by this server; poll the unit or use ?wait=",
	"cache":        "the result cache is not supported by this server; leave cache out",
	"batch_id":     "batches are not supported by this server; submit units one by one",
	"expires_at":   "expires_at is not supported by this server; use deadline",
}

func unknownField(name string) string {
	if why, ok := later[name]; ok {
		return why
	}
	return fmt.Sprintf("there is no field %q; check its spelling against /docs", name)
}

type requestIDKey struct{}

func newRequestID() string { return uuid.NewString() }

func requestID(c echo.Context) string { return c.Response().Header().Get(echo.HeaderXRequestID) }

func requestIDFrom(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}
