package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"

	"piecework/internal/backend"
	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

// EndpointUnits is an endpoint of ours: a line's body is a whole unit.
const EndpointUnits = "/v1/work-units"

// MaxOpenAILines is how many lines the input of a batch may have.
const MaxOpenAILines = 50_000

// OpenAISource is where the units of a batch of OpenAI's API come from.
type OpenAISource struct {
	Type               string `json:"type"` // TypeOpenAI
	Path               string `json:"path"`
	Endpoint           string `json:"endpoint"`
	CompletionWindow   string `json:"completion_window"`
	OutputExpiresAfter int    `json:"output_expires_after,omitempty"` // seconds
}

// openaiItems are the lines of a batch's input.
func (s *Submitter) openaiItems(ctx context.Context, b *work.Batch, file io.ReadSeeker, cursor source.Place) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		var from OpenAISource
		if err := json.Unmarshal(b.Source, &from); err != nil {
			yield(item{}, err)
			return
		}
		at := cursor
		for line, err := range source.Lines(file, cursor) {
			it := item{line: line.Next.Line, next: line.Next}
			at = line.Next
			if at.Count > MaxOpenAILines {
				it.code, it.wrong = "request_limit_exceeded", []work.Invalid{{Detail: fmt.Sprintf("The file has more than %d requests.", MaxOpenAILines)}}
				yield(it, nil)
				return
			}
			if err == nil {
				it.customID, it.unit, it.code, it.wrong, err = s.parseOpenAILine(ctx, b, from.Endpoint, line.Text)
			}
			if !yield(it, err) {
				return
			}
		}
		if at.Count == 0 {
			yield(item{code: "empty_file", wrong: []work.Invalid{{Detail: "The input file is empty."}}}, nil)
		}
	}
}

// openaiLine is a line of a batch's input.
type openaiLine struct {
	CustomID *string         `json:"custom_id"`
	Method   string          `json:"method"`
	URL      string          `json:"url"`
	Body     json.RawMessage `json:"body"`
}

// parseOpenAILine makes a unit of a line, or says what is wrong with it, with
// OpenAI's word for that.
func (s *Submitter) parseOpenAILine(ctx context.Context, b *work.Batch, endpoint string, line []byte) (id string, n *store.NewUnit,
	code string, list []work.Invalid, err error) {
	var l openaiLine
	wrong := func(code, pointer, detail string) (string, *store.NewUnit, string, []work.Invalid, error) {
		if l.CustomID != nil {
			id = *l.CustomID
		}
		return id, nil, code, []work.Invalid{{Pointer: "#/" + pointer, Detail: detail}}, nil
	}
	if broken := strictjson.Check(line); broken != nil {
		return wrong("invalid_json_line", "", "This line is not parseable as valid JSON: "+broken.Text())
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return wrong("invalid_json_line", "", "A line is an object with the texts custom_id, method and url, and the object body.")
	}
	body := strings.TrimSpace(string(l.Body))
	switch {
	case l.CustomID == nil || *l.CustomID == "":
		return wrong("missing_required_parameter", "custom_id", "Missing required parameter: 'custom_id'.")
	case len(*l.CustomID) > maxCustomID:
		return wrong("invalid_custom_id", "custom_id", fmt.Sprintf("The custom_id has more than %d bytes.", maxCustomID))
	case l.Method == "":
		return wrong("missing_required_parameter", "method", "Missing required parameter: 'method'.")
	case l.Method != http.MethodPost:
		return wrong("invalid_method", "method", fmt.Sprintf("Invalid method '%.20s'; it must be POST.", l.Method))
	case l.URL == "":
		return wrong("missing_required_parameter", "url", "Missing required parameter: 'url'.")
	case l.URL != endpoint:
		return wrong("mismatched_url", "url", fmt.Sprintf("The url '%.100s' is not the batch's endpoint '%s'.", l.URL, endpoint))
	case body == "" || body == "null":
		return wrong("missing_required_parameter", "body", "Missing required parameter: 'body'.")
	case body[0] != '{':
		return wrong("invalid_request", "body", "The body must be an object.")
	}
	var unit UnitBody
	if endpoint == EndpointUnits {
		if list := s.schemas.Parse(l.Body, &unit, false); len(list) > 0 {
			return wrong("invalid_request", "body"+strings.TrimPrefix(list[0].Pointer, "#"), list[0].Detail)
		}
	} else {
		call := work.Call{Endpoint: endpoint, Body: l.Body}
		model := backend.CallModel(&call)
		if model == "" {
			return wrong("missing_required_parameter", "body/model", "Missing required parameter: 'body.model'.")
		}
		unit.Backend = backendOf(model)
		unit.Request, _ = json.Marshal(call) // it was JSON
	}
	if unit.Deadline == nil || b.ExpiresAt != nil && unit.Deadline.After(*b.ExpiresAt) {
		unit.Deadline = b.ExpiresAt
	}
	made, err := s.NewUnit(ctx, &unit)
	var invalid *work.Invalid
	if errors.As(err, &invalid) {
		pointer := "body"
		if endpoint == EndpointUnits {
			pointer += strings.TrimPrefix(invalid.Pointer, "#")
		}
		return wrong("invalid_request", pointer, invalid.Detail)
	}
	return *l.CustomID, &made, "", nil, err
}

// backendOf is the backend that runs a model of that name.
func backendOf(model string) string {
	switch {
	case strings.HasPrefix(model, "mock"):
		return "mock"
	case strings.HasPrefix(model, "claude"), strings.HasPrefix(model, "anthropic/"):
		return "anthropic"
	}
	return "openai"
}

// AnthropicSource is where the units of a batch of Anthropic's API come from.
type AnthropicSource struct {
	Type     string `json:"type"` // TypeAnthropic
	Path     string `json:"path"`
	Requests int    `json:"requests"`
}

// MessageRequest is one request of such a batch.
type MessageRequest struct {
	CustomID string          `json:"custom_id"`
	Params   json.RawMessage `json:"params"`
}

// anthropicItems are the lines of a batch of Anthropic's API, which were looked at when it came.
func (s *Submitter) anthropicItems(ctx context.Context, b *work.Batch, file io.ReadSeeker, from source.Place) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		for line, err := range source.Lines(file, from) {
			it := item{line: line.Next.Line, next: line.Next}
			if err == nil {
				it.customID, it.unit, err = s.parseAnthropicLine(ctx, b, line.Text)
			}
			if !yield(it, err) {
				return
			}
		}
	}
}

func (s *Submitter) parseAnthropicLine(ctx context.Context, b *work.Batch, line []byte) (id string, n *store.NewUnit, err error) {
	var r MessageRequest
	if err := json.Unmarshal(line, &r); err != nil {
		return "", nil, err
	}
	call := work.Call{Endpoint: work.EndpointMessages, Body: r.Params}
	unit := UnitBody{Backend: "anthropic", Deadline: b.ExpiresAt}
	if backendOf(backend.CallModel(&call)) == "mock" {
		unit.Backend = "mock"
	}
	unit.Request, _ = json.Marshal(call) // it was JSON
	made, err := s.NewUnit(ctx, &unit)
	return r.CustomID, &made, err
}
