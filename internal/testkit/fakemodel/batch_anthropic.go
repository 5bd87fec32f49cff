package fakemodel

import (
	"encoding/json"
	"net/http"
	"time"
)

func (s *Server) handleAnthropicBatches(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/messages/batches", s.batchCall(s.makeAnthropicBatch))
	mux.HandleFunc("GET /v1/messages/batches", s.batchCall(func(w http.ResponseWriter, r *http.Request) {
		page, more := s.page(r, "after_id", func(b *batch) bool { return !b.atOpenAI() })
		list := map[string]any{"has_more": more, "first_id": nil, "last_id": nil}
		data := make([]any, 0, len(page))
		for _, b := range page {
			data = append(data, b.anthropic())
			list["last_id"] = b.ID
		}
		list["data"] = data
		writeJSON(w, http.StatusOK, list)
	}))
	mux.HandleFunc("GET /v1/messages/batches/{id}", s.batchOf(writeError, func(w http.ResponseWriter, b *batch) {
		writeJSON(w, http.StatusOK, b.anthropic())
	}))
	mux.HandleFunc("POST /v1/messages/batches/{id}/cancel", s.batchOf(writeError, func(w http.ResponseWriter, b *batch) {
		b.cancel()
		writeJSON(w, http.StatusOK, b.anthropic())
	}))
	mux.HandleFunc("GET /v1/messages/batches/{id}/results", s.batchOf(writeError, func(w http.ResponseWriter, b *batch) {
		if b.State == BatchRunning {
			writeError(w, Turn{Status: http.StatusBadRequest, ErrorMessage: "the batch has not ended"}, s.id("req"))
			return
		}
		w.Header().Set("Content-Type", "application/x-jsonl")
		_, _ = w.Write(b.anthropicResults())
	}))
}

func (s *Server) makeAnthropicBatch(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Requests []struct {
			ID     string          `json:"custom_id"`
			Params json.RawMessage `json:"params"`
		} `json:"requests"`
	}
	err := json.NewDecoder(r.Body).Decode(&asked)
	b := &batch{Batch: Batch{ID: s.id("msgbatch"), Endpoint: "/v1/messages"}}
	for _, request := range asked.Requests {
		b.lines = append(b.lines, batchLine{request.ID, request.Params})
	}
	if err == nil {
		_, err = checkLines(b.lines)
	}
	fail := s.batches.plan.Fail
	if fail.Status == 0 && err != nil {
		fail = Turn{Status: http.StatusBadRequest, ErrorMessage: err.Error()}
	}
	if fail.Status != 0 {
		s.failBatch(w, writeError, fail)
		return
	}
	s.makeBatch(b)
	if s.batches.plan.DropReply {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusOK, b.anthropic())
}

func (b *batch) anthropic() map[string]any {
	status, count := "ended", b.fates()
	if b.State == BatchRunning {
		status = "in_progress"
	}
	return map[string]any{
		"id": b.ID, "type": "message_batch", "processing_status": status, "created_at": b.made.Format(time.RFC3339Nano),
		"request_counts": map[string]int{
			"processing": count["running"], "succeeded": count["succeeded"], "errored": count["errored"] + count["timeout"],
			"canceled": count[BatchCancelled], "expired": count[BatchExpired],
		},
	}
}

func (b *batch) anthropicResults() []byte {
	var lines [][]byte
	for _, r := range b.results {
		result := map[string]any{"type": "succeeded", "message": r.body}
		switch {
		case r.fate == BatchExpired:
			result = map[string]any{"type": "expired"}
		case r.fate == BatchCancelled:
			result = map[string]any{"type": "canceled"}
		case r.fate == "timeout":
			result = map[string]any{"type": "errored", "error": map[string]any{
				"type": "error", "error": Turn{Status: http.StatusGatewayTimeout}.apiError(),
			}}
		case !r.well():
			result = map[string]any{"type": "errored", "error": r.body}
		}
		lines = append(lines, mustJSON(map[string]any{"custom_id": r.id, "result": result}))
	}
	return jsonLines(lines)
}
