package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"

	"piecework/api/problem"
	"piecework/internal/strictjson"
	"piecework/internal/work"
)

// drained is how much of a body over the cap is read and thrown away: most
// callers look for an answer only when they have sent everything.
const drained = 64 << 20

// checkBody refuses what encoding/json would quietly mend: duplicate names,
// lone surrogates, invalid UTF-8. It also refuses NUL characters, which
// Postgres cannot hold, and bodies over the cap. curl's default content type
// is taken for JSON, because that is what people mean by `curl -d '{…}'`.
func (a *API) checkBody(ctx huma.Context, next func(huma.Context)) {
	if body := ctx.Operation().RequestBody; body == nil || body.Content["application/json"] == nil {
		next(ctx)
		return
	}
	c := humaecho.Unwrap(ctx)
	release := a.holdBody(c.Request())
	defer release()
	body, problem := a.readBody(c.Response(), c.Request())
	empty := problem == nil && len(bytes.TrimSpace(body)) == 0
	switch {
	case empty && ctx.Operation().RequestBody.Required:
		problem = badBody("", "there is no body; send a JSON object")
	case problem == nil && !empty:
		problem = validate(ctx.Context(), a.huma.OpenAPI().Components.Schemas, ctx.Operation().RequestBody.Content["application/json"].Schema, body)
	}
	if problem != nil {
		a.refuse(ctx, problem)
		return
	}
	r := c.Request()
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	next(huma.WithContext(ctx, context.WithValue(ctx.Context(), bodyKey{}, body)))
}

// refuse answers a request that gets no further.
func (a *API) refuse(ctx huma.Context, p *problem.Problem) { a.answerError(p, humaecho.Unwrap(ctx)) }

type bodyKey struct{}

// rawBody is the request's body as it came.
func rawBody(ctx context.Context) []byte {
	body, _ := ctx.Value(bodyKey{}).([]byte)
	return body
}

func (a *API) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *problem.Problem) {
	if problem := checkBodyHeaders(r.Header); problem != nil {
		return nil, problem
	}
	body, problem := a.readRaw(w, r, a.MaxBody, "; put large inputs into files and name them in file_path")
	if problem != nil {
		return nil, problem
	}
	return body, checkJSON(body)
}

// holdBody lets what is read of a body count against the budget of all, until
// release is called.
func (a *API) holdBody(r *http.Request) (release func()) {
	h := &held{ReadCloser: r.Body, budget: a.flight}
	r.Body = h
	return h.drop
}

// readRaw reads a body of any kind, of so many bytes at most; hint follows when
// it is too large.
func (a *API) readRaw(w http.ResponseWriter, r *http.Request, most int64, hint string) ([]byte, *problem.Problem) {
	tooBig := problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes%s", most, hint))
	if r.ContentLength > most {
		if r.Header.Get("Expect") == "" { // who asks first has not begun
			_, _ = io.CopyN(io.Discard, uncounted(r.Body), drained)
		}
		return nil, tooBig
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if tooLarge(err) {
		_, _ = io.CopyN(io.Discard, uncounted(r.Body), drained)
		return nil, tooBig
	}
	return body, a.unread(err)
}

func tooLarge(err error) bool {
	var over *http.MaxBytesError
	return errors.As(err, &over)
}

// unread says why a body could not be read, nil when it could.
func (a *API) unread(err error) *problem.Problem {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoRoom):
		return errNoRoom.Again()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return problem.New(http.StatusRequestTimeout, fmt.Sprintf("the body did not arrive within %s", a.bodyTime))
	}
	return problem.New(http.StatusBadRequest, "the body could not be read to its end: it is shorter than announced, or cut off")
}

func checkBodyHeaders(h http.Header) *problem.Problem {
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return problem.New(http.StatusUnsupportedMediaType, "send the body without Content-Encoding")
	}
	given := h.Get("Content-Type")
	if given == "" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") && kind != "application/x-www-form-urlencoded" {
		return problem.New(http.StatusUnsupportedMediaType, "the body must be JSON: send Content-Type: application/json")
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return problem.New(http.StatusUnsupportedMediaType, "the body must be UTF-8: JSON has no other character set")
	}
	return nil
}

// checkJSON returns a Problem that points at what is wrong with body.
func checkJSON(body []byte) *problem.Problem {
	if wrong := strictjson.Check(body); wrong != nil {
		return badJSON(wrong)
	}
	return nil
}

// validate compares a body, which checkJSON must have passed, with a schema.
func validate(ctx context.Context, registry huma.Registry, schema *huma.Schema, body []byte) *problem.Problem {
	shown, count, err := strictjson.Validate(ctx, registry, schema, body)
	switch {
	case err != nil:
		return problem.New(statusClientGone, "the body was not read to its end: "+err.Error())
	case count == 0:
		return nil
	}
	return manyFields(http.StatusUnprocessableEntity, problem.Faults(shown), count)
}

func badBody(pointer, detail string) *problem.Problem {
	return badJSON(&work.Invalid{Pointer: "#" + pointer, Detail: detail})
}

func badJSON(wrong *work.Invalid) *problem.Problem {
	return problem.Fields(http.StatusBadRequest, fault(*wrong))
}

func fault(wrong work.Invalid) problem.Field {
	return problem.Field{Pointer: wrong.Pointer, Detail: wrong.Detail}
}

// manyFields is a problem about count fields, some of which are shown.
func manyFields(status int, shown []problem.Field, count int) *problem.Problem {
	slices.SortStableFunc(shown, func(a, b problem.Field) int { return cmp.Compare(a.Pointer, b.Pointer) })
	p := problem.Fields(status, shown...)
	if count > len(shown) {
		p.Detail += fmt.Sprintf(" (the first %d of %d errors are shown)", len(shown), count)
	}
	return p
}
