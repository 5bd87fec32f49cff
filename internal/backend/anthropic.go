package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Anthropic runs units on Anthropic's Messages API, without tools.
type Anthropic struct {
	// Key is the API key. A server of one's own behind BaseURL may need none.
	Key     string
	BaseURL string // without /v1; empty is Anthropic's own
	// Model is for units that name none.
	Model string
	// MaxTokens bounds one answer; the API wants to be told. 0 means 32000,
	// which every model since Claude 4 can write.
	MaxTokens int64
	Prices    *Prices
	// Proxy says which proxy a request takes; nil: none.
	Proxy func(*http.Request) (*url.URL, error)

	wire wire
}

const (
	anthropicURL       = "https://api.anthropic.com"
	anthropicModel     = "claude-sonnet-5-5"
	anthropicMaxTokens = 32000
)

// anthropicFiles: 5 MB per image in base64, 32 MB per request.
var anthropicFiles = fileLimits{image: maxInlineImage, total: maxInline}

// Name is the backend's word.
func (a *Anthropic) Name() string { return "anthropic" }

// Available tells whether the API answers and takes the key.
func (a *Anthropic) Available(ctx context.Context) error {
	if err := a.configured(); err != nil {
		return err
	}
	return probe(ctx, "anthropic", shownURL(a.base()), "ANTHROPIC_API_KEY", func(ctx context.Context) (res *http.Response, err error) {
		client := a.client()
		err = client.Get(ctx, "v1/models", nil, &res)
		return res, err
	})
}

// Settings are what the operator has set.
func (a *Anthropic) Settings() string {
	return fmt.Sprintf("%q %q %d", shownURL(a.base()), cmp.Or(a.Model, anthropicModel), cmp.Or(a.MaxTokens, anthropicMaxTokens))
}

func (a *Anthropic) configured() error {
	if a.Key == "" && a.BaseURL == "" {
		return errors.New("anthropic has no key: set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to a server that needs none")
	}
	return nil
}

func (a *Anthropic) base() string { return cmp.Or(a.BaseURL, anthropicURL) }

// client has only what it is given here: the SDK's own would read the
// environment, and retry behind our back.
func (a *Anthropic) client() anthropic.Client {
	options := []option.RequestOption{
		option.WithBaseURL(a.base()), option.WithHTTPClient(a.wire.open(a.Proxy)), option.WithMaxRetries(0),
	}
	if a.Key != "" {
		options = append(options, option.WithAPIKey(a.Key))
	}
	return anthropic.Client{Options: options}
}

// Execute runs one unit.
func (a *Anthropic) Execute(ctx context.Context, req Request, steps *transcript.Writer) (Result, error) {
	if err := a.configured(); err != nil {
		defer steps.Close()
		return Result{Error: work.Fail(work.ClassAuth, err.Error()), Metadata: Metadata{TotalCostUSD: new(0.0)}}, nil
	}
	if req.Call != nil {
		return *runCall(ctx, a.api(), &req, steps), nil
	}
	return *runModel(ctx, a.api(), &req, steps), nil
}

func (a *Anthropic) api() *modelAPI {
	return &modelAPI{
		name: "anthropic", model: cmp.Or(a.Model, anthropicModel), maxTokens: cmp.Or(a.MaxTokens, anthropicMaxTokens),
		files: anthropicFiles, prices: a.Prices, send: a.send, hear: hearAnthropic, read: readAnthropic, post: a.post,
		body: func(t *talk) ([]byte, error) { return anthropicParams(t).MarshalJSON() }, endpoint: work.EndpointMessages,
	}
}

func (a *Anthropic) send(ctx context.Context, t *talk) (res *http.Response, err error) {
	client := a.client()
	err = client.Post(ctx, "v1/messages", anthropicParams(t), &res, option.WithJSONSet("stream", true))
	return res, err
}

// post sends a call as it is. Where Anthropic speaks like OpenAI it takes the
// key like OpenAI, too.
func (a *Anthropic) post(ctx context.Context, c *work.Call) (res *http.Response, err error) {
	client := a.client()
	options := []option.RequestOption{option.WithJSONDel("stream"), option.WithJSONDel("stream_options")}
	if c.Endpoint != work.EndpointMessages && a.Key != "" {
		options = append(options, option.WithHeader("Authorization", "Bearer "+a.Key))
	}
	err = client.Post(ctx, strings.TrimPrefix(c.Endpoint, "/"), []byte(c.Body), &res, options...)
	return res, err
}

// anthropicParams marks the system prompt and the files for the cache: they
// are what a retry, a repair and the units of a batch have in common.
func anthropicParams(t *talk) anthropic.MessageNewParams {
	params := anthropic.MessageNewParams{Model: t.model, MaxTokens: t.maxTokens}
	if t.system != "" {
		params.System = []anthropic.TextBlockParam{{Text: t.system, CacheControl: anthropic.NewCacheControlEphemeralParam()}}
	}
	if t.schema != nil {
		params.OutputConfig.Format.Schema = t.schema
	}
	var blocks []anthropic.ContentBlockParamUnion
	for _, p := range t.parts {
		blocks = append(blocks, anthropicBlock(p))
	}
	if last := len(blocks) - 2; last >= 0 { // the prompt comes after the files
		*blocks[last].GetCacheControl() = anthropic.NewCacheControlEphemeralParam()
	}
	params.Messages = []anthropic.MessageParam{anthropic.NewUserMessage(blocks...)}
	if t.repair != nil {
		params.Messages = append(params.Messages,
			anthropic.NewAssistantMessage(anthropic.NewTextBlock(t.repair.answer)),
			anthropic.NewUserMessage(anthropic.NewTextBlock(t.repair.complaint)))
	}
	return params
}

func anthropicBlock(p part) anthropic.ContentBlockParamUnion {
	switch p.kind {
	case imagePart:
		return anthropic.NewImageBlockBase64(p.mediaType, p.base64())
	case pdfPart:
		return anthropic.NewDocumentBlock(anthropic.Base64PDFSourceParam{Data: p.base64()})
	}
	return anthropic.NewTextBlock(p.text)
}

type anthropicEvent struct {
	Type    string `json:"type"`
	Message struct {
		Model string         `json:"model"`
		Usage anthropicUsage `json:"usage"`
	} `json:"message"`
	ContentBlock anthropicPiece `json:"content_block"`
	Delta        struct {
		anthropicPiece
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Usage anthropicUsage `json:"usage"`
}

type anthropicPiece struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Thinking string `json:"thinking"`
	// Of a call of a tool: Input in one piece, else Partial by and by.
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Input   json.RawMessage `json:"input"`
	Partial string          `json:"partial_json"`
}

type anthropicUsage struct {
	Input         int64 `json:"input_tokens"`
	Output        int64 `json:"output_tokens"`
	CacheRead     int64 `json:"cache_read_input_tokens"`
	CacheCreation int64 `json:"cache_creation_input_tokens"`
}

// hearAnthropic decodes events itself: the SDK's type for them has a field for
// every kind there is, and swallows the pings.
func hearAnthropic(res *http.Response, a *answer) error {
	return eachEvent(res, a, func(data []byte) error {
		var e anthropicEvent
		if err := decode(data, &e); err != nil {
			return fmt.Errorf("read an event of the stream: %w", err)
		}
		return e.tell(a)
	})
}

// readAnthropic takes a message that came in one piece.
func readAnthropic(body []byte, a *answer) error {
	var m struct {
		Model      string           `json:"model"`
		Content    []anthropicPiece `json:"content"`
		StopReason string           `json:"stop_reason"`
		Usage      anthropicUsage   `json:"usage"`
	}
	if err := decode(body, &m); err != nil {
		return err
	}
	a.model, a.told = m.Model, true
	m.Usage.tell(a)
	for _, piece := range m.Content {
		if err := piece.tell(a); err != nil {
			return err
		}
	}
	a.stop, a.finished = anthropicStops[m.StopReason], m.StopReason != ""
	return a.done()
}

func (e *anthropicEvent) tell(a *answer) error {
	switch e.Type {
	case "message_start":
		a.model = e.Message.Model
		e.Message.Usage.tell(a)
	case "content_block_start":
		e.ContentBlock.Input = nil // it comes in pieces
		return e.ContentBlock.tell(a)
	case "content_block_delta":
		return e.Delta.tell(a)
	case "message_delta":
		e.Usage.tell(a)
		a.told = true
		a.stop = anthropicStops[e.Delta.StopReason]
	case "message_stop":
		a.ended = true
	}
	return nil
}

func (p anthropicPiece) tell(a *answer) error {
	switch {
	case p.Type == "tool_use":
		return a.asks(p.ID, p.Name, string(p.Input))
	case p.Partial != "" && len(a.calls) > 0:
		return a.asksMore(len(a.calls)-1, "", "", p.Partial)
	}
	if err := a.hears(transcript.Reasoning, p.Thinking); err != nil {
		return err
	}
	return a.hears(transcript.Action, p.Text)
}

// tell takes over what is said: the last event may leave the input out.
func (u anthropicUsage) tell(a *answer) {
	a.usage.OutputTokens = u.Output
	if u.Input+u.CacheRead+u.CacheCreation > 0 {
		a.usage.InputTokens, a.usage.CacheReadTokens, a.usage.CacheCreationTokens = u.Input, u.CacheRead, u.CacheCreation
	}
}

// anthropicStops: what is not here is a good end.
var anthropicStops = map[string]stop{
	"max_tokens": stopLength, "model_context_window_exceeded": stopContext, "refusal": stopRefusal, "tool_use": stopTool,
}
