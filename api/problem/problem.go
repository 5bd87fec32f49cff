// Package problem has errors as callers see them: problem+json, and the one
// place that turns an error into a status.
package problem

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"piecework/internal/blob"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// Problem is an error as RFC 9457 has it.
type Problem struct {
	Type      string  `json:"type" doc:"about:blank, or a URI that names the kind of problem"`
	Title     string  `json:"title"`
	Status    int     `json:"status"`
	Detail    string  `json:"detail" doc:"What happened and what to do"`
	RequestID string  `json:"request_id,omitempty" doc:"Names this request in the server's log"`
	Errors    []Field `json:"errors,omitempty" doc:"Each field at fault"`

	RetryAfter int    `json:"-"` // seconds
	Code       string `json:"-"` // as OpenAI names it
}

// Field is one field at fault.
type Field struct {
	Pointer   string `json:"pointer,omitempty" doc:"JSON pointer into the body (RFC 6901)"`
	Parameter string `json:"parameter,omitempty" doc:"Name of a query parameter, path part or header"`
	Detail    string `json:"detail"`
}

func (p *Problem) Error() string { return p.Detail }

func (p *Problem) GetStatus() int { return p.Status }

func (p *Problem) ContentType(string) string { return "application/problem+json" }

func (p *Problem) GetHeaders() http.Header {
	if p.RetryAfter == 0 {
		return nil
	}
	return http.Header{"Retry-After": {strconv.Itoa(p.RetryAfter)}}
}

// New makes a problem of a status.
func New(status int, detail string, errs ...Field) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Errors: errs}
}

// maxPointer is how long a pointer of an answer may be, in bytes: names in a
// body may be of any length.
const maxPointer = 1000

// Fields is about fields; its detail is the first of them.
func Fields(status int, fields ...Field) *Problem {
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
	return New(status, where+first.Detail, fields...)
}

// Of is the one place that says which problem an error is.
func Of(err error) *Problem {
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
		return Fields(http.StatusUnprocessableEntity, Field{Pointer: invalid.Pointer, Detail: invalid.Detail})
	case errors.As(err, &items):
		p := Fields(http.StatusBadRequest, Faults(items.Fields)...)
		p.Detail += items.Note()
		return p
	case errors.As(err, &fields):
		return Fields(http.StatusUnprocessableEntity, Faults(fields.Fields)...)
	case errors.Is(err, store.ErrKeyReused):
		p := New(http.StatusUnprocessableEntity, "this Idempotency-Key came before with another body; use a new key for new work",
			Field{Parameter: "Idempotency-Key", Detail: "used before with another body"})
		p.Type, p.Title = "/problems/idempotency-key-reused", "Idempotency key reused"
		return p
	case errors.Is(err, work.ErrNotFound):
		return New(http.StatusNotFound, "there is no such thing here; check the id")
	case errors.As(err, &removed):
		return New(http.StatusGone, removed.Error())
	case errors.Is(err, work.ErrConflict):
		return New(http.StatusConflict, conflictDetail(err))
	case errors.As(err, &away):
		p := New(http.StatusServiceUnavailable, away.What+" cannot be reached; try again, and if it makes a unit, under the same Idempotency-Key: it may have been committed")
		p.RetryAfter = max(int(away.RetryAfter.Seconds()), 1)
		return p
	case errors.Is(err, blob.ErrFull):
		return New(http.StatusInsufficientStorage, "the file store has no room left; delete files or make it larger")
	case errors.As(err, &route):
		return New(route.Code, routeDetail(route))
	}
	return New(http.StatusInternalServerError, "something failed here; the server's log has it under the request id")
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

type requestID struct{}

// RequestID is the id under which the log knows a request.
func RequestID(c echo.Context) string { return c.Response().Header().Get(echo.HeaderXRequestID) }

// WithRequestID makes the id of a request known to all that its context reaches.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestID{}, id)
}

// RequestIDOf is the id of the request that a context is of.
func RequestIDOf(ctx context.Context) string {
	id, _ := ctx.Value(requestID{}).(string)
	return id
}

// Again is the problem for one more answer.
func (p *Problem) Again() *Problem { copied := *p; return &copied }

// Busy is for who came at a bad moment.
func Busy(detail string) *Problem {
	p := New(http.StatusServiceUnavailable, detail)
	p.RetryAfter = 1
	return p
}

// Parameter is about a parameter of the query.
func Parameter(name, detail string) *Problem {
	return Fields(http.StatusUnprocessableEntity, Field{Parameter: name, Detail: detail})
}

// Faults are what is wrong with a body, as fields.
func Faults(list []work.Invalid) []Field {
	fields := make([]Field, len(list))
	for i, wrong := range list {
		fields[i] = Field{Pointer: wrong.Pointer, Detail: wrong.Detail}
	}
	return fields
}
