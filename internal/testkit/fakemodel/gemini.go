package fakemodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// gemini answers POST /v1beta/models/MODEL:METHOD.
func (s *Server) gemini(w http.ResponseWriter, r *http.Request) {
	model, method, _ := strings.Cut(r.PathValue("call"), ":")
	request, err := s.read(w, r, func(body []byte, headers http.Header) (Request, error) {
		return parseGemini(body, headers, model, method == "streamGenerateContent")
	})
	if err != nil {
		writeGeminiError(w, Turn{Status: http.StatusBadRequest, ErrorMessage: err.Error()}, s.id("req"))
		return
	}
	switch method {
	case "countTokens":
		writeJSON(w, http.StatusOK, map[string]int{"totalTokens": len(request.Body)/4 + 1})
	case "streamGenerateContent", "generateContent":
		s.answerGemini(w, r, request, s.take(request))
	default:
		writeGeminiError(w, Turn{Status: http.StatusNotFound, ErrorMessage: "fakemodel has no " + method}, s.id("req"))
	}
}

type geminiContent struct {
	Role  string       `json:"role"`
	Parts []geminiPart `json:"parts"`
}

type geminiPart struct {
	Text             *string         `json:"text,omitempty"`
	Thought          bool            `json:"thought,omitempty"`
	FunctionCall     *geminiCall     `json:"functionCall,omitempty"`
	FunctionResponse *geminiResponse `json:"functionResponse,omitempty"`
	InlineData       json.RawMessage `json:"inlineData,omitempty"`
}

type geminiCall struct {
	ID   string          `json:"id,omitempty"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args"`
}

type geminiResponse struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Response json.RawMessage `json:"response"`
}

// parseGemini reads a request of Google's API, named in Anthropic's words.
func parseGemini(body []byte, headers http.Header, model string, stream bool) (Request, error) {
	var wire struct {
		Contents []geminiContent `json:"contents"`
		System   geminiContent   `json:"systemInstruction"`
		Tools    []struct {
			Functions []struct {
				Name        string          `json:"name"`
				Description string          `json:"description"`
				Parameters  json.RawMessage `json:"parametersJsonSchema"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(body, &wire); err != nil {
		return Request{}, fmt.Errorf("reading the body: %w", err)
	}
	if len(wire.Contents) == 0 {
		return Request{}, errors.New("contents is not specified")
	}
	r := Request{
		At: time.Now(), Model: model, System: Blocks(wire.System.blocks()).Text(), Stream: stream,
		Headers: headers.Clone(), Body: body,
	}
	for _, tools := range wire.Tools {
		for _, f := range tools.Functions {
			r.Tools = append(r.Tools, Tool{Name: f.Name, Description: f.Description, InputSchema: f.Parameters})
		}
	}
	for _, c := range wire.Contents {
		role := c.Role
		if role == "model" {
			role = "assistant"
		}
		r.Messages = append(r.Messages, Message{Role: role, Content: c.blocks()})
	}
	r.Script, r.Index = position(r.Messages)
	// What the client asks on its own account, it asks without tools.
	r.Side = len(r.Tools) == 0
	return r, nil
}

func (c geminiContent) blocks() []Block {
	var blocks []Block
	for _, p := range c.Parts {
		switch {
		case p.Text != nil:
			blocks = append(blocks, Block{Type: "text", Text: *p.Text})
		case p.FunctionCall != nil:
			blocks = append(blocks, Block{Type: "tool_use", ID: p.FunctionCall.ID, Name: p.FunctionCall.Name, Input: p.FunctionCall.Args})
		case p.FunctionResponse != nil:
			blocks = append(blocks, Block{
				Type: "tool_result", ToolUseID: p.FunctionResponse.ID,
				Content: Blocks{{Type: "text", Text: string(p.FunctionResponse.Response)}},
			})
		case len(p.InlineData) > 0:
			blocks = append(blocks, Block{Type: "image", Source: p.InlineData})
		}
	}
	return blocks
}

func (s *Server) answerGemini(w http.ResponseWriter, r *http.Request, request Request, turn Turn) {
	if turn.Silence > 0 && !s.wait(r, turn.Silence) {
		panic(http.ErrAbortHandler)
	}
	for name, value := range turn.Headers {
		w.Header().Set(name, value)
	}
	if turn.Status != 0 {
		writeGeminiError(w, turn, s.id("req"))
		return
	}
	turn = turn.withDefaults()
	parts := s.geminiParts(turn)
	if !request.Stream {
		writeJSON(w, http.StatusOK, s.geminiChunk(request, turn, parts, true))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i, part := range parts {
		last := i == len(parts)-1
		if last && turn.Cut {
			return
		}
		data, err := json.Marshal(s.geminiChunk(request, turn, []geminiPart{part}, last))
		if err != nil {
			panic(err)
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		if turn.Drip > 0 && !s.wait(r, turn.Drip) {
			return
		}
	}
}

func (s *Server) geminiParts(turn Turn) []geminiPart {
	var parts []geminiPart
	if turn.Thinking != "" {
		parts = append(parts, geminiPart{Text: &turn.Thinking, Thought: true})
	}
	if text := turn.text(); text != "" || len(turn.Calls) == 0 {
		for _, piece := range pieces(text, turn.Drip) {
			parts = append(parts, geminiPart{Text: &piece})
		}
		if turn.Cut {
			parts = append(parts, geminiPart{Text: new("never sent")})
		}
	}
	for _, call := range turn.Calls {
		block := s.callBlock(call)
		parts = append(parts, geminiPart{FunctionCall: &geminiCall{ID: block.ID, Name: block.Name, Args: block.Input}})
	}
	return parts
}

// geminiReasons are Google's words for why an answer ends.
var geminiReasons = map[string]string{"end_turn": "STOP", "tool_use": "STOP", "max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}

func (s *Server) geminiChunk(request Request, turn Turn, parts []geminiPart, last bool) map[string]any {
	candidate := map[string]any{"index": 0, "content": geminiContent{Role: "model", Parts: parts}}
	chunk := map[string]any{"candidates": []any{candidate}, "modelVersion": request.Model, "responseId": s.id("resp")}
	if last {
		candidate["finishReason"] = geminiReasons[turn.StopReason]
		chunk["usageMetadata"] = map[string]int{
			"promptTokenCount": turn.InputTokens, "candidatesTokenCount": turn.OutputTokens,
			"totalTokenCount": turn.InputTokens + turn.OutputTokens,
		}
	}
	return chunk
}

var geminiStatuses = map[int]string{
	400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
	429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE",
}

// writeGeminiError tells of an error as Google does: how long to wait is in
// the body.
func writeGeminiError(w http.ResponseWriter, turn Turn, _ string) {
	text := turn.ErrorMessage
	if text == "" {
		text = "fakemodel was told to fail with " + geminiStatuses[turn.Status]
	}
	failure := map[string]any{"code": turn.Status, "message": text, "status": geminiStatuses[turn.Status]}
	if wait := turn.Headers["retry-after"]; wait != "" {
		failure["details"] = []any{map[string]string{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": wait + "s"}}
	}
	writeJSON(w, turn.Status, map[string]any{"error": failure})
}
