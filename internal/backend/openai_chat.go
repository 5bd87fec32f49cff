package backend

import (
	"cmp"
	"context"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

func (o *OpenAI) sendChat(ctx context.Context, t *talk) (res *http.Response, err error) {
	client := o.client()
	params := chatParams(t)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	err = client.Post(ctx, "chat/completions", params, &res, option.WithJSONSet("stream", true))
	return res, err
}

func chatParams(t *talk) openai.ChatCompletionNewParams {
	params := openai.ChatCompletionNewParams{Model: t.model}
	if t.maxTokens > 0 {
		params.MaxCompletionTokens = openai.Int(t.maxTokens)
	}
	if t.system != "" {
		params.Messages = append(params.Messages, openai.SystemMessage(t.system))
	}
	params.Messages = append(params.Messages, chatMessage(t.parts))
	if t.repair != nil {
		params.Messages = append(params.Messages,
			openai.AssistantMessage(t.repair.answer), openai.UserMessage(t.repair.complaint))
	}
	if t.schema != nil {
		params.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
				Name: "answer", Strict: openai.Bool(true), Schema: t.schema,
			},
		}
	}
	return params
}

// chatMessage is plain text where it can be: small servers take nothing else.
func chatMessage(parts []part) openai.ChatCompletionMessageParamUnion {
	if len(parts) == 1 {
		return openai.UserMessage(parts[0].text)
	}
	content := make([]openai.ChatCompletionContentPartUnionParam, 0, len(parts))
	for _, p := range parts {
		switch p.kind {
		case imagePart:
			content = append(content, openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: p.dataURL()}))
		case pdfPart:
			content = append(content, openai.FileContentPart(openai.ChatCompletionContentPartFileFileParam{
				Filename: openai.String(p.name), FileData: openai.String(p.dataURL()),
			}))
		default:
			content = append(content, openai.TextContentPart(p.text))
		}
	}
	return openai.UserMessage(content)
}

// chatChunk is read by hand, because the fields that other servers add are
// wanted too: thinking under two names, and OpenRouter's cost.
type chatChunk struct {
	Model   string `json:"model"`
	Choices []struct {
		Delta        chatSaid `json:"delta"`
		Message      chatSaid `json:"message"` // of an answer in one piece
		FinishReason string   `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Details    struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Cost *float64 `json:"cost"`
	} `json:"usage"`
}

type chatSaid struct {
	Content          string `json:"content"`
	Refusal          string `json:"refusal"`
	Reasoning        string `json:"reasoning"`
	ReasoningContent string `json:"reasoning_content"`
	Calls            []struct {
		Index    *int         `json:"index"` // nil: the list is whole
		ID       string       `json:"id"`
		Function chatFunction `json:"function"`
		Custom   struct {
			Name  string `json:"name"`
			Input string `json:"input"`
		} `json:"custom"`
	} `json:"tool_calls"`
	Function chatFunction `json:"function_call"` // as it was called before
}

type chatFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

func hearChat(res *http.Response, a *answer) error {
	return eachEvent(res, a, func(data []byte) error {
		var c chatChunk
		_ = decode(data, &c) // that it is JSON is known
		return c.tell(a)
	})
}

// readChat takes a completion that came in one piece.
func readChat(body []byte, a *answer) error {
	var c chatChunk
	if err := decode(body, &c); err != nil {
		return err
	}
	if len(c.Choices) > 0 {
		c.Choices[0].Delta = c.Choices[0].Message
	}
	if err := c.tell(a); err != nil {
		return err
	}
	return a.done()
}

func (c *chatChunk) tell(a *answer) error {
	if c.Model != "" {
		a.model = c.Model
	}
	if u := c.Usage; u != nil {
		a.usage = usageWithin(u.Prompt, u.Details.Cached, u.Completion)
		a.cost, a.told = u.Cost, true
	}
	if len(c.Choices) == 0 {
		return nil
	}
	choice := c.Choices[0]
	if choice.FinishReason != "" {
		a.finished, a.stop = true, chatStops[choice.FinishReason]
	}
	a.refusal.WriteString(choice.Delta.Refusal)
	if err := choice.Delta.asks(a); err != nil {
		return err
	}
	thought := choice.Delta.ReasoningContent
	if thought == "" {
		thought = choice.Delta.Reasoning
	}
	if err := a.hears(transcript.Reasoning, thought); err != nil {
		return err
	}
	return a.hears(transcript.Action, choice.Delta.Content)
}

// asks takes over the calls of tools, or the pieces of them.
func (s *chatSaid) asks(a *answer) error {
	if f := s.Function; f != (chatFunction{}) {
		return a.asksMore(0, "", f.Name, f.Arguments)
	}
	for _, c := range s.Calls {
		number := len(a.calls)
		if c.Index != nil {
			number = *c.Index
		}
		if err := a.asksMore(number, c.ID, cmp.Or(c.Function.Name, c.Custom.Name), c.Function.Arguments+c.Custom.Input); err != nil {
			return err
		}
	}
	return nil
}

// chatStops: what is not here is a good end.
var chatStops = map[string]stop{
	"length": stopLength, "content_filter": stopRefusal, "tool_calls": stopTool, "function_call": stopTool,
}

// usageWithin splits an input that counts what came from the cache, so that
// input_tokens means the same for every backend: what was read anew.
func usageWithin(input, cached, output int64) work.Usage {
	return work.Usage{InputTokens: max(0, input-cached), CacheReadTokens: cached, OutputTokens: output}
}
