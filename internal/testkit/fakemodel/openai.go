package fakemodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// parseChat reads a POST /v1/chat/completions as a Request.
func parseChat(body []byte, headers http.Header) (Request, error) {
	var wire struct {
		Model               string `json:"model"`
		Messages            []openaiMessage
		Tools               []openaiTool `json:"tools"`
		Stream              bool         `json:"stream"`
		MaxTokens           int          `json:"max_tokens"`
		MaxCompletionTokens int          `json:"max_completion_tokens"`
	}
	if err := json.Unmarshal(body, &wire); err != nil {
		return Request{}, fmt.Errorf("reading the body: %w", err)
	}
	if len(wire.Messages) == 0 {
		return Request{}, errors.New("messages: Field required")
	}
	r := Request{
		API: Chat, At: time.Now(), Model: wire.Model, Stream: wire.Stream, MaxTokens: max(wire.MaxTokens, wire.MaxCompletionTokens),
		Headers: headers.Clone(), Body: body,
	}
	return r.withOpenAI("", wire.Messages, wire.Tools)
}

// parseResponses reads a POST /v1/responses as a Request.
func parseResponses(body []byte, headers http.Header) (Request, error) {
	var wire struct {
		Model        string          `json:"model"`
		Instructions string          `json:"instructions"`
		Input        json.RawMessage `json:"input"`
		Tools        []openaiTool    `json:"tools"`
		Stream       bool            `json:"stream"`
		MaxTokens    int             `json:"max_output_tokens"`
	}
	if err := json.Unmarshal(body, &wire); err != nil {
		return Request{}, fmt.Errorf("reading the body: %w", err)
	}
	var items []openaiMessage
	if json.Unmarshal(wire.Input, &items) != nil {
		items = []openaiMessage{{Role: "user", Content: wire.Input}}
	}
	if len(wire.Input) == 0 {
		return Request{}, errors.New("input: Field required")
	}
	r := Request{
		API: Responses, At: time.Now(), Model: wire.Model, Stream: wire.Stream, MaxTokens: wire.MaxTokens,
		Headers: headers.Clone(), Body: body,
	}
	return r.withOpenAI(wire.Instructions, items, wire.Tools)
}

// parseEmbeddings reads a POST /v1/embeddings: what is to be embedded is the
// prompt.
func parseEmbeddings(body []byte, headers http.Header) (Request, error) {
	var wire struct {
		Model string          `json:"model"`
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(body, &wire); err != nil {
		return Request{}, fmt.Errorf("reading the body: %w", err)
	}
	r := Request{API: Embeddings, At: time.Now(), Model: wire.Model, Headers: headers.Clone(), Body: body}
	return r.withOpenAI("", []openaiMessage{{Role: "user", Content: wire.Input}}, nil)
}

// add adds a message; a text and the calls beside it are one answer.
func (r *Request) add(m Message) {
	if last := len(r.Messages) - 1; last >= 0 && m.Role == "assistant" && r.Messages[last].Role == m.Role {
		r.Messages[last].Content = append(r.Messages[last].Content, m.Content...)
		return
	}
	r.Messages = append(r.Messages, m)
}

func (r Request) withOpenAI(system string, messages []openaiMessage, tools []openaiTool) (Request, error) {
	if r.Model == "" {
		return Request{}, errors.New("model: Field required")
	}
	r.System = system
	for _, m := range messages {
		switch m.Role {
		case "system", "developer":
			r.System += Blocks(m.blocks()).Text()
		default:
			r.add(m.message())
		}
	}
	for _, t := range tools {
		r.Tools = append(r.Tools, t.tool())
	}
	r.Script, r.Index = position(r.Messages)
	return r, nil
}

// openaiMessage is a message of chat completions, or an input item of the
// Responses API.
type openaiMessage struct {
	Type       string          `json:"type"`
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCalls  []openaiCall    `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
	// Of the Responses API's calls and their results.
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Output    string `json:"output"`
}

type openaiCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

func (m openaiMessage) message() Message {
	switch {
	case m.Role == "tool":
		return Message{Role: "user", Content: []Block{{Type: "tool_result", ToolUseID: m.ToolCallID, Content: m.blocks()}}}
	case m.Type == "function_call_output":
		return Message{Role: "user", Content: []Block{{
			Type: "tool_result", ToolUseID: m.CallID, Content: Blocks{{Type: "text", Text: m.Output}},
		}}}
	case m.Type == "function_call":
		return Message{Role: "assistant", Content: []Block{{
			Type: "tool_use", ID: m.CallID, Name: m.Name, Input: json.RawMessage(m.Arguments),
		}}}
	}
	content := m.blocks()
	for _, call := range m.ToolCalls {
		content = append(content, Block{
			Type: "tool_use", ID: call.ID, Name: call.Function.Name, Input: json.RawMessage(call.Function.Arguments),
		})
	}
	return Message{Role: m.Role, Content: content}
}

// blocks names OpenAI's parts as Anthropic does; what they hold is in Source.
func (m openaiMessage) blocks() []Block {
	var text string
	if json.Unmarshal(m.Content, &text) == nil && len(m.Content) > 0 {
		return []Block{{Type: "text", Text: text}}
	}
	var raw []json.RawMessage
	_ = json.Unmarshal(m.Content, &raw) // null: no content
	var blocks []Block
	for _, part := range raw {
		var b Block
		_ = json.Unmarshal(part, &b)
		switch b.Type {
		case "input_text", "output_text":
			b.Type = "text"
		case "image_url", "input_image":
			b.Type, b.Source = "image", part
		case "file", "input_file":
			b.Type, b.Source = "document", part
		}
		blocks = append(blocks, b)
	}
	return blocks
}

type openaiTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Function    *openaiTool     `json:"function"`
}

func (t openaiTool) tool() Tool {
	if t.Function != nil {
		t = *t.Function
	}
	return Tool{Name: t.Name, Description: t.Description, InputSchema: t.Parameters}
}

var openaiCodes = map[int]string{
	401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded",
}

func (t Turn) openaiError() map[string]any {
	kind, code, text := t.ErrorType, t.ErrorType, t.ErrorMessage
	if kind == "" {
		kind, code = "invalid_request_error", openaiCodes[t.Status]
	}
	if t.ErrorType == "" && t.Status >= 500 {
		kind = "server_error"
	}
	if text == "" {
		text = "fakemodel was told to fail with " + kind
	}
	fields := map[string]any{"message": text, "type": kind, "param": nil, "code": nil}
	if code != "" {
		fields["code"] = code
	}
	return fields
}

func writeOpenAIError(w http.ResponseWriter, turn Turn, requestID string) {
	w.Header().Set("x-request-id", requestID)
	writeJSON(w, turn.Status, map[string]any{"error": turn.openaiError()})
}
