package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// codexModel is a model behind the Responses API that follows a script, one
// answer for each request; the last answer is given again and again.
type codexModel struct {
	*httptest.Server

	mu     sync.Mutex
	script []codexTurn
	given  int // of the first answer
	bodies []string
}

// codexTurn is what the model does with one request.
type codexTurn struct {
	text   string
	call   string   // a shell command to be called
	calls  []string // several at once
	status int      // an HTTP error in place of an answer
	code   string
	words  string
	times  int  // give this answer so often; 0: once
	cut    bool // the stream ends before its end
	failed bool // the stream says that the answer failed, by code and words
}

func startCodexModel(t *testing.T, script ...codexTurn) *codexModel {
	t.Helper()
	r := &codexModel{script: script}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// sent returns the bodies of all requests so far.
func (r *codexModel) sent() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.bodies...)
}

func (r *codexModel) next(body string) (codexTurn, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bodies = append(r.bodies, body)
	a := r.script[0]
	if r.given++; len(r.script) > 1 && r.given >= a.times {
		r.script, r.given = r.script[1:], 0
	}
	return a, len(r.bodies)
}

func (r *codexModel) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/responses") {
		http.Error(w, `{"error":{"message":"no such route"}}`, http.StatusNotFound)
		return
	}
	body, _ := io.ReadAll(req.Body)
	a, number := r.next(string(body))
	if a.status != 0 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(a.status)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": a.words, "code": a.code, "type": "error"}})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	a.stream(w, number)
}

func (a codexTurn) stream(w io.Writer, number int) {
	id := fmt.Sprintf("resp_%d", number)
	event := func(kind string, fields map[string]any) {
		fields["type"] = kind
		data, _ := json.Marshal(fields)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, data)
	}
	event("response.created", map[string]any{"response": map[string]any{"id": id}})
	if a.failed {
		event("response.failed", map[string]any{"response": map[string]any{
			"id": id, "error": map[string]any{"code": a.code, "message": a.words}}})
		return
	}
	for i, item := range a.items(number) {
		event("response.output_item.added", map[string]any{"output_index": i, "item": item})
		if a.cut {
			return
		}
		event("response.output_item.done", map[string]any{"output_index": i, "item": item})
	}
	event("response.completed", map[string]any{"response": map[string]any{"id": id, "usage": map[string]any{
		"input_tokens": 100, "input_tokens_details": map[string]any{"cached_tokens": 40},
		"output_tokens": 10, "output_tokens_details": map[string]any{"reasoning_tokens": 3}, "total_tokens": 110,
	}}})
}

func (a codexTurn) items(number int) []map[string]any {
	var items []map[string]any
	if a.text != "" {
		items = append(items, map[string]any{
			"type": "message", "role": "assistant", "id": fmt.Sprintf("msg_%d", number),
			"content": []map[string]any{{"type": "output_text", "text": a.text}},
		})
	}
	calls := a.calls
	if a.call != "" {
		calls = append(calls, a.call)
	}
	for i, command := range calls {
		args, _ := json.Marshal(map[string]any{"cmd": command})
		items = append(items, map[string]any{
			"type": "function_call", "id": fmt.Sprintf("fc_%d_%d", number, i), "call_id": fmt.Sprintf("call_%d_%d", number, i),
			"name": "exec_command", "arguments": string(args),
		})
	}
	return items
}
