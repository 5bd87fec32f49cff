package backend

import (
	"context"
	"net/http"
	"slices"

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
	Type     string         `json:"type"`
	Delta    string         `json:"delta"`
	Item     responsesItem  `json:"item"`
	Response responsesState `json:"response"`
}

// responsesItem is a piece of the output.
type responsesItem struct {
	Type    string          `json:"type"`
	Summary []responsesPart `json:"summary"`
	Content []responsesPart `json:"content"`
	// Of a call of a tool.
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Input     string `json:"input"`
}

type responsesPart struct {
	Text    string `json:"text"`
	Refusal string `json:"refusal"`
}

// responsesState is the answer without its output.
type responsesState struct {
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
}

func hearResponses(res *http.Response, a *answer) error {
	return eachEvent(res, a, func(data []byte) error {
		var e responsesEvent
		_ = decode(data, &e) // that it is JSON is known
		return e.tell(res, a, data)
	})
}

// readResponses takes an answer that came in one piece.
func readResponses(body []byte, a *answer) error {
	var r struct {
		responsesState
		Status string          `json:"status"`
		Output []responsesItem `json:"output"`
	}
	if err := decode(body, &r); err != nil {
		return err
	}
	for _, item := range r.Output {
		if err := item.tell(a); err != nil {
			return err
		}
	}
	end := responsesEvent{Type: "response." + r.Status, Response: r.responsesState}
	if err := end.tell(&http.Response{StatusCode: http.StatusOK}, a, nil); err != nil {
		return err
	}
	if !a.ended {
		return errCut
	}
	return nil
}

// tell takes over an item that came in one piece.
func (i responsesItem) tell(a *answer) error {
	if err := i.asks(a); err != nil {
		return err
	}
	kind := transcript.Action
	if i.Type == "reasoning" {
		kind = transcript.Reasoning
	}
	for _, p := range slices.Concat(i.Summary, i.Content) {
		a.refusal.WriteString(p.Refusal)
		if err := a.hears(kind, p.Text); err != nil {
			return err
		}
	}
	return nil
}

// asks takes over a call of a tool.
func (i responsesItem) asks(a *answer) error {
	if i.Type != "function_call" && i.Type != "custom_tool_call" {
		return nil
	}
	a.stop = stopTool
	return a.asks(i.CallID, i.Name, i.Arguments+i.Input)
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
		a.refusal.WriteString(e.Delta)
	case "response.output_item.done":
		return e.Item.asks(a)
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
