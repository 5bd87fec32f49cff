package openai

import (
	"encoding/json"
	"reflect"
	"testing"

	"piecework/internal/backend"
)

func TestOpenAIBatchLines(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]*backend.Answer{
		`{"custom_id":"a","response":{"status_code":200,"request_id":"r","body":{"x":1}},"error":null}`:                 {Status: 200, RequestID: "r", Body: json.RawMessage(`{"x":1}`)},
		`{"custom_id":"a","response":{"status_code":400,"request_id":"r","body":{"error":{}}}}`:                         {Status: 400, RequestID: "r", Body: json.RawMessage(`{"error":{}}`)},
		`{"custom_id":"a","response":null,"error":{"code":"batch_expired","message":"m"}}`:                              nil,
		`{"custom_id":"a","response":{"status_code":0,"request_id":"","body":null},"error":{"code":"batch_cancelled"}}`: nil,
		`{"custom_id":"a","response":null,"error":{"code":"request_timeout","message":"<m>"}}`: {Status: 408,
			RequestID: "", Body: json.RawMessage(`{"error":{"code":"request_timeout","message":"<m>"}}`)},
		`{"custom_id":"a","response":null,"error":{"code":"server_error","message":"m"}}`: {Status: 500,
			RequestID: "", Body: json.RawMessage(`{"error":{"code":"server_error","message":"m"}}`)},
		`{"custom_id":"a"}`: {Status: 500, RequestID: "", Body: json.RawMessage(`{"error":{"message":"the line has neither an answer nor an error"}}`)},
	} {
		var l batchLine
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatal(err)
		}
		if got := l.answer(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s\nis   %+v\nwant %+v", raw, got, want)
		}
	}
}
