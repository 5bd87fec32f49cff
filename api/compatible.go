package api

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/strictjson"
	"piecework/internal/work"
)

// compatible are the routes that the official SDKs of OpenAI and Anthropic
// know. They are none of ours: paths, fields, statuses and errors are theirs.
func (a *API) compatible() {
	a.echo.POST("/v1/files", a.addPurposeFile)
	a.echo.GET("/v1/files", a.listPurposeFiles)
	a.echo.GET("/v1/files/:id", a.getPurposeFile)
	a.echo.GET("/v1/files/:id/content", a.getPurposeContent)
	a.echo.DELETE("/v1/files/:id", a.deletePurposeFile)
	a.echo.POST("/v1/batches", a.addOpenAIBatch)
	a.echo.GET("/v1/batches", a.listOpenAIBatches)
	a.echo.GET("/v1/batches/:id", a.getOpenAIBatch)
	a.echo.POST("/v1/batches/:id/cancel", a.cancelOpenAIBatch)
	a.echo.POST("/v1/messages/batches", a.addMessageBatch, likeAnthropic)
	a.echo.GET("/v1/messages/batches", a.listMessageBatches, likeAnthropic)
	a.echo.GET("/v1/messages/batches/:id", a.getMessageBatch, likeAnthropic)
	a.echo.GET("/v1/messages/batches/:id/results", a.getMessageResults, likeAnthropic)
	a.echo.POST("/v1/messages/batches/:id/cancel", a.cancelMessageBatch, likeAnthropic)
	a.echo.DELETE("/v1/messages/batches/:id", a.deleteMessageBatch, likeAnthropic)
}

// likeAnthropic names the request in the header that Anthropic's SDKs read.
func likeAnthropic(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Header().Set("request-id", problem.RequestID(c))
		return next(c)
	}
}

// envelope is an error in the words of those whose path it is.
func envelope(path string, p *problem.Problem) (status int, kind string, sent any) {
	anthropic := strings.HasPrefix(path, "/v1/messages")
	if !anthropic && !strings.HasPrefix(path, "/v1/") {
		return p.Status, "application/problem+json", p
	}
	status = p.Status
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest
	}
	if anthropic {
		return status, "application/json", map[string]any{
			"type": "error", "request_id": p.RequestID,
			"error": map[string]string{"type": anthropicError(status), "message": p.Detail},
		}
	}
	return status, "application/json", map[string]any{"error": openaiError(status, p)}
}

func openaiError(status int, p *problem.Problem) map[string]any {
	e := map[string]any{"message": p.Detail, "type": "invalid_request_error", "param": nil, "code": nil}
	switch {
	case status >= 500:
		e["type"] = "server_error"
	case status == http.StatusTooManyRequests:
		e["type"] = "rate_limit_error"
	}
	if len(p.Errors) > 0 {
		if name := paramOf(p.Errors[0].Pointer + p.Errors[0].Parameter); name != nil {
			e["param"] = *name
		}
	}
	if p.Code != "" {
		e["code"] = p.Code
	}
	return e
}

// paramOf is a pointer as OpenAI writes it: a.b; nil for the whole.
func paramOf(pointer string) *string {
	name := strings.ReplaceAll(strings.TrimLeft(pointer, "#/"), "/", ".")
	if name == "" {
		return nil
	}
	return &name
}

func anthropicError(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// publicID is an id as their SDKs know it: a word, and a UUID without dashes.
func publicID(word string, id uuid.UUID) string { return word + hex.EncodeToString(id[:]) }

// ownID reads such an id. One that is of another form is none of ours: nil.
func ownID(word, text string) uuid.UUID {
	rest, ok := strings.CutPrefix(text, word)
	id, err := uuid.Parse(rest)
	if !ok || err != nil || len(rest) != 32 || rest != strings.ToLower(rest) {
		return uuid.Nil
	}
	return id
}

// strictBody reads a JSON body into v, and refuses what v does not know.
func (a *API) strictBody(c echo.Context, v any) ([]byte, error) {
	release := a.bodies.Hold(c.Request())
	defer release() // what is kept of it from here on is small
	sent, problem := a.bodies.Read(c.Response(), c.Request())
	if problem != nil {
		return nil, problem
	}
	return sent, strictJSON(sent, v)
}

// strictJSON reads an object and says what is wrong with it.
func strictJSON(sent []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(sent))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	var mistyped *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return body.Bad("", "there is no body; send a JSON object")
	case errors.As(err, &mistyped):
		return body.Bad("/"+strings.ReplaceAll(mistyped.Field, ".", "/"), "must not be "+mistyped.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return body.Bad("/"+strings.Trim(name, `"`), strictjson.UnknownField(strings.Trim(name, `"`)))
	}
	return body.Bad("", "the body is not JSON: "+err.Error())
}

// limitOf reads the parameter limit.
func limitOf(c echo.Context, otherwise, most int) (int, error) {
	text := c.QueryParam("limit")
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, problem.Fields(http.StatusBadRequest, problem.Field{Parameter: "limit", Detail: fmt.Sprintf("must be a whole number from 1 to %d", most)})
	}
	return n, nil
}

// unixSeconds is a time as OpenAI writes it; nil stays nil.
func unixSeconds(at *time.Time) *int64 {
	if at == nil {
		return nil
	}
	return new(at.Unix())
}

// newLines writes one value a line.
func newLines(w io.Writer) *json.Encoder {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return out
}

// rawOrText is an answer as it came: JSON as it is, anything else as a text.
func rawOrText(text string) json.RawMessage {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	quoted, _ := json.Marshal(text) // a text always can be
	return quoted
}

// protocolBatch reads a batch that came by a protocol; another's is none.
func (a *API) protocolBatch(ctx context.Context, protocol work.Protocol, id uuid.UUID) (work.Batch, error) {
	b, err := a.Store.Batches.Get(ctx, work.DefaultTenant, id)
	if err == nil && b.Protocol != protocol {
		return b, work.ErrNotFound
	}
	return b, err
}
