package anthropic

import (
	"encoding/json"
	"testing"

	"piecework/internal/backend/model"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/work"
)

// Every error of Anthropic's gets the class that it has over HTTP.
func TestAnthropicBatchLines(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]struct {
		status int
		class  work.Class
	}{
		"invalid_request_error": {400, work.ClassInvalidRequest}, "authentication_error": {401, work.ClassAuth},
		"billing_error": {402, work.ClassBilling}, "permission_error": {403, work.ClassAuth}, "not_found_error": {404, work.ClassInvalidRequest},
		"request_too_large": {413, work.ClassContextTooLong}, "rate_limit_error": {429, work.ClassRateLimit}, "api_error": {500, work.ClassInfra},
		"timeout_error": {504, work.ClassInfra}, "overloaded_error": {529, work.ClassRateLimit}, "something_new": {500, work.ClassInfra},
	} {
		var l batchLine
		raw := `{"custom_id":"a","result":{"type":"errored","error":{"type":"error","request_id":"req_1","error":{"type":"` + kind + `","message":"no"}}}}`
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatal(err)
		}
		got := l.answer()
		if got == nil || got.Status != want.status || got.RequestID != "req_1" {
			t.Errorf("%s: %+v", kind, got)
			continue
		}
		req := backendtest.NewRequest(t, "x")
		req.Answer = got
		backendtest.Execute(t.Context(), t, &Backend{Options: model.Options{BaseURL: "http://127.0.0.1:1"}}, req).WantFailure(t,
			want.class, kind, "(request req_1)")
	}
	for _, kind := range []string{"canceled", "expired"} {
		if got := (&batchLine{ID: "a", Result: struct {
			Type    string          `json:"type"`
			Message json.RawMessage `json:"message"`
			Error   json.RawMessage `json:"error"`
		}{Type: kind}}).answer(); got != nil {
			t.Errorf("%s: %+v", kind, got)
		}
	}
}
