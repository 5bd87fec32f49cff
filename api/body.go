package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth bounds how deep a body may be nested.
const maxDepth = 100

// checkBody refuses what encoding/json would quietly mend: duplicate names,
// lone surrogates, invalid UTF-8. It also refuses NUL characters, which
// Postgres cannot hold, and bodies over the cap. curl's default content type
// is taken for JSON, because that is what people mean by `curl -d '{…}'`.
func (a *API) checkBody(ctx huma.Context, next func(huma.Context)) {
	if ctx.Operation().RequestBody == nil {
		next(ctx)
		return
	}
	r := humaecho.Unwrap(ctx).Request()
	body, problem := a.readBody(r)
	if problem != nil {
		problem.RequestID = requestIDFrom(ctx.Context())
		a.answerError(problem, humaecho.Unwrap(ctx))
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	next(huma.WithContext(ctx, context.WithValue(ctx.Context(), bodyKey{}, body)))
}

type bodyKey struct{}

// rawBody is the request's body as it came.
func rawBody(ctx context.Context) []byte {
	body, _ := ctx.Value(bodyKey{}).([]byte)
	return body
}

func (a *API) readBody(r *http.Request) ([]byte, *Problem) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Header.Get("Content-Type") != "" &&
		(err != nil || (kind != "application/json" && !strings.HasSuffix(kind, "+json") && kind != "application/x-www-form-urlencoded")) {
		return nil, newProblem(http.StatusUnsupportedMediaType, "the body must be JSON: send Content-Type: application/json")
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, newProblem(http.StatusUnsupportedMediaType, "send the body without Content-Encoding")
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, a.MaxBody))
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		return nil, newProblem(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the body is larger than %d bytes; put large inputs into files and name them in file_path", a.MaxBody))
	}
	if err != nil {
		return nil, newProblem(http.StatusBadRequest, "the body could not be read to its end: "+err.Error())
	}
	return body, checkJSON(body)
}

// checkJSON returns a Problem that points at what is wrong with body. An empty
// body is left to the route, which knows whether it needs one.
func checkJSON(body []byte) *Problem {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewReader(body))
	for {
		token, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return syntaxProblem(err)
		}
		if token.Kind() == '"' && strings.ContainsRune(token.String(), 0) {
			return badBody(string(dec.StackPointer()), "text must not contain the NUL character (\\u0000); take it out")
		}
		if dec.StackDepth() > maxDepth {
			return badBody(string(dec.StackPointer()), fmt.Sprintf("nested deeper than %d levels", maxDepth))
		}
		if dec.StackDepth() == 0 && len(bytes.TrimSpace(body[dec.InputOffset():])) > 0 {
			return badBody("", "there is more than one JSON value in the body; send one object")
		}
	}
}

func syntaxProblem(err error) *Problem {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return badBody("", "the body is not JSON: "+err.Error())
	}
	pointer := string(syntax.JSONPointer)
	what := "the body is not JSON"
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		what = "the same name comes twice in one object; keep one of them"
	case strings.Contains(syntax.Err.Error(), "surrogate"):
		what = "half a surrogate pair (\\ud800 to \\udfff) is no character; send it as a pair or take it out"
	case strings.Contains(syntax.Err.Error(), "UTF-8"):
		what = "the body is not valid UTF-8"
	default:
		what = fmt.Sprintf("%s: %v at byte %d", what, syntax.Err, syntax.ByteOffset)
	}
	return badBody(pointer, what)
}

func badBody(pointer, detail string) *Problem {
	return newProblem(http.StatusBadRequest, detail, ProblemError{Pointer: "#" + pointer, Detail: detail})
}
