package fakemodel

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

func (s *Server) handleOpenAIBatches(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/files", s.batchCall(s.takeFile))
	mux.HandleFunc("GET /v1/files/{id}/content", s.batchCall(s.giveFile))
	mux.HandleFunc("POST /v1/batches", s.batchCall(s.makeOpenAIBatch))
	mux.HandleFunc("GET /v1/batches", s.batchCall(func(w http.ResponseWriter, r *http.Request) {
		page, more := s.page(r, "after", func(b *batch) bool { return b.atOpenAI() })
		data := make([]any, 0, len(page))
		for _, b := range page {
			data = append(data, b.openai())
		}
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data, "has_more": more})
	}))
	mux.HandleFunc("GET /v1/batches/{id}", s.batchOf(writeOpenAIError, func(w http.ResponseWriter, b *batch) {
		writeJSON(w, http.StatusOK, b.openai())
	}))
	mux.HandleFunc("POST /v1/batches/{id}/cancel", s.batchOf(writeOpenAIError, func(w http.ResponseWriter, b *batch) {
		b.cancel()
		writeJSON(w, http.StatusOK, b.openai())
	}))
}

func (s *Server) takeFile(w http.ResponseWriter, r *http.Request) {
	file, _, err := r.FormFile("file")
	if err != nil || r.FormValue("purpose") != "batch" {
		writeOpenAIError(w, Turn{Status: http.StatusBadRequest, ErrorMessage: "a file with purpose=batch is wanted"}, s.id("req"))
		return
	}
	content, err := io.ReadAll(file)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if s.batches.files == nil {
		s.batches.files = map[string][]byte{}
	}
	id := s.id("file")
	s.batches.files[id] = content
	writeJSON(w, http.StatusOK, map[string]any{"id": id, "object": "file", "bytes": len(content), "purpose": "batch"})
}

// giveFile gives back a file of lines, or one of the results of a batch.
func (s *Server) giveFile(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	content, found := s.batches.files[id]
	for _, b := range s.batches.all {
		switch id {
		case "out-" + b.ID:
			content, found = b.openaiResults(true), true
		case "err-" + b.ID:
			content, found = b.openaiResults(false), true
		}
	}
	if !found {
		writeOpenAIError(w, Turn{Status: http.StatusNotFound, ErrorMessage: "no file " + id}, s.id("req"))
		return
	}
	_, _ = w.Write(content)
}

func (s *Server) makeOpenAIBatch(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		File     string            `json:"input_file_id"`
		Endpoint string            `json:"endpoint"`
		Window   string            `json:"completion_window"`
		Metadata map[string]string `json:"metadata"`
	}
	err := json.NewDecoder(r.Body).Decode(&asked)
	content, found := s.batches.files[asked.File]
	if fail := s.batches.plan.Fail; fail.Status != 0 {
		s.failBatch(w, writeOpenAIError, fail)
		return
	}
	if err != nil || !found || asked.Window != "24h" || asked.Endpoint == "" {
		writeOpenAIError(w, Turn{Status: http.StatusBadRequest, ErrorMessage: "no file, no endpoint, or a window other than 24h"}, s.id("req"))
		return
	}
	b := &batch{Batch: Batch{ID: s.id("batch"), Endpoint: asked.Endpoint, Metadata: asked.Metadata}, file: asked.File}
	for raw := range bytes.Lines(content) {
		var line struct {
			ID   string          `json:"custom_id"`
			URL  string          `json:"url"`
			Body json.RawMessage `json:"body"`
		}
		if json.Unmarshal(raw, &line) != nil || line.URL != asked.Endpoint {
			line.ID = "" // is refused below
		}
		b.lines = append(b.lines, batchLine{line.ID, line.Body})
	}
	if number, err := checkLines(b.lines); err != nil {
		b.refused, b.badLines = err.Error(), []int{number}
	}
	s.makeBatch(b)
	if s.batches.plan.DropReply {
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusOK, b.openai())
}

var openaiStates = map[string]string{
	BatchRunning: "in_progress", BatchEnded: "completed", BatchExpired: "expired", BatchCancelled: "cancelled", BatchRefused: "failed",
}

func (b *batch) openai() map[string]any {
	count := b.fates()
	done := map[string]any{
		"id": b.ID, "object": "batch", "endpoint": b.Endpoint, "input_file_id": b.file, "completion_window": "24h",
		"status": openaiStates[b.State], "created_at": b.made.Unix(), "metadata": b.Metadata, "errors": nil,
		"output_file_id": nil, "error_file_id": nil,
		"request_counts": map[string]int{"total": len(b.lines), "completed": count["succeeded"],
			"failed": len(b.lines) - count["succeeded"] - count["running"]},
	}
	if b.State == BatchRefused {
		errors := []any{}
		for _, line := range b.badLines {
			errors = append(errors, map[string]any{"code": b.refused, "line": line, "message": "fakemodel refuses it", "param": nil})
		}
		if len(errors) == 0 {
			errors = append(errors, map[string]any{"code": b.refused, "line": nil, "message": "fakemodel refuses it all", "param": nil})
		}
		done["errors"] = map[string]any{"object": "list", "data": errors}
		done["request_counts"] = map[string]int{"total": 0, "completed": 0, "failed": 0}
		return done
	}
	for _, r := range b.results {
		if r.well() {
			done["output_file_id"] = "out-" + b.ID
		} else {
			done["error_file_id"] = "err-" + b.ID
		}
	}
	return done
}

var openaiFates = map[string]string{BatchExpired: "batch_expired", BatchCancelled: "batch_cancelled", "timeout": "request_timeout"}

// openaiResults is the file of the lines that went well, or that of the others.
func (b *batch) openaiResults(well bool) []byte {
	var lines [][]byte
	for _, r := range b.results {
		if r.well() != well {
			continue
		}
		line := map[string]any{"id": "batch_req_" + r.id, "custom_id": r.id, "response": nil, "error": nil}
		if r.fate != "" {
			line["error"] = map[string]any{"code": openaiFates[r.fate], "message": "fakemodel was told so at " + b.ended.Format(time.TimeOnly)}
		} else {
			line["response"] = map[string]any{"status_code": r.status, "request_id": r.requestID, "body": r.body}
		}
		lines = append(lines, mustJSON(line))
	}
	return jsonLines(lines)
}

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
