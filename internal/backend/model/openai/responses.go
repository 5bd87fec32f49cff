package openai

import (
	"context"
	"net/http"
	"slices"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/transcript"
)

func (o *Backend) sendResponses(ctx context.Context, t *model.Conversation) (res *http.Response, err error) {
	client := o.client()
	err = client.Post(ctx, "responses", responsesParams(t), &res, option.WithJSONSet("stream", true))
	return res, err
}

// responsesParams asks the server to keep nothing: the transcript is here.
func responsesParams(t *model.Conversation) responses.ResponseNewParams {
	params := responses.ResponseNewParams{Model: t.Model, Store: openai.Bool(false)}
	if t.MaxTokens > 0 {
		params.MaxOutputTokens = openai.Int(t.MaxTokens)
	}
	if t.System != "" {
		params.Instructions = openai.String(t.System)
	}
	items := responses.ResponseInputParam{
		responses.ResponseInputItemParamOfMessage(responsesContent(t.Parts), responses.EasyInputMessageRoleUser),
	}
	if t.Repair != nil {
		items = append(items,
			responses.ResponseInputItemParamOfMessage(t.Repair.Answer, responses.EasyInputMessageRoleAssistant),
			responses.ResponseInputItemParamOfMessage(t.Repair.Complaint, responses.EasyInputMessageRoleUser))
	}
	params.Input.OfInputItemList = items
	if t.Schema != nil {
		params.Text.Format.OfJSONSchema = &responses.ResponseFormatTextJSONSchemaConfigParam{
			Name: "answer", Strict: openai.Bool(true), Schema: t.Schema,
		}
	}
	return params
}

func responsesContent(parts []model.Part) responses.ResponseInputMessageContentListParam {
	var content responses.ResponseInputMessageContentListParam
	for _, p := range parts {
		switch p.Kind {
		case model.ImagePart:
			image := responses.ResponseInputContentParamOfInputImage(responses.ResponseInputImageDetailAuto)
			image.OfInputImage.ImageURL = openai.String(p.DataURL())
			content = append(content, image)
		case model.PDFPart:
			content = append(content, responses.ResponseInputContentUnionParam{OfInputFile: &responses.ResponseInputFileParam{
				Filename: openai.String(p.Name), FileData: openai.String(p.DataURL()),
			}})
		default:
			content = append(content, responses.ResponseInputContentParamOfInputText(p.Text))
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

func readResponsesEvent(res *http.Response, a *model.Answer, data []byte) error {
	var e responsesEvent
	_ = backend.Decode(data, &e) // that it is JSON is known
	return e.apply(res, a, data)
}

// readResponsesBody takes an answer that came in one piece.
func readResponsesBody(body []byte, a *model.Answer) error {
	var r struct {
		responsesState
		Status string          `json:"status"`
		Output []responsesItem `json:"output"`
	}
	if err := backend.Decode(body, &r); err != nil {
		return err
	}
	for _, item := range r.Output {
		if err := item.apply(a); err != nil {
			return err
		}
	}
	end := responsesEvent{Type: "response." + r.Status, Response: r.responsesState}
	if err := end.apply(&http.Response{StatusCode: http.StatusOK}, a, nil); err != nil {
		return err
	}
	if !a.Ended {
		return model.ErrCut
	}
	return nil
}

// apply takes over an item that came in one piece.
func (i responsesItem) apply(a *model.Answer) error {
	if err := i.addToolCall(a); err != nil {
		return err
	}
	kind := transcript.Action
	if i.Type == "reasoning" {
		kind = transcript.Reasoning
	}
	for _, p := range slices.Concat(i.Summary, i.Content) {
		a.Refusal.WriteString(p.Refusal)
		if err := a.AddText(kind, p.Text); err != nil {
			return err
		}
	}
	return nil
}

// addToolCall takes over a call of a tool.
func (i responsesItem) addToolCall(a *model.Answer) error {
	if i.Type != "function_call" && i.Type != "custom_tool_call" {
		return nil
	}
	a.StopReason = model.StopTool
	return a.AddToolCall(i.CallID, i.Name, i.Arguments+i.Input)
}

func (e *responsesEvent) apply(res *http.Response, a *model.Answer, data []byte) error {
	if e.Response.Model != "" {
		a.Model = e.Response.Model
	}
	if u := e.Response.Usage; u != nil {
		a.Usage, a.UsageFinal = model.UsageWithin(u.Input, u.Details.Cached, u.Output), true
	}
	switch e.Type {
	case "response.output_text.delta":
		return a.AddText(transcript.Action, e.Delta)
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		return a.AddText(transcript.Reasoning, e.Delta)
	case "response.refusal.delta":
		a.Refusal.WriteString(e.Delta)
	case "response.output_item.done":
		return e.Item.addToolCall(a)
	case "response.completed":
		a.Ended = true
	case "response.incomplete":
		a.Ended, a.StopReason = true, model.StopLength
		if e.Response.Incomplete.Reason == "content_filter" {
			a.StopReason = model.StopRefusal
		}
	case "error":
		return model.NewAPIError(res.StatusCode, res.Header, data)
	case "response.failed":
		var failed struct {
			Response struct {
				Error model.ErrorFields `json:"error"`
			} `json:"response"`
		}
		_ = backend.Decode(data, &failed)
		f := failed.Response.Error
		return &model.APIError{Status: res.StatusCode, Header: res.Header, Code: f.Name(), Message: f.Message}
	}
	return nil
}
