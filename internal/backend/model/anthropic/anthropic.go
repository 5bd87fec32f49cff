// Package anthropic runs units on Anthropic's Messages API.
//
//	anthropic.go   requests, events, answers
//	batch.go       its Message Batches
package anthropic

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Backend runs units on Anthropic's Messages API, without tools.
type Backend struct {
	model.Options // its BaseURL is without /v1
	// MaxTokens bounds one answer; the API wants to be told. 0 means 32000,
	// which every model since Claude 4 can write.
	MaxTokens int64
}

const (
	defaultURL       = "https://api.anthropic.com"
	defaultModel     = "claude-sonnet-5-5"
	defaultMaxTokens = 32000
)

// files: 5 MB per image in base64, 32 MB per request.
var files = model.FileLimits{Image: backend.MaxInlineImage, Total: backend.MaxInline}

// Name is the backend's word.
func (a *Backend) Name() string { return "anthropic" }

// Available tells whether the API answers and takes the key.
func (a *Backend) Available(ctx context.Context) error { return a.api().Available(ctx) }

// Settings are what the operator has set.
func (a *Backend) Settings() string { return a.api().Settings(cmp.Or(a.MaxTokens, defaultMaxTokens)) }

// Execute runs one unit.
func (a *Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	return a.api().Execute(ctx, req, steps)
}

// client has only what it is given here: the SDK's own would read the
// environment, and retry behind our back.
func (a *Backend) client() anthropic.Client {
	options := []option.RequestOption{
		option.WithBaseURL(cmp.Or(a.BaseURL, defaultURL)), option.WithHTTPClient(a.HTTPClient()), option.WithMaxRetries(0),
	}
	if a.Key != "" {
		options = append(options, option.WithAPIKey(a.Key))
	}
	return anthropic.Client{Options: options}
}

func (a *Backend) probe(ctx context.Context) (res *http.Response, err error) {
	client := a.client()
	err = client.Get(ctx, "v1/models", nil, &res)
	return res, err
}

func (a *Backend) api() *model.API {
	return &model.API{
		Options: &a.Options, Name: a.Name(), Variable: "ANTHROPIC", DefaultURL: defaultURL, DefaultModel: defaultModel,
		MaxTokens: cmp.Or(a.MaxTokens, defaultMaxTokens), Files: files,
		Probe: a.probe, Send: a.send, ReadEvent: readEvent, ReadBody: readBody, Post: a.post,
		Body: func(t *model.Conversation) ([]byte, error) { return newParams(t).MarshalJSON() }, Endpoint: work.EndpointMessages,
	}
}

func (a *Backend) send(ctx context.Context, t *model.Conversation) (res *http.Response, err error) {
	client := a.client()
	err = client.Post(ctx, "v1/messages", newParams(t), &res, option.WithJSONSet("stream", true))
	return res, err
}

// post sends a call as it is. Where Anthropic speaks like OpenAI it takes the
// key like OpenAI, too.
func (a *Backend) post(ctx context.Context, c *work.Call) (res *http.Response, err error) {
	client := a.client()
	options := []option.RequestOption{option.WithJSONDel("stream"), option.WithJSONDel("stream_options")}
	if c.Endpoint != work.EndpointMessages && a.Key != "" {
		options = append(options, option.WithHeader("Authorization", "Bearer "+a.Key))
	}
	err = client.Post(ctx, strings.TrimPrefix(c.Endpoint, "/"), []byte(c.Body), &res, options...)
	return res, err
}

// newParams marks the system prompt and the files for the cache: they
// are what a retry, a repair and the units of a batch have in common.
func newParams(t *model.Conversation) anthropic.MessageNewParams {
	params := anthropic.MessageNewParams{Model: t.Model, MaxTokens: t.MaxTokens}
	if t.System != "" {
		params.System = []anthropic.TextBlockParam{{Text: t.System, CacheControl: anthropic.NewCacheControlEphemeralParam()}}
	}
	if t.Schema != nil {
		params.OutputConfig.Format.Schema = t.Schema
	}
	var blocks []anthropic.ContentBlockParamUnion
	for _, p := range t.Parts {
		blocks = append(blocks, contentBlock(p))
	}
	if last := len(blocks) - 2; last >= 0 { // the prompt comes after the files
		*blocks[last].GetCacheControl() = anthropic.NewCacheControlEphemeralParam()
	}
	params.Messages = []anthropic.MessageParam{anthropic.NewUserMessage(blocks...)}
	if t.Repair != nil {
		params.Messages = append(params.Messages,
			anthropic.NewAssistantMessage(anthropic.NewTextBlock(t.Repair.Answer)),
			anthropic.NewUserMessage(anthropic.NewTextBlock(t.Repair.Complaint)))
	}
	return params
}

func contentBlock(p model.Part) anthropic.ContentBlockParamUnion {
	switch p.Kind {
	case model.ImagePart:
		return anthropic.NewImageBlockBase64(p.MediaType, p.Base64())
	case model.PDFPart:
		return anthropic.NewDocumentBlock(anthropic.Base64PDFSourceParam{Data: p.Base64()})
	}
	return anthropic.NewTextBlock(p.Text)
}

type event struct {
	Type    string `json:"type"`
	Message struct {
		Model string `json:"model"`
		Usage usage  `json:"usage"`
	} `json:"message"`
	ContentBlock content `json:"content_block"`
	Delta        struct {
		content
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Usage usage `json:"usage"`
}

type content struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Thinking string `json:"thinking"`
	// Of a call of a tool: Input in one piece, else Partial by and by.
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Input   json.RawMessage `json:"input"`
	Partial string          `json:"partial_json"`
}

type usage struct {
	Input         int64 `json:"input_tokens"`
	Output        int64 `json:"output_tokens"`
	CacheRead     int64 `json:"cache_read_input_tokens"`
	CacheCreation int64 `json:"cache_creation_input_tokens"`
}

// readEvent decodes an event itself: the SDK's type for them has a field for
// every kind there is, and swallows the pings.
func readEvent(_ *http.Response, a *model.Answer, data []byte) error {
	var e event
	if err := backend.Decode(data, &e); err != nil {
		return fmt.Errorf("read an event of the stream: %w", err)
	}
	return e.apply(a)
}

// readBody takes a message that came in one piece.
func readBody(body []byte, a *model.Answer) error {
	var m struct {
		Model      string    `json:"model"`
		Content    []content `json:"content"`
		StopReason string    `json:"stop_reason"`
		Usage      usage     `json:"usage"`
	}
	if err := backend.Decode(body, &m); err != nil {
		return err
	}
	a.Model, a.UsageFinal = m.Model, true
	m.Usage.apply(a)
	for _, piece := range m.Content {
		if err := piece.apply(a); err != nil {
			return err
		}
	}
	a.StopReason, a.HasStopReason = stopReasons[m.StopReason], m.StopReason != ""
	return a.End()
}

func (e *event) apply(a *model.Answer) error {
	switch e.Type {
	case "message_start":
		a.Model = e.Message.Model
		e.Message.Usage.apply(a)
	case "content_block_start":
		e.ContentBlock.Input = nil // it comes in pieces
		return e.ContentBlock.apply(a)
	case "content_block_delta":
		return e.Delta.apply(a)
	case "message_delta":
		e.Usage.apply(a)
		a.UsageFinal = true
		a.StopReason = stopReasons[e.Delta.StopReason]
	case "message_stop":
		a.Ended = true
	}
	return nil
}

func (p content) apply(a *model.Answer) error {
	switch {
	case p.Type == "tool_use":
		return a.AddToolCall(p.ID, p.Name, string(p.Input))
	case p.Partial != "" && len(a.Calls) > 0:
		return a.AppendToolCall(len(a.Calls)-1, "", "", p.Partial)
	}
	if err := a.AddText(transcript.Reasoning, p.Thinking); err != nil {
		return err
	}
	return a.AddText(transcript.Action, p.Text)
}

// apply takes over what is said: the last event may leave the input out.
func (u usage) apply(a *model.Answer) {
	a.Usage.OutputTokens = u.Output
	if u.Input+u.CacheRead+u.CacheCreation > 0 {
		a.Usage.InputTokens, a.Usage.CacheReadTokens, a.Usage.CacheCreationTokens = u.Input, u.CacheRead, u.CacheCreation
	}
}

// stopReasons: what is not here is a good end.
var stopReasons = map[string]model.StopReason{
	"max_tokens": model.StopLength, "model_context_window_exceeded": model.StopContext,
	"refusal": model.StopRefusal, "tool_use": model.StopTool,
}
