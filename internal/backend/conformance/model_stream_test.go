package conformance

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/backend/model/openai"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestModelIsSilent(t *testing.T) {
	t.Parallel()
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		req := backendtest.NewRequest(t, "x")
		req.IdleTimeout = 50 * time.Millisecond
		model.Script(fakemodel.Turn{Text: "late", Silence: time.Hour})
		got := backendtest.Execute(t.Context(), t, b, req)
		got.WantFailure(t, work.ClassHang, "no answer at all for 50ms")
		if !got.CostIncomplete {
			t.Error("the cost of a call that was given up is said to be known")
		}

		req.IdleTimeout, req.StartupTimeout = time.Hour, 60*time.Millisecond
		model.Script(fakemodel.Turn{Text: "late", Silence: time.Hour})
		backendtest.Execute(t.Context(), t, b, req).WantFailure(t, work.ClassHang, "no answer at all for 60ms")

		req.IdleTimeout, req.StartupTimeout = 3*time.Second, 2*time.Minute // for the first word there is more time, on a busy machine
		model.Script(fakemodel.Turn{Text: "some words, and then silence", Drip: time.Hour})
		got = backendtest.Execute(t.Context(), t, b, req)
		got.WantFailure(t, work.ClassHang, "nothing came for 3s")
		if got.Output != "some wor" || !got.CostIncomplete {
			t.Errorf("output %q, incomplete %v", got.Output, got.CostIncomplete)
		}
	})
}

// A server that says nothing but that it lives is not taken for dead.
func TestPingsAreSignsOfLife(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 30 {
			_, _ = w.Write([]byte(": still thinking\n\n"))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
		_, _ = w.Write([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"here\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"))
	}))
	t.Cleanup(server.Close)
	req := backendtest.NewRequest(t, "x")
	req.IdleTimeout = 2 * time.Second
	backendtest.Execute(t.Context(), t, &openai.Backend{Options: model.Options{BaseURL: server.URL}}, req).WantSuccess(t, "here")
}

// A run that its caller ends keeps what there is; only a timeout is a failure.
func TestCallerEndsTheCall(t *testing.T) {
	for _, test := range []struct {
		cause error
		class work.Class
	}{{work.ErrTimeout, work.ClassTimeout}, {work.ErrCancelled, ""}, {work.ErrShutdown, ""}, {work.ErrFenced, ""}} {
		t.Run(test.cause.Error(), func(t *testing.T) {
			t.Parallel()
			onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
				model.Script(fakemodel.Turn{Text: strings.Repeat("word ", 1000), Drip: time.Millisecond, InputTokens: 1000})
				ctx, cancel := context.WithCancelCause(t.Context())
				steps := transcript.NewWriter(func(transcript.Step) { cancel(test.cause) }, nil)
				result, err := b.Execute(ctx, backendtest.NewRequest(t, "x"), steps)
				if err != nil || result.Success || !result.CostIncomplete || !strings.HasPrefix(result.Output, "word word") {
					t.Errorf("%v, %.300v", err, result)
				}
				if test.class == "" && result.Error != nil || test.class != "" && (result.Error == nil || result.Error.Class != test.class) {
					t.Errorf("error %v, want class %q", result.Error, test.class)
				}
				if b.Name() == "anthropic" && (result.Metadata.Usage.InputTokens != 1000 || backend.USD(result.Metadata.TotalCostUSD) == 0) {
					t.Errorf("what was used so far is lost: %+v", result.Metadata)
				}
			})
		})
	}
}

func TestCancelledBeforeTheCall(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, _ *fakemodel.Server) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(work.ErrCancelled)
		if got := backendtest.Execute(ctx, t, b, backendtest.NewRequest(t, "x")); got.Success || got.Error != nil {
			t.Errorf("%+v", got.Result)
		}
	})
}

// A long answer is kept whole; its step is cut, and was not written often.
func TestLongAnswer(t *testing.T) {
	t.Parallel()
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		const size = 20 << 20
		model.Script(fakemodel.Turn{TextBytes: size})
		writes := 0
		steps := transcript.NewWriter(func(transcript.Step) { writes++ }, nil)
		result, err := b.Execute(t.Context(), backendtest.NewRequest(t, "x"), steps)
		if err != nil || !result.Success || len(result.Output) != size {
			t.Fatalf("%v, %v, %d bytes", err, result.Error, len(result.Output))
		}
		text := steps.Steps()[0].Content[0].Text
		if writes > 10 || len(text) > transcript.MaxResult+100 || !strings.Contains(text, "[cut: ") {
			t.Errorf("%d writes, %d bytes in the step", writes, len(text))
		}
	})
}

func TestStepGrowsWhileTheModelWrites(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		// The key begins where a step is due to be brought up to date.
		text := strings.Repeat("a word ", 72) + testKey + strings.Repeat(" and more", 300)
		model.Script(fakemodel.Turn{Text: text, Drip: time.Microsecond})
		var seen []string
		steps := transcript.NewWriter(func(s transcript.Step) { seen = append(seen, s.Content[0].Text) }, transcript.Redactor([]string{testKey}))
		if result, err := b.Execute(t.Context(), backendtest.NewRequest(t, "x"), steps); err != nil || !result.Success {
			t.Fatal(err, result.Error)
		}
		if len(seen) < 3 || len(seen) > 12 {
			t.Errorf("%d writes of %d bytes", len(seen), len(text))
		}
		for n, s := range seen {
			if strings.Contains(s, "sk-") || n > 0 && !strings.HasPrefix(s, seen[n-1]) {
				t.Errorf("write %d is %q", n, s)
			}
		}
		if want := strings.ReplaceAll(text, testKey, "[redacted]"); seen[len(seen)-1] != want {
			t.Errorf("at the end the step has %q", seen[len(seen)-1])
		}
	})
}

func TestModelSecretsAreRedacted(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		model.Script(fakemodel.Turn{Thinking: "it is " + testKey, Text: "the key is " + testKey})
		got := backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "x"))
		got.WantSuccess(t, "the key is [redacted]")
		got.WantStep(t, transcript.Action, "the key is [redacted]")
		got.WantStep(t, transcript.Reasoning, "it is [redacted]")
	})
}
