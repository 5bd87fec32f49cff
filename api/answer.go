package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/strictjson"
)

// statusClientGone is nginx's number for a caller who did not wait for the
// answer. Nobody reads it but the metrics.
const statusClientGone = 499

// problem is the one place where an error becomes an answer. What a caller
// may not see is logged here and nowhere else.
func (a *API) problem(ctx context.Context, err error) *problem.Problem {
	if errors.Is(context.Cause(ctx), body.ErrNoAnswer) {
		err = body.ErrNoAnswer
	}
	p := problem.Of(err)
	if ctx.Err() != nil && p.Status >= 500 && !errors.Is(err, body.ErrNoAnswer) {
		p = problem.New(statusClientGone, "the caller has gone away")
	}
	p.RequestID = problem.RequestIDOf(ctx)
	if p.Status == http.StatusInternalServerError {
		a.Log.Error("request failed", "err", err, "request_id", p.RequestID)
	}
	return p
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
			p.RequestID = problem.RequestIDOf(ctx.Context())
		}
		return p
	}
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return humaProblem(status, msg, errs)
	}
})

func humaProblem(status int, msg string, errs []error) *problem.Problem {
	var fields []problem.Field
	for _, err := range errs[:min(len(errs), strictjson.MaxShown)] {
		var detailed huma.ErrorDetailer
		if errors.As(err, &detailed) {
			fields = append(fields, fieldError(detailed.ErrorDetail()))
		} else {
			fields = append(fields, problem.Field{Detail: err.Error()})
		}
	}
	if len(fields) == 0 {
		return problem.New(status, msg)
	}
	return body.ManyFields(status, fields, len(errs))
}

// fieldError is an error of huma's about a parameter, or about a body that
// could not be read into its type: what the schema says of bodies is validated
// before huma sees them.
func fieldError(d *huma.ErrorDetail) problem.Field {
	place, rest, _ := strings.Cut(d.Location, ".")
	if place != "body" {
		return problem.Field{Parameter: rest, Detail: d.Message}
	}
	if name, detail, ok := strings.Cut(d.Message, mistyped); ok {
		return problem.Field{Pointer: "#/" + strings.ReplaceAll(name, ".", "/"), Detail: strings.TrimLeft(mistyped, " ") + detail}
	}
	return problem.Field{Pointer: "#", Detail: d.Message}
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
