package conformance

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"piecework/internal/backend/mock"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// Every API gets the body as it is, and its answer comes back as it is.
func TestCallsAreHandedOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ backend, endpoint, body, says string }{
		{"chat", work.EndpointChat, `{"model":"gpt-4.1","stream":true,"stream_options":{"include_usage":true},"x":{"b":1,"a":2},"messages":[{"role":"system","content":"s"},{"role":"user","content":"What?"}]}`, `"object":"chat.completion"`},
		{"chat", work.EndpointResponses, `{"model":"gpt-4.1","stream":true,"input":"What?"}`, `"object":"response"`},
		{"anthropic", work.EndpointMessages, `{"model":"claude-sonnet-4-5","max_tokens":9,"stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"What?"}]}]}`, `"type":"message"`},
		{"anthropic", work.EndpointChat, `{"model":"claude-sonnet-4-5","messages":[{"role":"user","content":"What?"}]}`, `"object":"chat.completion"`},
	} {
		model := fakemodel.Start(t)
		model.Script(fakemodel.Turn{Thinking: "let me see", Text: "schön <3", InputTokens: 1000, OutputTokens: 100, CachedTokens: 500})
		got := backendtest.Execute(t.Context(), t, modelAPIs(t, model.URL)[c.backend], backendtest.NewCall(t, c.endpoint, c.body))
		if !got.Success || !json.Valid([]byte(got.Output)) || !strings.Contains(got.Output, c.says) || !strings.Contains(got.Output, "sch") {
			t.Errorf("%s at %s: %v %s", c.backend, c.endpoint, got.Error, got.Output)
		}
		if m := got.Metadata; m.HTTPStatus != 200 || !strings.HasPrefix(m.RequestID, "req_fake") || m.NumTurns != 1 {
			t.Errorf("%s: %+v", c.endpoint, m)
		}
		got.WantStep(t, transcript.UserText, "What?")
		got.WantStep(t, transcript.Action, "schön <3")
		cost := 0.00465 // as in TestModelAnswers
		if c.backend == "chat" {
			cost = 0.00305
		}
		got.WantUsage(t, work.Usage{InputTokens: 1000, OutputTokens: 100, CacheReadTokens: 500}, &cost, false)
		r := model.Requests()[0]
		sent := map[string]json.RawMessage{}
		if err := json.Unmarshal(r.Body, &sent); err != nil {
			t.Fatal(err)
		}
		if r.Stream || sent["stream_options"] != nil {
			t.Errorf("%s: a stream was asked for: %s", c.endpoint, r.Body)
		}
		if sent["x"] != nil && string(sent["x"]) != `{"b":1,"a":2}` {
			t.Errorf("%s: the body was changed: %s", c.endpoint, r.Body)
		}
		if c.endpoint == work.EndpointChat && r.Headers.Get("Authorization") != "Bearer "+testKey {
			t.Errorf("%s: the key is in %v", c.backend, r.Headers)
		}
	}
}

// A refusal is handed over with its status, and has its class.
func TestCallsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		turn  fakemodel.Turn
		class work.Class
	}{
		{fakemodel.Turn{Status: 400, ErrorMessage: "temperature: no"}, work.ClassInvalidRequest},
		{fakemodel.Turn{Status: 401}, work.ClassAuth},
		{fakemodel.Turn{Status: 429, Headers: map[string]string{"retry-after": "7"}}, work.ClassRateLimit},
		{fakemodel.Turn{Status: 500}, work.ClassInfra},
	} {
		model := fakemodel.Start(t)
		model.Script(c.turn)
		for name, endpoint := range map[string]string{"chat": work.EndpointResponses, "anthropic": work.EndpointMessages} {
			got := backendtest.Execute(t.Context(), t, modelAPIs(t, model.URL)[name], backendtest.NewCall(t, endpoint, `{"model":"gpt-4.1","max_tokens":9,"input":"x","messages":[{"role":"user","content":"x"}]}`))
			if got.Error == nil || got.Error.Class != c.class || got.Metadata.HTTPStatus != c.turn.Status || !strings.Contains(got.Output, `"error":{`) {
				t.Errorf("%s %d: %v, status %d, %s", name, c.turn.Status, got.Error, got.Metadata.HTTPStatus, got.Output)
			}
			if got.Error != nil && c.class == work.ClassRateLimit && got.Error.ResetAt.IsZero() {
				t.Errorf("%s: nobody knows when the limit ends", name)
			}
		}
	}
}

func TestCallsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	answer := "<html>sorry</html>"
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	backends := modelAPIs(t, server.URL)
	backends["mock"] = mock.Backend{}
	for _, c := range []struct{ name, endpoint string }{
		{"anthropic", work.EndpointResponses}, {"anthropic", work.EndpointEmbeddings}, {"chat", work.EndpointMessages}, {"mock", "/v1/images"},
	} {
		got := backendtest.Execute(t.Context(), t, backends[c.name], backendtest.NewCall(t, c.endpoint, `{}`))
		got.WantFailure(t, work.ClassInvalidRequest, "no endpoint", "")
	}
	if len(asked) > 0 {
		t.Errorf("asked %v", asked)
	}
	got := backendtest.Execute(t.Context(), t, backends["chat"], backendtest.NewCall(t, work.EndpointEmbeddings, `{"model":"m","input":"x"}`))
	got.WantFailure(t, work.ClassInfra, "no JSON", "")
	answer = `{"object":"list","data":[],"model":"text-embedding-3-small","usage":{"prompt_tokens":8,"total_tokens":8}}`
	got = backendtest.Execute(t.Context(), t, backends["chat"], backendtest.NewCall(t, work.EndpointEmbeddings, `{"model":"m","input":"x"}`))
	if got.Output != answer || got.Metadata.Usage.InputTokens != 8 || !slices.Equal(asked, []string{"/v1/embeddings", "/v1/embeddings"}) {
		t.Errorf("%v %s %+v %v", got.Error, got.Output, got.Metadata, asked)
	}
}
