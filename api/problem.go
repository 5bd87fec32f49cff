package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"piecework/internal/blob"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/jobs"
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
	code       string // as OpenAI names it
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

// statusClientGone is nginx's number for a caller who did not wait for the
// answer. Nobody reads it but the metrics.
const statusClientGone = 499

func newProblem(status int, detail string, errs ...ProblemError) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Errors: errs}
}

// maxPointer is how long a pointer of an answer may be, in bytes: names in a
// body may be of any length.
const maxPointer = 1000

// newFieldsProblem is about fields; its detail is the first of them.
func newFieldsProblem(status int, fields ...ProblemError) *Problem {
	for i, field := range fields {
		if short, cut := work.Cut(field.Pointer, maxPointer); cut {
			fields[i].Pointer = short + "…"
		}
	}
	first := fields[0]
	where := strings.TrimLeft(first.Pointer+first.Parameter, "#/")
	if where != "" {
		where += ": "
	}
	return newProblem(status, where+first.Detail, fields...)
}

// problem is the one place where an error becomes an answer. What a caller
// may not see is logged here and nowhere else.
func (a *API) problem(ctx context.Context, err error) *Problem {
	if errors.Is(context.Cause(ctx), errNoAnswer) {
		err = errNoAnswer
	}
	p := problemOf(err)
	if ctx.Err() != nil && p.Status >= 500 && !errors.Is(err, errNoAnswer) {
		p = newProblem(statusClientGone, "the caller has gone away")
	}
	p.RequestID = requestIDFrom(ctx)
	if p.Status == http.StatusInternalServerError {
		a.Log.Error("request failed", "err", err, "request_id", p.RequestID)
	}
	return p
}

func problemOf(err error) *Problem {
	var p *Problem
	var invalid *work.Invalid
	var fields *work.InvalidFields
	var items *jobs.RefusedItems
	var away *work.Unavailable
	var removed *work.RemovedError
	var route *echo.HTTPError
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &invalid):
		return newFieldsProblem(http.StatusUnprocessableEntity, ProblemError{Pointer: invalid.Pointer, Detail: invalid.Detail})
	case errors.As(err, &items):
		p := newFieldsProblem(http.StatusBadRequest, faults(items.Fields)...)
		p.Detail += items.Note()
		return p
	case errors.As(err, &fields):
		return newFieldsProblem(http.StatusUnprocessableEntity, faults(fields.Fields)...)
	case errors.Is(err, store.ErrKeyReused):
		p := newProblem(http.StatusUnprocessableEntity, "this Idempotency-Key came before with another body; use a new key for new work",
			ProblemError{Parameter: "Idempotency-Key", Detail: "used before with another body"})
		p.Type, p.Title = "/problems/idempotency-key-reused", "Idempotency key reused"
		return p
	case errors.Is(err, work.ErrNotFound):
		return newProblem(http.StatusNotFound, "there is no such thing here; check the id")
	case errors.As(err, &removed):
		return newProblem(http.StatusGone, removed.Error())
	case errors.Is(err, work.ErrConflict):
		return newProblem(http.StatusConflict, conflictDetail(err))
	case errors.As(err, &away):
		p := newProblem(http.StatusServiceUnavailable, away.What+" cannot be reached; try again, and if it makes a unit, under the same Idempotency-Key: it may have been committed")
		p.retryAfter = max(int(away.RetryAfter.Seconds()), 1)
		return p
	case errors.Is(err, blob.ErrFull):
		return newProblem(http.StatusInsufficientStorage, "the file store has no room left; delete files or make it larger")
	case errors.As(err, &route):
		return newProblem(route.Code, routeDetail(route))
	}
	return newProblem(http.StatusInternalServerError, "something failed here; the server's log has it under the request id")
}

// conflictDetail is what follows ErrConflict, without the steps it came by.
func conflictDetail(err error) string {
	_, detail, ok := strings.Cut(err.Error(), work.ErrConflict.Error()+": ")
	if !ok {
		return "the thing is not in a state for that"
	}
	return detail
}

func routeDetail(e *echo.HTTPError) string {
	switch e.Code {
	case http.StatusNotFound:
		return "no such path; /docs describes the API"
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
	status, kind, answer := envelope(c.Request().URL.Path, p)
	body, err := json.Marshal(answer)
	if err != nil {
		a.Log.Error("encode problem", "err", err)
	}
	for name, values := range p.GetHeaders() {
		c.Response().Header()[name] = values
	}
	if err := c.Blob(status, kind, body); err != nil {
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
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return humaProblem(status, msg, errs)
	}
})

func humaProblem(status int, msg string, errs []error) *Problem {
	var fields []ProblemError
	for _, err := range errs[:min(len(errs), strictjson.MaxShown)] {
		var detailed huma.ErrorDetailer
		if errors.As(err, &detailed) {
			fields = append(fields, fieldError(detailed.ErrorDetail()))
		} else {
			fields = append(fields, ProblemError{Detail: err.Error()})
		}
	}
	if len(fields) == 0 {
		return newProblem(status, msg)
	}
	return manyFields(status, fields, len(errs))
}

// fieldError is an error of huma's about a parameter, or about a body that
// could not be read into its type: what the schema says of bodies is validated
// before huma sees them.
func fieldError(d *huma.ErrorDetail) ProblemError {
	place, rest, _ := strings.Cut(d.Location, ".")
	if place != "body" {
		return ProblemError{Parameter: rest, Detail: d.Message}
	}
	if name, detail, ok := strings.Cut(d.Message, mistyped); ok {
		return ProblemError{Pointer: "#/" + strings.ReplaceAll(name, ".", "/"), Detail: strings.TrimLeft(mistyped, " ") + detail}
	}
	return ProblemError{Pointer: "#", Detail: d.Message}
}

// mistyped stands between a field's name and what it must be.
const mistyped = " must be written as "

// jsonFormat is huma's, with encoding/json's words for a value of the wrong
// type put into ours: its own name Go types.
func jsonFormat() huma.Format {
	f := huma.DefaultJSONFormat
	read := f.Unmarshal
	f.Unmarshal = func(data []byte, v any) error {
		err := read(data, v)
		var wrong *json.UnmarshalTypeError
		if !errors.As(err, &wrong) || wrong.Field == "" {
			return err
		}
		kind := "a " + wrong.Type.Kind().String()
		if wrong.Type.Kind() == reflect.Int {
			kind = "a whole number, without point or exponent"
		}
		return errors.New(wrong.Field + mistyped + kind)
	}
	return f
}

type requestIDKey struct{}

func requestID(c echo.Context) string { return c.Response().Header().Get(echo.HeaderXRequestID) }

func requestIDFrom(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}
