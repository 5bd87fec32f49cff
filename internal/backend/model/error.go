package model

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// APIError is a model API's own word on what went wrong.
type APIError struct {
	Status     int // 200 when it came in the middle of a stream
	kind, Code string
	Message    string
	Header     http.Header
}

func (e *APIError) Error() string {
	said := e.Message
	if name := cmp.Or(e.Code, e.kind); name != "" {
		said = name + ": " + said
	}
	if e.Status/100 == 2 {
		return said
	}
	return strconv.Itoa(e.Status) + " " + said
}

// maxErrorBody bounds what is read of an error's body.
const maxErrorBody = 64 << 10

func readAPIError(res *http.Response) *APIError {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // half of it says more than nothing
	return NewAPIError(res.StatusCode, res.Header, body)
}

// NewAPIError reads the envelopes in use: {"error":{…}}, {"error":"…"}, and
// the fields on the top level.
func NewAPIError(status int, header http.Header, body []byte) *APIError {
	e := &APIError{Status: status, Header: header}
	var envelope struct {
		Error json.RawMessage `json:"error"`
		ErrorFields
	}
	_ = backend.Decode(body, &envelope)
	fields := envelope.ErrorFields
	if len(envelope.Error) > 0 && backend.Decode(envelope.Error, &fields.Message) != nil || fields.Message == "" {
		_ = backend.Decode(envelope.Error, &fields)
	}
	e.kind, e.Code, e.Message = fields.Type, fields.Name(), cmp.Or(fields.Message, fields.Detail)
	if e.Message == "" {
		e.Message, _ = work.Cut(strings.TrimSpace(string(body)), 500)
	}
	e.Message = cmp.Or(e.Message, http.StatusText(status))
	if location := header.Get("Location"); status/100 == 3 && location != "" {
		e.Message += " (redirects are not followed; it points to " + location + ")"
	}
	return e
}

type ErrorFields struct {
	Type    string          `json:"type"`
	Code    json.RawMessage `json:"code"`
	Message string          `json:"message"`
	Detail  string          `json:"detail"`
}

// Name is the error's name; a number there is the status again.
func (f ErrorFields) Name() string {
	name := strings.Trim(string(f.Code), `"`)
	if name == "null" || strings.Trim(name, "0123456789") == "" {
		return ""
	}
	return name
}

// ClassOfCode sorts the names that the APIs give to their errors, "" when a
// name alone does not tell.
func ClassOfCode(name string) work.Class {
	switch name {
	case "insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active":
		return work.ClassBilling
	case "context_length_exceeded", "request_too_large", "string_above_max_length":
		return work.ClassContextTooLong
	case "rate_limit_error", "rate_limit_exceeded", "overloaded_error", "server_is_overloaded", "slow_down":
		return work.ClassRateLimit
	case "authentication_error", "permission_error", "invalid_api_key":
		return work.ClassAuth
	case "content_policy_violation", "content_filter":
		return work.ClassRefusal
	case "api_error", "server_error", "timeout_error":
		return work.ClassInfra
	case "not_found_error", "model_not_found":
		return work.ClassInvalidRequest
	}
	return ""
}

func (e *APIError) class() work.Class {
	for _, name := range []string{e.Code, e.kind} {
		class := ClassOfCode(name)
		if class == work.ClassInfra { // a name for whatever went wrong there; the status may know better
			class = cmp.Or(backend.ClassOfStatus(e.Status), class)
		}
		if class != "" {
			return class
		}
	}
	if e.Status/100 == 4 || e.Status/100 == 2 {
		if class := backend.ClassOfText(e.Message); class != "" {
			return class
		}
	}
	if e.Status/100 == 2 && e.kind == "invalid_request_error" {
		return work.ClassInvalidRequest
	}
	return cmp.Or(backend.ClassOfStatus(e.Status), work.ClassInfra)
}

func (e *APIError) failure(name, requestID string) *work.Failure {
	f := work.Fail(e.class(), name+": "+e.Error()+inRequest(requestID))
	if f.Class == work.ClassRateLimit {
		f.ResetAt = resetAt(e.Header, time.Now())
	}
	return f
}

func requestID(h http.Header) string { return cmp.Or(h.Get("request-id"), h.Get("x-request-id")) }

func inRequest(id string) string {
	if id == "" {
		return ""
	}
	return fmt.Sprintf(" (request %s)", id)
}

// limitHeaders name the parts of a rate limit: what is left of each, and when
// it is whole again.
var limitHeaders = []struct{ left, reset string }{
	{"Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"},
	{"Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"},
	{"Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset"},
	{"Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset"},
	{"X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	{"X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
}

// resetAt is when a limit ends: by Retry-After, else when the last part that
// is used up comes back, else when the last of all does. Zero when unknown.
func resetAt(h http.Header, now time.Time) time.Time {
	if at := momentIn(h.Get("Retry-After"), now); !at.IsZero() {
		return at
	}
	var used, any time.Time
	for _, limit := range limitHeaders {
		at := momentIn(h.Get(limit.reset), now)
		if at.After(any) {
			any = at
		}
		if h.Get(limit.left) == "0" && at.After(used) {
			used = at
		}
	}
	if used.IsZero() {
		return any
	}
	return used
}

// momentIn reads the forms in which a header says when: seconds, a duration such
// as 6m0s, RFC 3339, or HTTP's own.
func momentIn(text string, now time.Time) time.Time {
	text = strings.TrimSpace(text)
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds >= 0 && seconds < 1e7 {
		return now.Add(time.Duration(seconds * float64(time.Second))).UTC()
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(d).UTC()
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UTC()
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}
