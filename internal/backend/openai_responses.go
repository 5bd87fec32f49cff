package backend

import (
	"context"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"piecework/internal/transcript"
)

func (o *OpenAI) sendResponses(ctx context.Context, t *talk) (res *http.Response, err error) {
	client := o.client()
	err = client.Post(ctx, "responses", responsesParams(t), &res, option.WithJSONSet("stream", true))
	return res, err
}

// responsesParams asks the server to keep nothing: the transcript is here.
func responsesParams(t *talk) responses.ResponseNewParams {
	params := responses.ResponseNewParams{Model: t.model, Store: openai.Bool(false)}
	if t.maxTokens > 0 {
		params.MaxOutputTokens = openai.Int(t.maxTokens)
	}
	if t.system != "" {
		params.Instructions = openai.String(t.system)
	}
	items := responses.ResponseInputParam{
		responses.ResponseInputItemParamOfMessage(responsesContent(t.parts), responses.EasyInputMessageRoleUser),
	}
	if t.repair != nil {
		items = append(items,
			responses.ResponseInputItemParamOfMessage(t.repair.answer, responses.EasyInputMessageRoleAssistant),
			responses.ResponseInputItemParamOfMessage(t.repair.complaint, responses.EasyInputMessageRoleUser))
	}
	params.Input.OfInputItemList = items
	if t.schema != nil {
		params.Text.Format.OfJSONSchema = &responses.ResponseFormatTextJSONSchemaConfigParam{
			Name: "answer", Strict: openai.Bool(true), Schema: t.schema,
		}
	}
	return params
}

func responsesContent(parts []part) responses.ResponseInputMessageContentListParam {
	var content responses.ResponseInputMessageContentListParam
	for _, p := range parts {
		switch p.kind {
		case imagePart:
			image := responses.ResponseInputContentParamOfInputImage(responses.ResponseInputImageDetailAuto)
			image.OfInputImage.ImageURL = openai.String(p.dataURL())
			content = append(content, image)
		case pdfPart:
			content = append(content, responses.ResponseInputContentUnionParam{OfInputFile: &responses.ResponseInputFileParam{
				Filename: openai.String(p.name), FileData: openai.String(p.dataURL()),
			}})
		default:
			content = append(content, responses.ResponseInputContentParamOfInputText(p.text))
		}
	}
	return content
}

type responsesEvent struct {
	Type  string `json:"type"`
	Delta string `json:"delta"`
	Item  struct {
		Type string `json:"type"`
	} `json:"item"`
	Response struct {
		Model string `json:"model"`
		Usage *struct {
			Input   int64 `json:"input_tokens"`
			Output  int64 `json:"output_tokens"`
			Details struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		} `json:"usage"`
		Incomplete struct {
			Reason string `json:"reason"`
		} `json:"incomplete_details"`
	} `json:"response"`
}

func hearResponses(res *http.Response, a *answer) error {
	return eachEvent(res, a, func(data []byte) error {
		var e responsesEvent
		_ = decode(data, &e) // that it is JSON is known
		return e.tell(res, a, data)
	})
}

func (e *responsesEvent) tell(res *http.Response, a *answer, data []byte) error {
	if e.Response.Model != "" {
		a.model = e.Response.Model
	}
	if u := e.Response.Usage; u != nil {
		a.usage, a.told = usageWithin(u.Input, u.Details.Cached, u.Output), true
	}
	switch e.Type {
	case "response.output_text.delta":
		return a.hears(transcript.Action, e.Delta)
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		return a.hears(transcript.Reasoning, e.Delta)
	case "response.refusal.delta":
		a.refusal += e.Delta
	case "response.output_item.done":
		if e.Item.Type == "function_call" || e.Item.Type == "custom_tool_call" {
			a.stop = stopTool
		}
	case "response.completed":
		a.ended = true
	case "response.incomplete":
		a.ended, a.stop = true, stopLength
		if e.Response.Incomplete.Reason == "content_filter" {
			a.stop = stopRefusal
		}
	case "error":
		return newAPIError(res.StatusCode, res.Header, data)
	case "response.failed":
		var failed struct {
			Response struct {
				Error errorFields `json:"error"`
			} `json:"response"`
		}
		_ = decode(data, &failed)
		f := failed.Response.Error
		return &apiError{status: res.StatusCode, header: res.Header, code: f.code(), words: f.Message}
	}
	return nil
}
