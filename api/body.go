package api

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/strictjson"
)

// checkBody refuses what encoding/json would quietly mend: duplicate names,
// lone surrogates, invalid UTF-8. It also refuses NUL characters, which
// Postgres cannot hold, and bodies over the cap. curl's default content type
// is taken for JSON, because that is what people mean by `curl -d '{…}'`.
func (a *API) checkBody(ctx huma.Context, next func(huma.Context)) {
	if sent := ctx.Operation().RequestBody; sent == nil || sent.Content["application/json"] == nil {
		next(ctx)
		return
	}
	c := humaecho.Unwrap(ctx)
	release := a.bodies.Hold(c.Request())
	defer release()
	sent, problem := a.bodies.Read(c.Response(), c.Request())
	empty := problem == nil && len(bytes.TrimSpace(sent)) == 0
	switch {
	case empty && ctx.Operation().RequestBody.Required:
		problem = body.Bad("", "there is no body; send a JSON object")
	case problem == nil && !empty:
		problem = validate(ctx.Context(), a.huma.OpenAPI().Components.Schemas, ctx.Operation().RequestBody.Content["application/json"].Schema, sent)
	}
	if problem != nil {
		a.refuse(ctx, problem)
		return
	}
	r := c.Request()
	r.Body = io.NopCloser(bytes.NewReader(sent))
	r.Header.Set("Content-Type", "application/json")
	next(huma.WithContext(ctx, context.WithValue(ctx.Context(), bodyKey{}, sent)))
}

// refuse answers a request that gets no further.
func (a *API) refuse(ctx huma.Context, p *problem.Problem) { a.answerError(p, humaecho.Unwrap(ctx)) }

type bodyKey struct{}

// rawBody is the request's body as it came.
func rawBody(ctx context.Context) []byte {
	sent, _ := ctx.Value(bodyKey{}).([]byte)
	return sent
}

// validate compares a body, which checkJSON must have passed, with a schema.
func validate(ctx context.Context, registry huma.Registry, schema *huma.Schema, sent []byte) *problem.Problem {
	shown, count, err := strictjson.Validate(ctx, registry, schema, sent)
	switch {
	case err != nil:
		return problem.New(statusClientGone, "the body was not read to its end: "+err.Error())
	case count == 0:
		return nil
	}
	return body.ManyFields(http.StatusUnprocessableEntity, problem.Faults(shown), count)
}
