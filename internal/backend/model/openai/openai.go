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
	"errors"
	"fmt"
	"net/http"
	"net/url"
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
	// Key is the API key. A server of one's own behind BaseURL may need none.
	Key     string
	BaseURL string // with its /v1; empty is OpenAI's own
	// Model is for units that name none.
	Model string
	// Responses takes the Responses API in place of chat completions, which
	// more servers have.
	Responses bool
	Prices    *backend.Prices
	// Proxy says which proxy a request takes; nil: none.
	Proxy func(*http.Request) (*url.URL, error)

	wire model.Connections
}

const (
	defaultURL   = "https://api.openai.com/v1"
	defaultModel = "gpt-5.4-mini"
)

// openaiFiles: 50 MB per request in base64.
var files = model.FileLimits{Image: 20 << 20, Total: 36 << 20}

// Name is the backend's word.
func (o *Backend) Name() string { return "openai" }

// Available tells whether the API answers and takes the key.
func (o *Backend) Available(ctx context.Context) error {
	if err := o.configured(); err != nil {
		return err
	}
	return model.Probe(ctx, "openai", backend.RedactURL(o.base()), "OPENAI_API_KEY", func(ctx context.Context) (res *http.Response, err error) {
		client := o.client()
		err = client.Get(ctx, "models", nil, &res)
		return res, err
	})
}

// Settings are what the operator has set.
func (o *Backend) Settings() string {
	return fmt.Sprintf("%q %q %t", backend.RedactURL(o.base()), cmp.Or(o.Model, defaultModel), o.Responses)
}

func (o *Backend) configured() error {
	if o.Key == "" && o.BaseURL == "" {
		return errors.New("openai has no key: set OPENAI_API_KEY, or OPENAI_BASE_URL to a server that needs none")
	}
	return nil
}

func (o *Backend) base() string { return cmp.Or(o.BaseURL, defaultURL) }

// client has only what it is given here: the SDK's own would read the
// environment, and retry behind our back.
func (o *Backend) client() openai.Client {
	options := []option.RequestOption{
		option.WithBaseURL(o.base()), option.WithHTTPClient(o.wire.Client(o.Proxy)), option.WithMaxRetries(0),
	}
	if o.Key != "" {
		options = append(options, option.WithAPIKey(o.Key))
	}
	return openai.Client{Options: options}
}

// Execute runs one unit.
func (o *Backend) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	if err := o.configured(); err != nil {
		defer steps.Close()
		return backend.Result{Error: work.Fail(work.ClassAuth, err.Error()), Metadata: backend.Metadata{TotalCostUSD: new(0.0)}}, nil
	}
	if req.Call != nil {
		return *model.RunCall(ctx, o.api(), &req, steps), nil
	}
	return *model.Run(ctx, o.api(), &req, steps), nil
}

// post sends a call as it is; the base URL ends in the endpoint's /v1.
func (o *Backend) post(ctx context.Context, c *work.Call) (res *http.Response, err error) {
	client := o.client()
	err = client.Post(ctx, strings.TrimPrefix(c.Endpoint, "/v1/"), []byte(c.Body), &res, option.WithJSONDel("stream"), option.WithJSONDel("stream_options"))
	return res, err
}

func (o *Backend) api() *model.API {
	api := &model.API{
		Name: "openai", Model: cmp.Or(o.Model, defaultModel), Files: files, Prices: o.Prices,
		Send: o.sendChat, ReadStream: readChatStream, ReadBody: readChatBody, Post: o.post,
		Body: func(t *model.Conversation) ([]byte, error) { return chatParams(t).MarshalJSON() }, Endpoint: work.EndpointChat,
	}
	if o.Responses {
		api.Send, api.ReadStream, api.ReadBody = o.sendResponses, readResponsesStream, readResponsesBody
		api.Body = func(t *model.Conversation) ([]byte, error) { return responsesParams(t).MarshalJSON() }
		api.Endpoint = work.EndpointResponses
	}
	return api
}
