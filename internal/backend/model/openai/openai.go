// Package openai runs units on OpenAI's API, and on every server that speaks like
// it.
//
//	openai.go      configuration and requests
//	chat.go        chat completions
//	responses.go   the Responses API
//	batch.go       the Batch API
package openai

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Backend runs units on OpenAI's API, or on any server that speaks like it, such
// as Ollama, vLLM, llama.cpp or OpenRouter, without tools.
type Backend struct {
	model.Options // its BaseURL is with /v1
	// Responses takes the Responses API in place of chat completions, which
	// more servers have.
	Responses bool
}

const (
	defaultURL   = "https://api.openai.com/v1"
	defaultModel = "gpt-5.4-mini"
)

// files: 50 MB per request in base64.
var files = model.FileLimits{Image: 20 << 20, Total: 36 << 20}

// Name is the backend's word.
func (o *Backend) Name() string { return "openai" }

// Available tells whether the API answers and takes the key.
func (o *Backend) Available(ctx context.Context) error { return o.api().Available(ctx) }

// Settings are what the operator has set.
func (o *Backend) Settings() string { return o.api().Settings(o.Responses) }

// Execute runs one unit.
func (o *Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	return o.api().Execute(ctx, req, steps)
}

// client has only what it is given here: the SDK's own would read the
// environment, and retry behind our back.
func (o *Backend) client() openai.Client {
	options := []option.RequestOption{
		option.WithBaseURL(cmp.Or(o.BaseURL, defaultURL)), option.WithHTTPClient(o.HTTPClient()), option.WithMaxRetries(0),
	}
	if o.Key != "" {
		options = append(options, option.WithAPIKey(o.Key))
	}
	return openai.Client{Options: options}
}

func (o *Backend) probe(ctx context.Context) (res *http.Response, err error) {
	client := o.client()
	err = client.Get(ctx, "models", nil, &res)
	return res, err
}

// post sends a call as it is; the base URL ends in the endpoint's /v1.
func (o *Backend) post(ctx context.Context, c *work.Call) (res *http.Response, err error) {
	client := o.client()
	err = client.Post(ctx, strings.TrimPrefix(c.Endpoint, "/v1/"), []byte(c.Body), &res,
		option.WithJSONDel("stream"), option.WithJSONDel("stream_options"))
	return res, err
}

func (o *Backend) api() *model.API {
	api := &model.API{
		Options: &o.Options, Name: o.Name(), Variable: "OPENAI", DefaultURL: defaultURL, DefaultModel: defaultModel, Files: files,
		Probe: o.probe, Send: o.sendChat, ReadEvent: readChatEvent, ReadBody: readChatBody, Post: o.post,
		Body: func(t *model.Conversation) ([]byte, error) { return chatParams(t).MarshalJSON() }, Endpoint: work.EndpointChat,
	}
	if o.Responses {
		api.Send, api.ReadEvent, api.ReadBody = o.sendResponses, readResponsesEvent, readResponsesBody
		api.Body = func(t *model.Conversation) ([]byte, error) { return responsesParams(t).MarshalJSON() }
		api.Endpoint = work.EndpointResponses
	}
	return api
}
