package fakemodel

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// finishReasons are a turn's stop reasons in the words of chat completions.
var finishReasons = map[string]string{
	"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter",
}

func (t Turn) finishReason() string {
	if reason, ok := finishReasons[t.StopReason]; ok {
		return reason
	}
	return t.StopReason
}

// event writes one server-sent event; without a name only its data.
func (st *stream) event(name string, data []byte) {
	if st.gone {
		return
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	if _, err := fmt.Fprintf(st.w, "%sdata: %s\n\n", name, data); err != nil {
		st.gone = true
		return
	}
	st.gone = http.NewResponseController(st.w).Flush() != nil
}

func (st *stream) drip(d time.Duration) {
	if d > 0 && !st.gone && !st.wait(d) {
		st.gone = true
	}
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// reduced is what a turn that is cut still says: the first half of its last
// block.
func (t Turn) reduced() Turn {
	if !t.Cut && t.ErrorType == "" {
		return t
	}
	if text := t.text(); text != "" {
		t.TextBytes, t.Text = 0, firstHalf(text)
	} else {
		t.Thinking = firstHalf(t.Thinking)
	}
	t.Calls = nil
	return t
}

// openaiCalls are the turn's calls with their ids and arguments made up.
func (s *Server) openaiCalls(turn Turn) []openaiCall {
	var calls []openaiCall
	for _, c := range turn.Calls {
		block := s.callBlock(c)
		call := openaiCall{ID: block.ID}
		call.Function.Name, call.Function.Arguments = block.Name, string(block.Input)
		calls = append(calls, call)
	}
	return calls
}

func (t Turn) chatUsage() map[string]any {
	input := t.InputTokens + t.CachedTokens
	u := map[string]any{
		"prompt_tokens": input, "completion_tokens": t.OutputTokens, "total_tokens": input + t.OutputTokens,
		"prompt_tokens_details": map[string]int{"cached_tokens": t.CachedTokens},
	}
	if t.CostUSD > 0 {
		u["cost"] = t.CostUSD
	}
	return u
}

func (s *Server) answerChat(w http.ResponseWriter, r *http.Request, request Request, turn Turn) {
	calls := s.openaiCalls(turn)
	base := map[string]any{"id": s.id("chatcmpl"), "created": time.Now().Unix(), "model": request.Model}
	if !request.Stream {
		message := map[string]any{"role": "assistant", "content": turn.text()}
		if turn.Thinking != "" {
			message["reasoning_content"] = turn.Thinking
		}
		if len(calls) > 0 {
			message["tool_calls"] = chatCalls(calls)
		}
		base["object"], base["usage"] = "chat.completion", turn.chatUsage()
		base["choices"] = []any{map[string]any{"index": 0, "message": message, "finish_reason": turn.finishReason()}}
		writeJSON(w, http.StatusOK, base)
		return
	}
	st := s.newStream(w, r)
	base["object"] = "chat.completion.chunk"
	chunk := func(delta map[string]any, finish any) {
		base["choices"] = []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}
		st.event("", mustJSON(base))
	}
	chunk(map[string]any{"role": "assistant", "content": ""}, nil)
	said := turn.reduced()
	for _, piece := range filled(said.Thinking, turn.Drip) {
		chunk(map[string]any{"reasoning_content": piece}, nil)
		st.drip(turn.Drip)
	}
	for _, piece := range filled(said.text(), turn.Drip) {
		chunk(map[string]any{"content": piece}, nil)
		st.drip(turn.Drip)
	}
	if turn.ErrorType != "" {
		st.event("", mustJSON(map[string]any{"error": turn.openaiError()}))
		return
	}
	if turn.Cut {
		return
	}
	if len(calls) > 0 {
		chunk(map[string]any{"tool_calls": chatCalls(calls)}, nil)
	}
	chunk(map[string]any{}, turn.finishReason())
	base["choices"], base["usage"] = []any{}, turn.chatUsage()
	st.event("", mustJSON(base))
	st.event("", []byte("[DONE]"))
}

func chatCalls(calls []openaiCall) []any {
	var list []any
	for i, c := range calls {
		list = append(list, map[string]any{"index": i, "id": c.ID, "type": "function", "function": c.Function})
	}
	return list
}

// filled splits text for a stream; no text is no piece.
func filled(text string, drip time.Duration) []string {
	if text == "" {
		return nil
	}
	return pieces(text, drip)
}

func (s *Server) newStream(w http.ResponseWriter, r *http.Request) *stream {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	return &stream{w: w, wait: func(d time.Duration) bool { return s.wait(r, d) }}
}

func (s *Server) answerResponses(w http.ResponseWriter, r *http.Request, request Request, turn Turn) {
	response := map[string]any{
		"id": s.id("resp"), "object": "response", "model": request.Model, "status": "in_progress", "output": []any{},
		"error": nil, "incomplete_details": nil,
	}
	final := s.responseOf(response, turn)
	if !request.Stream {
		writeJSON(w, http.StatusOK, final)
		return
	}
	st := s.newStream(w, r)
	number := 0
	send := func(kind string, fields map[string]any) {
		fields["type"], fields["sequence_number"] = kind, number
		number++
		st.event(kind, mustJSON(fields))
	}
	send("response.created", map[string]any{"response": response})
	said := turn.reduced()
	for _, piece := range filled(said.Thinking, turn.Drip) {
		send("response.reasoning_summary_text.delta", map[string]any{"item_id": "rs_1", "output_index": 0, "summary_index": 0, "delta": piece})
		st.drip(turn.Drip)
	}
	for _, piece := range filled(said.text(), turn.Drip) {
		send("response.output_text.delta", map[string]any{"item_id": "msg_1", "output_index": 1, "content_index": 0, "delta": piece})
		st.drip(turn.Drip)
	}
	if turn.ErrorType != "" {
		fields := turn.openaiError()
		send("error", fields)
		return
	}
	if turn.Cut {
		return
	}
	for i, item := range final["output"].([]any) {
		send("response.output_item.done", map[string]any{"output_index": i, "item": item})
	}
	send("response."+final["status"].(string), map[string]any{"response": final})
}

// responseOf is the response as it stands at the end.
func (s *Server) responseOf(begun map[string]any, turn Turn) map[string]any {
	final := map[string]any{}
	for name, value := range begun {
		final[name] = value
	}
	var output []any
	if turn.Thinking != "" {
		output = append(output, map[string]any{"id": "rs_1", "type": "reasoning",
			"summary": []any{map[string]any{"type": "summary_text", "text": turn.Thinking}}})
	}
	if text := turn.text(); text != "" || len(turn.Calls) == 0 {
		output = append(output, map[string]any{"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": text, "annotations": []any{}}}})
	}
	for _, call := range s.openaiCalls(turn) {
		output = append(output, map[string]any{"id": "fc_" + call.ID, "type": "function_call", "call_id": call.ID,
			"name": call.Function.Name, "arguments": call.Function.Arguments, "status": "completed"})
	}
	final["output"], final["status"] = output, "completed"
	final["usage"] = map[string]any{
		"input_tokens": turn.InputTokens + turn.CachedTokens, "output_tokens": turn.OutputTokens,
		"input_tokens_details": map[string]int{"cached_tokens": turn.CachedTokens},
		"total_tokens":         turn.InputTokens + turn.CachedTokens + turn.OutputTokens,
	}
	switch turn.StopReason {
	case "max_tokens":
		final["status"], final["incomplete_details"] = "incomplete", map[string]string{"reason": "max_output_tokens"}
	case "refusal":
		final["status"], final["incomplete_details"] = "incomplete", map[string]string{"reason": "content_filter"}
	}
	return final
}

// embeddings is one vector, whatever is embedded.
func (t Turn) embeddings(request Request) map[string]any {
	return map[string]any{
		"object": "list", "model": request.Model,
		"data":  []any{map[string]any{"object": "embedding", "index": 0, "embedding": []float64{0.25, -0.5}}},
		"usage": map[string]int{"prompt_tokens": t.InputTokens, "total_tokens": t.InputTokens},
	}
}
