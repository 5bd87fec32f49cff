package mock

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestMockAnswersCalls(t *testing.T) {
	t.Parallel()
	for endpoint, c := range map[string]struct{ body, says string }{
		work.EndpointChat:      {`{"model":"mock-1","messages":[{"role":"user","content":"größe"}]}`, prefix + "größe"},
		work.EndpointMessages:  {`{"model":"mock-1","messages":[{"role":"user","content":[{"type":"text","text":"größe"}]}]}`, prefix + "größe"},
		work.EndpointResponses: {`{"model":"mock-1","input":[{"role":"user","content":[{"type":"input_text","text":"größe"}]}]}`, prefix + "größe"},
	} {
		got := backendtest.Execute(t.Context(), t, Backend{}, backendtest.NewCall(t, endpoint, c.body))
		again := backendtest.Execute(t.Context(), t, Backend{}, backendtest.NewCall(t, endpoint, c.body))
		if !got.Success || got.Metadata.HTTPStatus != 200 || got.Output != again.Output || got.Metadata.Usage.InputTokens == 0 {
			t.Errorf("%s: %v %s", endpoint, got.Error, got.Output)
		}
		got.WantStep(t, transcript.Action, c.says)
	}
	for body, want := range map[string]int{
		`{"input":"a"}`: 1, `{"input":["a","b"]}`: 2, `{"input":[1,2,3]}`: 1, `{"input":[[1,2],[3]],"dimensions":3}`: 2, `{"input":["a"],"encoding_format":"base64"}`: 1,
	} {
		got := backendtest.Execute(t.Context(), t, Backend{}, backendtest.NewCall(t, work.EndpointEmbeddings, body))
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
		if isPacked != strings.Contains(body, "base64") || isPacked && len(raw) != 4*dimensions || strings.Contains(body, "dimensions") &&
			len(vector) != 3 {
			t.Errorf("%s: %s", body, got.Output)
		}
	}
}

func TestMockPlaysItsScriptForCalls(t *testing.T) {
	t.Parallel()
	got := backendtest.Execute(t.Context(), t, Backend{}, backendtest.NewCall(t, work.EndpointChat, `{"mock":{"output":"just this","cost_usd":0.25},"messages":[]}`))
	got.WantStep(t, transcript.Action, "just this")
	if *got.Metadata.TotalCostUSD != 0.25 {
		t.Errorf("%+v", got.Metadata)
	}
	req := backendtest.NewCall(t, work.EndpointMessages, `{"mock":{"fail":"context_too_long","fail_times":1},"messages":[]}`)
	req.Attempt = 1
	got = backendtest.Execute(t.Context(), t, Backend{}, req)
	if got.Metadata.HTTPStatus != 400 || !strings.Contains(got.Output, `"type":"error"`) || got.Error.Class != work.ClassContextTooLong {
		t.Errorf("%v %+v %s", got.Error, got.Metadata, got.Output)
	}
	req.Attempt = 2
	if got = backendtest.Execute(t.Context(), t, Backend{}, req); !got.Success {
		t.Errorf("%v", got.Error)
	}
	got = backendtest.Execute(t.Context(), t, Backend{}, backendtest.NewCall(t, work.EndpointChat, `{"mock":{"fial":"infra"}}`))
	got.WantFailure(t, work.ClassInvalidRequest, "fial", "")
}

// A run that was stopped has no answer, whoever stopped it.
func TestMockStopsCalls(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(work.ErrCancelled)
	got := backendtest.Execute(ctx, t, Backend{}, backendtest.NewCall(t, work.EndpointChat, `{"mock":{"sleep":600},"messages":[]}`))
	if got.Success || got.Output != "" || got.Metadata.HTTPStatus != 0 {
		t.Errorf("%+v", got.Result)
	}
}
