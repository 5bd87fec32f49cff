package mock

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// runCall answers a call in the shape of its API: what it says is what it was
// asked, and the same body always gets the same answer. The body's own member
// mock says what else is to happen, as payload.mock does for other units.
func runCall(ctx context.Context, req backend.Request, steps *transcript.Writer) backend.Result {
	begun := time.Now()
	result := backend.Result{Metadata: backend.Metadata{Model: cmp.Or(backend.CallModel(req.Call), "mock"), NumTurns: 1}}
	backend.RecordCall(req.Call, steps)
	s, err := bodyScript(req.Call.Body)
	failure, stopped := backend.CheckCall("mock", req.Call), false
	switch {
	case failure != nil:
	case err != nil:
		failure = work.Fail(work.ClassInvalidRequest, err.Error())
	case !sleep(ctx, s.Sleep.Duration()):
		failure, stopped = backend.Interrupted(context.Cause(ctx)), true
	case s.fails(req.Attempt):
		failure = work.Fail(s.Fail, cmp.Or(s.Message, "mock was asked to fail"))
	}
	m := &result.Metadata
	m.TotalCostUSD, m.DurationMS = &s.CostUSD, time.Since(begun).Milliseconds()
	status := 0
	if failure != nil && !stopped {
		status = statuses[failure.Class]
	}
	switch {
	case failure == nil && !stopped:
		m.HTTPStatus, result.Success = http.StatusOK, true
		result.Output, m.Usage = s.callAnswer(req.Call, steps)
	case status != 0:
		m.HTTPStatus, result.Output = status, refusal(req.Call.Endpoint, failure)
	}
	result.Error = failure
	sum := sha256.Sum256(req.Call.Body)
	m.RequestID = "req_mock_" + hex.EncodeToString(sum[:8])
	backend.Sanitize(&result, steps)
	return result
}

func bodyScript(body json.RawMessage) (script, error) {
	s, _, err := readScript(body)
	return s, err
}

// statuses are those by which an API tells of a failure.
var statuses = map[work.Class]int{
	work.ClassInfra: 500, work.ClassRateLimit: 429, work.ClassAuth: 401, work.ClassBilling: 402,
	work.ClassContextTooLong: 400, work.ClassRefusal: 400, work.ClassInvalidRequest: 400,
}

func refusal(endpoint string, f *work.Failure) string {
	kind := "invalid_request_error"
	if endpoint == work.EndpointMessages {
		return mustJSON(map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": f.Message}})
	}
	return mustJSON(map[string]any{"error": map[string]any{"message": f.Message, "type": kind, "param": nil, "code": f.Class}})
}

// mustJSON encodes what always can be.
func mustJSON(v any) string {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	if err := out.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(text.String())
}

// countTokens is a guess at how many tokens a text has.
func countTokens(text string) int { return (len(text) + 3) / 4 }

// callAnswer answers a call, and writes what it says into the transcript.
func (s script) callAnswer(c *work.Call, steps *transcript.Writer) (body string, used work.Usage) {
	asked := backend.CallText(c)
	if s.Output == "" {
		s.Output = prefix + asked
	}
	text := s.answer(nil)
	used.InputTokens = int64(countTokens(string(c.Body)))
	if c.Endpoint != work.EndpointEmbeddings {
		used.OutputTokens = int64(countTokens(text))
		steps.Add(transcript.Step{Type: transcript.Action, Content: []transcript.Content{{Type: transcript.Text, Text: text}}})
	}
	return encodeAnswer(c, text, used), used
}

// encodeAnswer is a text in the shape of the call's API.
func encodeAnswer(c *work.Call, text string, used work.Usage) string {
	sum := sha256.Sum256(c.Body)
	id, model := hex.EncodeToString(sum[:12]), cmp.Or(backend.CallModel(c), "mock")
	in, out := used.InputTokens, used.OutputTokens
	switch c.Endpoint {
	case work.EndpointMessages:
		return mustJSON(map[string]any{
			"id": "msg_" + id, "type": "message", "role": "assistant", "model": model,
			"content":     []any{map[string]any{"type": "text", "text": text}},
			"stop_reason": "end_turn", "stop_sequence": nil,
			"usage": map[string]any{"input_tokens": in, "output_tokens": out, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0},
		})
	case work.EndpointResponses:
		return mustJSON(map[string]any{
			"id": "resp_" + id, "object": "response", "created_at": 0, "status": "completed",
			"model": model, "error": nil, "incomplete_details": nil,
			"output": []any{map[string]any{
				"id": "msg_" + id, "type": "message", "role": "assistant", "status": "completed",
				"content": []any{map[string]any{"type": "output_text", "text": text, "annotations": []any{}}},
			}},
			"usage": map[string]any{
				"input_tokens": in, "output_tokens": out, "total_tokens": in + out,
				"input_tokens_details": map[string]any{"cached_tokens": 0}, "output_tokens_details": map[string]any{"reasoning_tokens": 0},
			},
		})
	case work.EndpointEmbeddings:
		return embeddings(c.Body, model, in)
	}
	return mustJSON(map[string]any{
		"id": "chatcmpl-" + id, "object": "chat.completion", "created": 0, "model": model,
		"choices": []any{map[string]any{
			"index": 0, "finish_reason": "stop", "logprobs": nil,
			"message": map[string]any{"role": "assistant", "content": text, "refusal": nil},
		}},
		"usage": map[string]any{"prompt_tokens": in, "completion_tokens": out, "total_tokens": in + out},
	})
}

const (
	dimensions    = 8
	maxDimensions = 4096
)

// embeddings makes a vector of the bytes of each input.
func embeddings(body json.RawMessage, model string, tokens int64) string {
	var asked struct {
		Input      json.RawMessage `json:"input"`
		Dimensions int             `json:"dimensions"`
		Format     string          `json:"encoding_format"`
	}
	_ = backend.Decode(body, &asked)
	length := min(max(asked.Dimensions, 0), maxDimensions)
	if length == 0 {
		length = dimensions
	}
	data := []any{}
	for i, input := range inputs(asked.Input) {
		vector := make([]float32, length)
		sum := sha256.Sum256(input)
		for j := range vector {
			vector[j] = float32(sum[j%len(sum)])/128 - 1
		}
		var embedding any = vector
		if asked.Format == "base64" {
			raw, _ := binary.Append(nil, binary.LittleEndian, vector) // floats always can be written
			embedding = base64.StdEncoding.EncodeToString(raw)
		}
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": embedding})
	}
	return mustJSON(map[string]any{
		"object": "list", "model": model, "data": data, "usage": map[string]any{"prompt_tokens": tokens, "total_tokens": tokens},
	})
}

// inputs are the inputs: one text or list of tokens, or several.
func inputs(raw json.RawMessage) []json.RawMessage {
	var many []json.RawMessage
	if json.Unmarshal(raw, &many) != nil || len(many) == 0 {
		return []json.RawMessage{raw}
	}
	var token float64
	if json.Unmarshal(many[0], &token) == nil {
		return []json.RawMessage{raw}
	}
	return many
}
