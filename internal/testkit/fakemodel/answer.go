package fakemodel

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"
)

// deltaBytes is the size of a text delta that nobody waits for.
const deltaBytes = 16 << 10

// answer writes the turn's answer to the request.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, request Request, turn Turn, fail fail) {
	if turn.Silence > 0 && !s.wait(r, turn.Silence) {
		panic(http.ErrAbortHandler)
	}
	for name, value := range turn.Headers {
		w.Header().Set(name, value)
	}
	if turn.Status != 0 {
		fail(w, turn, s.id("req"))
		return
	}
	if turn.Raw != "" {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, turn.Raw)
		return
	}
	turn = turn.withDefaults()
	switch request.API {
	case Chat:
		w.Header().Set("x-request-id", s.id("req"))
		s.answerChat(w, r, request, turn)
		return
	case Responses:
		w.Header().Set("x-request-id", s.id("req"))
		s.answerResponses(w, r, request, turn)
		return
	case Embeddings:
		w.Header().Set("x-request-id", s.id("req"))
		writeJSON(w, http.StatusOK, turn.embeddings(request))
		return
	}
	w.Header().Set("request-id", s.id("req"))
	blocks := s.blocks(turn)
	if !request.Stream {
		s.writeMessage(w, request, turn, blocks)
		return
	}
	s.writeStream(w, r, request, turn, blocks)
}

// A block as it is sent.
type outBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
}

func (s *Server) blocks(turn Turn) []outBlock {
	var blocks []outBlock
	if turn.Thinking != "" {
		blocks = append(blocks, outBlock{Type: "thinking", Thinking: &turn.Thinking, Signature: new("c2lnbmVk")})
	}
	if text := turn.text(); text != "" || len(turn.Calls) == 0 {
		blocks = append(blocks, outBlock{Type: "text", Text: &text})
	}
	for _, call := range turn.Calls {
		blocks = append(blocks, s.callBlock(call))
	}
	return blocks
}

func (s *Server) callBlock(call Call) outBlock {
	if call.ID == "" {
		call.ID = s.id("toolu")
	}
	input := json.RawMessage("{}")
	if call.Input != nil {
		encoded, err := json.Marshal(call.Input)
		if err != nil {
			panic(fmt.Sprintf("fakemodel: input of call %s: %v", call.Name, err))
		}
		input = encoded
	}
	return outBlock{Type: "tool_use", ID: call.ID, Name: call.Name, Input: input}
}

type message struct {
	ID           string     `json:"id"`
	Type         string     `json:"type"`
	Role         string     `json:"role"`
	Model        string     `json:"model"`
	Content      []outBlock `json:"content"`
	StopReason   *string    `json:"stop_reason"`
	StopSequence *string    `json:"stop_sequence"`
	Usage        usage      `json:"usage"`
}

type usage struct {
	InputTokens         int `json:"input_tokens"`
	CacheCreationTokens int `json:"cache_creation_input_tokens"`
	CacheReadTokens     int `json:"cache_read_input_tokens"`
	OutputTokens        int `json:"output_tokens"`
}

func (s *Server) newMessage(request Request, turn Turn) message {
	return message{
		ID: s.id("msg"), Type: "message", Role: "assistant", Model: request.Model, Content: []outBlock{},
		Usage: usage{InputTokens: turn.InputTokens, CacheReadTokens: turn.CachedTokens, OutputTokens: 1},
	}
}

func (s *Server) writeMessage(w http.ResponseWriter, request Request, turn Turn, blocks []outBlock) {
	if turn.ErrorType != "" {
		turn.Status = http.StatusInternalServerError
		writeError(w, turn, s.id("req"))
		return
	}
	m := s.newMessage(request, turn)
	m.Content, m.StopReason, m.Usage.OutputTokens = blocks, &turn.StopReason, turn.OutputTokens
	if !turn.Cut {
		writeJSON(w, http.StatusOK, m)
		return
	}
	body, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body[:len(body)/2])
}

// A stream writes server-sent events until the client goes away.
type stream struct {
	w    http.ResponseWriter
	gone bool
	wait func(time.Duration) bool
}

func (st *stream) send(event string, fields map[string]any) {
	if st.gone {
		return
	}
	fields["type"] = event
	data, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	if _, err := fmt.Fprintf(st.w, "event: %s\ndata: %s\n\n", event, data); err != nil {
		st.gone = true
		return
	}
	st.gone = http.NewResponseController(st.w).Flush() != nil
}

func (s *Server) writeStream(w http.ResponseWriter, r *http.Request, request Request, turn Turn, blocks []outBlock) {
	st := s.newStream(w, r)
	st.send("message_start", map[string]any{"message": s.newMessage(request, turn)})
	st.send("ping", map[string]any{})
	for i, block := range blocks {
		last := i == len(blocks)-1
		if cut := last && (turn.Cut || turn.ErrorType != ""); cut {
			st.half(i, block, turn.Drip)
			break
		}
		st.block(i, block, turn.Drip)
	}
	switch {
	case turn.ErrorType != "":
		st.send("error", map[string]any{"error": turn.apiError()})
	case !turn.Cut:
		st.send("message_delta", map[string]any{
			"delta": map[string]any{"stop_reason": turn.StopReason, "stop_sequence": nil},
			"usage": usage{InputTokens: turn.InputTokens, CacheReadTokens: turn.CachedTokens, OutputTokens: turn.OutputTokens},
		})
		st.send("message_stop", map[string]any{})
	}
}

func (st *stream) block(index int, block outBlock, drip time.Duration) {
	start, deltas := opening(block, drip)
	st.send("content_block_start", map[string]any{"index": index, "content_block": start})
	st.deltas(index, deltas, drip)
	st.send("content_block_stop", map[string]any{"index": index})
}

// half sends the first half of a block and leaves it open.
func (st *stream) half(index int, block outBlock, drip time.Duration) {
	switch {
	case block.Text != nil:
		block.Text = new(firstHalf(*block.Text))
	case block.Thinking != nil:
		block.Thinking = new(firstHalf(*block.Thinking))
	default:
		block.Input = block.Input[:len(block.Input)/2]
	}
	start, deltas := opening(block, drip)
	st.send("content_block_start", map[string]any{"index": index, "content_block": start})
	st.deltas(index, deltas, drip)
}

func firstHalf(text string) string {
	at := len(text) / 2
	for at > 0 && !utf8.RuneStart(text[at]) {
		at--
	}
	return text[:at]
}

func (st *stream) deltas(index int, deltas []map[string]string, drip time.Duration) {
	for _, delta := range deltas {
		st.send("content_block_delta", map[string]any{"index": index, "delta": delta})
		if drip > 0 && !st.gone && !st.wait(drip) {
			st.gone = true
		}
	}
}

// opening splits a block into what content_block_start says and the deltas
// that follow.
func opening(block outBlock, drip time.Duration) (start outBlock, deltas []map[string]string) {
	empty := new("")
	add := func(kind, field, text string) {
		deltas = append(deltas, map[string]string{"type": kind, field: text})
	}
	switch block.Type {
	case "text":
		for _, piece := range pieces(*block.Text, drip) {
			add("text_delta", "text", piece)
		}
		return outBlock{Type: "text", Text: empty}, deltas
	case "thinking":
		for _, piece := range pieces(*block.Thinking, drip) {
			add("thinking_delta", "thinking", piece)
		}
		add("signature_delta", "signature", *block.Signature)
		return outBlock{Type: "thinking", Thinking: empty, Signature: empty}, deltas
	}
	for _, piece := range pieces(string(block.Input), 0) {
		add("input_json_delta", "partial_json", piece)
	}
	block.Input = json.RawMessage("{}")
	return block, deltas
}

// pieces splits text on character boundaries: a few bytes at a time when it
// is to drip, else in large pieces.
func pieces(text string, drip time.Duration) []string {
	size := deltaBytes
	if drip > 0 {
		size = 8
	}
	var all []string
	for len(text) > size {
		at := size
		for at < len(text) && !utf8.RuneStart(text[at]) {
			at++
		}
		all = append(all, text[:at])
		text = text[at:]
	}
	return append(all, text)
}

var errorTypes = map[int]string{
	400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
	404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
	529: "overloaded_error",
}

func (t Turn) apiError() map[string]string {
	kind, text := t.ErrorType, t.ErrorMessage
	if kind == "" {
		kind = errorTypes[t.Status]
	}
	if kind == "" && t.Status >= 500 {
		kind = "api_error"
	}
	if kind == "" {
		kind = "invalid_request_error"
	}
	if text == "" {
		text = "fakemodel was told to fail with " + kind
	}
	return map[string]string{"type": kind, "message": text}
}

func writeError(w http.ResponseWriter, turn Turn, requestID string) {
	w.Header().Set("request-id", requestID)
	writeJSON(w, turn.Status, map[string]any{"type": "error", "error": turn.apiError(), "request_id": requestID})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	encoded, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encoded)
}
