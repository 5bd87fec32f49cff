package backend

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

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// OpenAI runs units on OpenAI's API, or on any server that speaks like it, such
// as Ollama, vLLM, llama.cpp or OpenRouter, without tools.
type OpenAI struct {
	// Key is the API key. A server of one's own behind BaseURL may need none.
	Key     string
	BaseURL string // with its /v1; empty is OpenAI's own
	// Model is for units that name none.
	Model string
	// Responses takes the Responses API in place of chat completions, which
	// more servers have.
	Responses bool
	Prices    *Prices
	// Proxy says which proxy a request takes; nil: none.
	Proxy func(*http.Request) (*url.URL, error)

	wire wire
}

const (
	openaiURL   = "https://api.openai.com/v1"
	openaiModel = "gpt-5.4-mini"
)

// openaiFiles: 50 MB per request in base64.
var openaiFiles = fileLimits{image: 20 << 20, total: 36 << 20}

// Name is the backend's word.
func (o *OpenAI) Name() string { return "openai" }

// Available tells whether the API answers and takes the key.
func (o *OpenAI) Available(ctx context.Context) error {
	if err := o.configured(); err != nil {
		return err
	}
	return probe(ctx, "openai", shownURL(o.base()), "OPENAI_API_KEY", func(ctx context.Context) (res *http.Response, err error) {
		client := o.client()
		err = client.Get(ctx, "models", nil, &res)
		return res, err
	})
}

// Settings are what the operator has set.
func (o *OpenAI) Settings() string {
	return fmt.Sprintf("%q %q %t", shownURL(o.base()), cmp.Or(o.Model, openaiModel), o.Responses)
}

func (o *OpenAI) configured() error {
	if o.Key == "" && o.BaseURL == "" {
		return errors.New("openai has no key: set OPENAI_API_KEY, or OPENAI_BASE_URL to a server that needs none")
	}
	return nil
}

func (o *OpenAI) base() string { return cmp.Or(o.BaseURL, openaiURL) }

// client has only what it is given here: the SDK's own would read the
// environment, and retry behind our back.
func (o *OpenAI) client() openai.Client {
	options := []option.RequestOption{
		option.WithBaseURL(o.base()), option.WithHTTPClient(o.wire.open(o.Proxy)), option.WithMaxRetries(0),
	}
	if o.Key != "" {
		options = append(options, option.WithAPIKey(o.Key))
	}
	return openai.Client{Options: options}
}

// Execute runs one unit.
func (o *OpenAI) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	if err := o.configured(); err != nil {
		defer steps.Close()
		return Result{Error: work.Fail(work.ClassAuth, err.Error()), Metadata: Metadata{TotalCostUSD: new(0.0)}}, nil
	}
	if req.Call != nil {
		return *runCall(ctx, o.api(), &req, steps), nil
	}
	return *runModel(ctx, o.api(), &req, steps), nil
}

// post sends a call as it is; the base URL ends in the endpoint's /v1.
func (o *OpenAI) post(ctx context.Context, c *work.Call) (res *http.Response, err error) {
	client := o.client()
	err = client.Post(ctx, strings.TrimPrefix(c.Endpoint, "/v1/"), []byte(c.Body), &res, option.WithJSONDel("stream"), option.WithJSONDel("stream_options"))
	return res, err
}

func (o *OpenAI) api() *modelAPI {
	api := &modelAPI{
		name: "openai", model: cmp.Or(o.Model, openaiModel), files: openaiFiles, prices: o.Prices,
		send: o.sendChat, hear: hearChat, read: readChat, post: o.post,
		body: func(t *talk) ([]byte, error) { return chatParams(t).MarshalJSON() }, endpoint: work.EndpointChat,
	}
	if o.Responses {
		api.send, api.hear, api.read = o.sendResponses, hearResponses, readResponses
		api.body = func(t *talk) ([]byte, error) { return responsesParams(t).MarshalJSON() }
		api.endpoint = work.EndpointResponses
	}
	return api
}
