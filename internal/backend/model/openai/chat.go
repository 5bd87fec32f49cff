package openai

import (
	"cmp"
	"context"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/transcript"
)

func (o *Backend) sendChat(ctx context.Context, t *model.Conversation) (res *http.Response, err error) {
	client := o.client()
	params := chatParams(t)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	err = client.Post(ctx, "chat/completions", params, &res, option.WithJSONSet("stream", true))
	return res, err
}

func chatParams(t *model.Conversation) openai.ChatCompletionNewParams {
	params := openai.ChatCompletionNewParams{Model: t.Model}
	if t.MaxTokens > 0 {
		params.MaxCompletionTokens = openai.Int(t.MaxTokens)
	}
	if t.System != "" {
		params.Messages = append(params.Messages, openai.SystemMessage(t.System))
	}
	params.Messages = append(params.Messages, chatMessage(t.Parts))
	if t.Repair != nil {
		params.Messages = append(params.Messages,
			openai.AssistantMessage(t.Repair.Answer), openai.UserMessage(t.Repair.Complaint))
	}
	if t.Schema != nil {
		params.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
				Name: "answer", Strict: openai.Bool(true), Schema: t.Schema,
			},
		}
	}
	return params
}

// chatMessage is plain text where it can be: small servers take nothing else.
func chatMessage(parts []model.Part) openai.ChatCompletionMessageParamUnion {
	if len(parts) == 1 {
		return openai.UserMessage(parts[0].Text)
	}
	content := make([]openai.ChatCompletionContentPartUnionParam, 0, len(parts))
	for _, p := range parts {
		switch p.Kind {
		case model.ImagePart:
			content = append(content, openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: p.DataURL()}))
		case model.PDFPart:
			content = append(content, openai.FileContentPart(openai.ChatCompletionContentPartFileFileParam{
				Filename: openai.String(p.Name), FileData: openai.String(p.DataURL()),
			}))
		default:
			content = append(content, openai.TextContentPart(p.Text))
		}
	}
	return openai.UserMessage(content)
}

// chatChunk is read by hand, because the fields that other servers add are
// wanted too: thinking under two names, and OpenRouter's cost.
type chatChunk struct {
	Model   string `json:"model"`
	Choices []struct {
		Delta        chatDelta `json:"delta"`
		Message      chatDelta `json:"message"` // of an answer in one piece
		FinishReason string    `json:"finish_reason"`
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

type chatDelta struct {
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

func readChatEvent(_ *http.Response, a *model.Answer, data []byte) error {
	var c chatChunk
	_ = backend.Decode(data, &c) // that it is JSON is known
	return c.apply(a)
}

// readChatBody takes a completion that came in one piece.
func readChatBody(body []byte, a *model.Answer) error {
	var c chatChunk
	if err := backend.Decode(body, &c); err != nil {
		return err
	}
	if len(c.Choices) > 0 {
		c.Choices[0].Delta = c.Choices[0].Message
	}
	if err := c.apply(a); err != nil {
		return err
	}
	return a.End()
}

func (c *chatChunk) apply(a *model.Answer) error {
	if c.Model != "" {
		a.Model = c.Model
	}
	if u := c.Usage; u != nil {
		a.Usage = model.UsageWithin(u.Prompt, u.Details.Cached, u.Completion)
		a.Cost, a.UsageFinal = u.Cost, true
	}
	if len(c.Choices) == 0 {
		return nil
	}
	choice := c.Choices[0]
	if choice.FinishReason != "" {
		a.HasStopReason, a.StopReason = true, stopReasons[choice.FinishReason]
	}
	a.Refusal.WriteString(choice.Delta.Refusal)
	if err := choice.Delta.addToolCalls(a); err != nil {
		return err
	}
	thought := choice.Delta.ReasoningContent
	if thought == "" {
		thought = choice.Delta.Reasoning
	}
	if err := a.AddText(transcript.Reasoning, thought); err != nil {
		return err
	}
	return a.AddText(transcript.Action, choice.Delta.Content)
}

// addToolCalls takes over the calls of tools, or the pieces of them.
func (s *chatDelta) addToolCalls(a *model.Answer) error {
	if f := s.Function; f != (chatFunction{}) {
		return a.AppendToolCall(0, "", f.Name, f.Arguments)
	}
	for _, c := range s.Calls {
		number := len(a.Calls)
		if c.Index != nil {
			number = *c.Index
		}
		if err := a.AppendToolCall(number, c.ID, cmp.Or(c.Function.Name, c.Custom.Name), c.Function.Arguments+c.Custom.Input); err != nil {
			return err
		}
	}
	return nil
}

// stopReasons: what is not here is a good end.
var stopReasons = map[string]model.StopReason{
	"length": model.StopLength, "content_filter": model.StopRefusal, "tool_calls": model.StopTool, "function_call": model.StopTool,
}
