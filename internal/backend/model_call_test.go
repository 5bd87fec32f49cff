package backend

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func callOf(t *testing.T, endpoint, body string) Request {
	t.Helper()
	req := request(t, "")
	req.Call = &work.Call{Endpoint: endpoint, Body: json.RawMessage(body)}
	return req
}

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
		got := try(t.Context(), t, modelAPIs(t, model.URL)[c.backend], callOf(t, c.endpoint, c.body))
		if !got.Success || !json.Valid([]byte(got.Output)) || !strings.Contains(got.Output, c.says) || !strings.Contains(got.Output, "sch") {
			t.Errorf("%s at %s: %v %s", c.backend, c.endpoint, got.Error, got.Output)
		}
		if m := got.Metadata; m.HTTPStatus != 200 || !strings.HasPrefix(m.RequestID, "req_fake") || m.NumTurns != 1 {
			t.Errorf("%s: %+v", c.endpoint, m)
		}
		got.wantStep(t, transcript.UserText, "What?")
		got.wantStep(t, transcript.Action, "schön <3")
		cost := 0.00465 // as in TestModelAnswers
		if c.backend == "chat" {
			cost = 0.00305
		}
		got.wantUsage(t, work.Usage{InputTokens: 1000, OutputTokens: 100, CacheReadTokens: 500}, &cost, false)
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
			got := try(t.Context(), t, modelAPIs(t, model.URL)[name], callOf(t, endpoint, `{"model":"gpt-4.1","max_tokens":9,"input":"x","messages":[{"role":"user","content":"x"}]}`))
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
	backends["mock"] = Mock{}
	for _, c := range []struct{ name, endpoint string }{
		{"anthropic", work.EndpointResponses}, {"anthropic", work.EndpointEmbeddings}, {"chat", work.EndpointMessages}, {"mock", "/v1/images"},
	} {
		got := try(t.Context(), t, backends[c.name], callOf(t, c.endpoint, `{}`))
		got.wantFailure(t, work.ClassInvalidRequest, "no endpoint", "")
	}
	if len(asked) > 0 {
		t.Errorf("asked %v", asked)
	}
	got := try(t.Context(), t, backends["chat"], callOf(t, work.EndpointEmbeddings, `{"model":"m","input":"x"}`))
	got.wantFailure(t, work.ClassInfra, "no JSON", "")
	answer = `{"object":"list","data":[],"model":"text-embedding-3-small","usage":{"prompt_tokens":8,"total_tokens":8}}`
	got = try(t.Context(), t, backends["chat"], callOf(t, work.EndpointEmbeddings, `{"model":"m","input":"x"}`))
	if got.Output != answer || got.Metadata.Usage.InputTokens != 8 || !slices.Equal(asked, []string{"/v1/embeddings", "/v1/embeddings"}) {
		t.Errorf("%v %s %+v %v", got.Error, got.Output, got.Metadata, asked)
	}
}

func TestMockAnswersCalls(t *testing.T) {
	t.Parallel()
	for endpoint, c := range map[string]struct{ body, says string }{
		work.EndpointChat:      {`{"model":"mock-1","messages":[{"role":"user","content":"größe"}]}`, mockSays + "größe"},
		work.EndpointMessages:  {`{"model":"mock-1","messages":[{"role":"user","content":[{"type":"text","text":"größe"}]}]}`, mockSays + "größe"},
		work.EndpointResponses: {`{"model":"mock-1","input":[{"role":"user","content":[{"type":"input_text","text":"größe"}]}]}`, mockSays + "größe"},
	} {
		got := try(t.Context(), t, Mock{}, callOf(t, endpoint, c.body))
		again := try(t.Context(), t, Mock{}, callOf(t, endpoint, c.body))
		if !got.Success || got.Metadata.HTTPStatus != 200 || got.Output != again.Output || got.Metadata.Usage.InputTokens == 0 {
			t.Errorf("%s: %v %s", endpoint, got.Error, got.Output)
		}
		got.wantStep(t, transcript.Action, c.says)
	}
	for body, want := range map[string]int{
		`{"input":"a"}`: 1, `{"input":["a","b"]}`: 2, `{"input":[1,2,3]}`: 1, `{"input":[[1,2],[3]],"dimensions":3}`: 2, `{"input":["a"],"encoding_format":"base64"}`: 1,
	} {
		got := try(t.Context(), t, Mock{}, callOf(t, work.EndpointEmbeddings, body))
		var list struct {
			Data []struct {
				Embedding json.RawMessage `json:"embedding"`
			} `json:"data"`
		}
		if err := json.Unmarshal([]byte(got.Output), &list); err != nil || len(list.Data) != want {
			t.Errorf("%s: %v %s", body, got.Error, got.Output)
			continue
		}
		var packed string
		var vector []float64
		isPacked := json.Unmarshal(list.Data[0].Embedding, &packed) == nil
		raw, _ := base64.StdEncoding.DecodeString(packed)
		_ = json.Unmarshal(list.Data[0].Embedding, &vector)
		if isPacked != strings.Contains(body, "base64") || isPacked && len(raw) != 4*mockDimensions || strings.Contains(body, "dimensions") && len(vector) != 3 {
			t.Errorf("%s: %s", body, got.Output)
		}
	}
}

func TestMockPlaysItsScriptForCalls(t *testing.T) {
	t.Parallel()
	got := try(t.Context(), t, Mock{}, callOf(t, work.EndpointChat, `{"mock":{"output":"just this","cost_usd":0.25},"messages":[]}`))
	got.wantStep(t, transcript.Action, "just this")
	if *got.Metadata.TotalCostUSD != 0.25 {
		t.Errorf("%+v", got.Metadata)
	}
	req := callOf(t, work.EndpointMessages, `{"mock":{"fail":"context_too_long","fail_times":1},"messages":[]}`)
	req.Attempt = 1
	got = try(t.Context(), t, Mock{}, req)
	if got.Metadata.HTTPStatus != 400 || !strings.Contains(got.Output, `"type":"error"`) || got.Error.Class != work.ClassContextTooLong {
		t.Errorf("%v %+v %s", got.Error, got.Metadata, got.Output)
	}
	req.Attempt = 2
	if got = try(t.Context(), t, Mock{}, req); !got.Success {
		t.Errorf("%v", got.Error)
	}
	got = try(t.Context(), t, Mock{}, callOf(t, work.EndpointChat, `{"mock":{"fial":"infra"}}`))
	got.wantFailure(t, work.ClassInvalidRequest, "fial", "")
}

// A run that was stopped has no answer, whoever stopped it.
func TestMockStopsCalls(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(work.ErrCancelled)
	got := try(ctx, t, Mock{}, callOf(t, work.EndpointChat, `{"mock":{"sleep":600},"messages":[]}`))
	if got.Success || got.Output != "" || got.Metadata.HTTPStatus != 0 {
		t.Errorf("%+v", got.Result)
	}
}
