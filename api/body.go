package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxDepth  = 100     // levels a body may be nested
	maxNames  = 100_000 // object members in a body
	maxValues = 250_000 // values in a body, objects and arrays among them
	maxDigits = 1000    // bytes of a number
	// maxNameBytes is how long an object member's name may be as it is written.
	maxNameBytes = 10_000
	// drained is how much of a body over the cap is read and thrown away: most
	// callers look for an answer only when they have sent everything.
	drained = 64 << 20
)

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
func (a *API) refuse(ctx huma.Context, p *Problem) { a.answerError(p, humaecho.Unwrap(ctx)) }

type bodyKey struct{}

// rawBody is the request's body as it came.
func rawBody(ctx context.Context) []byte {
	body, _ := ctx.Value(bodyKey{}).([]byte)
	return body
}

func (a *API) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *Problem) {
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
func (a *API) readRaw(w http.ResponseWriter, r *http.Request, most int64, hint string) ([]byte, *Problem) {
	tooBig := newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes%s", most, hint))
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
func (a *API) unread(err error) *Problem {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoRoom):
		return errNoRoom.again()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newProblem(http.StatusRequestTimeout, fmt.Sprintf("the body did not arrive within %s", a.bodyTime))
	}
	return newProblem(http.StatusBadRequest, "the body could not be read to its end: it is shorter than announced, or cut off")
}

func checkBodyHeaders(h http.Header) *Problem {
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return newProblem(http.StatusUnsupportedMediaType, "send the body without Content-Encoding")
	}
	given := h.Get("Content-Type")
	if given == "" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") && kind != "application/x-www-form-urlencoded" {
		return newProblem(http.StatusUnsupportedMediaType, "the body must be JSON: send Content-Type: application/json")
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return newProblem(http.StatusUnsupportedMediaType, "the body must be UTF-8: JSON has no other character set")
	}
	return nil
}

// checkJSON returns a Problem that points at what is wrong with body. An empty
// body is left to the route, which knows whether it needs one.
func checkJSON(body []byte) *Problem {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(body)) // of a Buffer nothing is copied
	values, names := 0, 0
	for {
		wrong, err := readToken(dec)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return syntaxProblem(err)
		}
		if kind, length := dec.StackIndex(dec.StackDepth()); kind == '{' && length%2 == 1 {
			names++
		} else {
			values++
		}
		switch {
		case wrong == longName:
			return badBody("", wrong) // the pointer would have all of it
		case wrong != "":
			return badBody(string(dec.StackPointer()), wrong)
		case names > maxNames:
			return badBody("", fmt.Sprintf("there are more than %d names in the body; put large inputs into files", maxNames))
		case values > maxValues:
			return badBody("", fmt.Sprintf("there are more than %d values in the body; put large inputs into files", maxValues))
		case dec.StackDepth() > maxDepth:
			return badBody(string(dec.StackPointer()), fmt.Sprintf("nested deeper than %d levels", maxDepth))
		case dec.StackDepth() == 0 && len(bytes.TrimSpace(body[dec.InputOffset():])) > 0:
			return badBody("", "there is more than one JSON value in the body; send one object")
		}
	}
}

// readToken reads a token and says what is wrong with one that is good JSON
// and yet cannot be kept.
func readToken(dec *jsontext.Decoder) (wrong string, err error) {
	switch dec.PeekKind() {
	case '"':
		name, length := dec.StackIndex(dec.StackDepth())
		text, err := dec.ReadValue()
		switch {
		case err != nil:
			return "", err
		case holdsNUL(text):
			wrong = "text must not contain the NUL character (\\u0000); take it out"
		case name == '{' && length%2 == 0 && len(text) > maxNameBytes:
			wrong = longName
		}
		return wrong, nil
	case '0':
		digits, err := dec.ReadValue()
		if err != nil {
			return "", err
		}
		if len(digits) > maxDigits || !inRange(digits) {
			wrong = "the number is out of range; write it as text"
		}
		return wrong, nil
	}
	_, err = dec.ReadToken()
	return "", err
}

var longName = fmt.Sprintf("a name is longer than %d bytes; put long text into values", maxNameBytes)

// holdsNUL tells whether a JSON string has an escaped NUL character: six
// characters that no backslash of their own stands before.
func holdsNUL(quoted []byte) bool {
	escaped := []byte(`\u0000`)
	for {
		at := bytes.Index(quoted, escaped)
		if at < 0 {
			return false
		}
		before := len(quoted[:at]) - len(bytes.TrimRight(quoted[:at], `\`))
		if before%2 == 0 {
			return true
		}
		quoted = quoted[at+len(escaped):]
	}
}

func inRange(digits []byte) bool {
	n, err := strconv.ParseFloat(string(digits), 64)
	return err == nil && !math.IsInf(n, 0)
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
	return newFieldsProblem(http.StatusBadRequest, ProblemError{Pointer: "#" + pointer, Detail: detail})
}
