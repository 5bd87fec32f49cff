package conformance

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/backend/model/anthropic"
	"piecework/internal/backend/model/openai"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

const testKey = "sk-secret-value"

// modelAPIs are the HTTP backends, pointed at a server.
func modelAPIs(t *testing.T, url string) map[string]backend.Backend {
	t.Helper()
	prices, err := backend.ReadPrices(nil)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]backend.Backend{
		"anthropic": &anthropic.Backend{Options: model.Options{Key: testKey, BaseURL: url, Model: "claude-sonnet-4-5", Prices: prices}},
		"chat":      &openai.Backend{Options: model.Options{Key: testKey, BaseURL: url + "/v1", Model: "gpt-4.1", Prices: prices}},
		"responses": &openai.Backend{Options: model.Options{Key: testKey, BaseURL: url + "/v1", Model: "gpt-4.1", Prices: prices}, Responses: true},
	}
}

// onEachAPI runs a test over every HTTP backend, each with a model of its own.
func onEachAPI(t *testing.T, test func(t *testing.T, b backend.Backend, model *fakemodel.Server)) {
	t.Helper()
	for name := range modelAPIs(t, "") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := fakemodel.Start(t)
			test(t, modelAPIs(t, model.URL)[name], model)
		})
	}
}

func TestModelAnswers(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		model.Script(fakemodel.Turn{Thinking: "let me see", Text: "schön", InputTokens: 1000, OutputTokens: 100, CachedTokens: 500})
		req := backendtest.NewRequest(t, "What is it?")
		req.SystemPrompt = "Be brief."
		got := backendtest.Execute(t.Context(), t, b, req)
		got.WantSuccess(t, "schön")
		got.WantStep(t, transcript.Reasoning, "let me see")
		got.WantStep(t, transcript.Action, "schön")
		if len(got.Steps) != 2 || got.Metadata.NumTurns != 1 || got.Metadata.SessionID != "" {
			t.Errorf("%d steps, metadata %+v", len(got.Steps), got.Metadata)
		}
		cost := 0.00465 // 1000 at $3, 500 at $0.30, 100 at $15
		if b.Name() == "openai" {
			cost = 0.00305 // 1000 at $2, 500 at $0.50, 100 at $8
		}
		got.WantUsage(t, work.Usage{InputTokens: 1000, OutputTokens: 100, CacheReadTokens: 500}, &cost, false)
		r := model.Requests()[0]
		if r.System != "Be brief." || r.Prompt() != "What is it?" || !r.Stream || len(model.Requests()) != 1 {
			t.Errorf("the model was asked %+v", r)
		}
		if key := r.Headers.Get("X-Api-Key") + r.Headers.Get("Authorization"); !strings.HasSuffix(key, testKey) {
			t.Errorf("the key sent is %q", key)
		}
	})
}

// What a CLI would take for a command, a file or a flag is plain text here.
func TestModelGetsThePromptAsItIs(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		for _, prompt := range []string{"/cost", "-p @/etc/hostname", strings.Repeat("größer ", 60_000)} {
			model.Forget()
			got := backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, prompt))
			got.WantSuccess(t, "ok")
			if r := model.Requests()[0]; r.Prompt() != prompt {
				t.Errorf("the model read %.50q…, %d bytes", r.Prompt(), len(r.Prompt()))
			}
		}
	})
}

var pngHead = []byte("\x89PNG\x0D\x0A\x1A\x0A and so on")

func TestModelGetsFiles(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		req := backendtest.NewRequest(t, "Describe them.")
		backendtest.Attach(t, &req, "a.png", pngHead)
		backendtest.Attach(t, &req, "b.pdf", []byte("%PDF-1.7 page"))
		backendtest.Attach(t, &req, "c.csv", []byte("größe;zahl\n1;2\n"))
		backendtest.Execute(t.Context(), t, b, req).WantSuccess(t, "ok")
		message := model.Requests()[0].Messages[0]
		var kinds []string
		for _, block := range message.Content {
			kinds = append(kinds, block.Type)
			if block.Type == "image" && !strings.Contains(string(block.Source), base64.StdEncoding.EncodeToString(pngHead)) {
				t.Errorf("the image is %s", block.Source)
			}
			if block.Type == "document" && !strings.Contains(string(block.Source), base64.StdEncoding.EncodeToString([]byte("%PDF-1.7 page"))) {
				t.Errorf("the document is %s", block.Source)
			}
		}
		if got := strings.Join(kinds, " "); got != "text image text document text text" {
			t.Errorf("blocks %s", got)
		}
		for _, want := range []string{`File "a.png":`, `File "b.pdf":`, "<file name=\"c.csv\">\ngröße;zahl\n1;2\n\n</file>", "Describe them."} {
			if !strings.Contains(message.Text(), want) {
				t.Errorf("the text lacks %q: %s", want, message.Text())
			}
		}
	})
}

func TestModelIsNotCalledForWhatCannotBeSent(t *testing.T) {
	onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
		for name, data := range map[string][]byte{
			"a.zip": []byte("PK\x03\x04\x00\x00"), "b.bin": {0xff, 0xfe, 0x00, 0x01}, "huge.txt": bytes.Repeat([]byte("x"), 40<<20),
		} {
			req := backendtest.NewRequest(t, "Describe it.")
			backendtest.Attach(t, &req, name, data)
			backendtest.Execute(t.Context(), t, b, req).WantFailure(t, work.ClassInvalidRequest, name, b.Name())
		}
		req := backendtest.NewRequest(t, "x")
		req.Files = []backend.File{{Name: "gone.txt", Path: "/nonexistent/gone.txt"}}
		backendtest.Execute(t.Context(), t, b, req).WantFailure(t, work.ClassInvalidRequest, "gone.txt")
		if n := len(model.Requests()); n != 0 {
			t.Errorf("the model was called %d times", n)
		}
	})
}

func TestAnthropicCacheMarks(t *testing.T) {
	model := fakemodel.Start(t)
	req := backendtest.NewRequest(t, "Describe it.")
	req.SystemPrompt = "Be brief."
	backendtest.Attach(t, &req, "a.txt", []byte("one"))
	backendtest.Attach(t, &req, "b.png", pngHead)
	backendtest.Execute(t.Context(), t, modelAPIs(t, model.URL)["anthropic"], req).WantSuccess(t, "ok")
	var body struct {
		System   []map[string]any
		Messages []struct{ Content []map[string]any }
	}
	if err := json.Unmarshal(model.Requests()[0].Body, &body); err != nil {
		t.Fatal(err)
	}
	var marked []bool
	for _, block := range append(body.System, body.Messages[0].Content...) {
		marked = append(marked, block["cache_control"] != nil)
	}
	if got := fmt.Sprint(marked); got != "[true false false true false]" {
		t.Errorf("marks %s, want them on the system prompt and on the last file", got)
	}
}

func TestModelFailures(t *testing.T) {
	type turn = fakemodel.Turn
	for _, test := range []struct {
		name  string
		turn  turn
		class work.Class
		words string
	}{
		{"400", turn{Status: 400, ErrorMessage: "temperature: no"}, work.ClassInvalidRequest, "temperature: no"},
		{"400 too long", turn{Status: 400, ErrorMessage: "prompt is too long: 210000 tokens > 200000 maximum"}, work.ClassContextTooLong, "210000"},
		{"400 context", turn{Status: 400, ErrorType: "context_length_exceeded"}, work.ClassContextTooLong, "400"},
		{"400 other context", turn{Status: 400, ErrorMessage: "This model's maximum context length is 4096 tokens."}, work.ClassContextTooLong, "4096"},
		{"400 credit", turn{Status: 400, ErrorMessage: "Your credit balance is too low to access the API."}, work.ClassBilling, "credit"},
		{"401", turn{Status: 401, ErrorMessage: "invalid x-api-key " + testKey}, work.ClassAuth, "401"},
		{"402", turn{Status: 402}, work.ClassBilling, "402"},
		{"403", turn{Status: 403}, work.ClassAuth, "403"},
		{"404", turn{Status: 404, ErrorMessage: "model: nosuch"}, work.ClassInvalidRequest, "nosuch"},
		{"408", turn{Status: 408, ErrorType: "timeout"}, work.ClassInfra, "408"},
		{"409", turn{Status: 409, ErrorType: "conflict"}, work.ClassInfra, "409"},
		{"413", turn{Status: 413, ErrorType: "too_large"}, work.ClassContextTooLong, "413"},
		{"429", turn{Status: 429}, work.ClassRateLimit, "429"},
		{"429 quota", turn{Status: 429, ErrorType: "insufficient_quota"}, work.ClassBilling, "insufficient_quota"},
		{"500", turn{Status: 500, ErrorType: "x", ErrorMessage: "prompt is too long, says the proxy"}, work.ClassInfra, "500"},
		{"500 bare", turn{Status: 500}, work.ClassInfra, "500"},
		{"502", turn{Status: 502, ErrorType: "x"}, work.ClassInfra, "502"},
		{"503 overloaded", turn{Status: 503, ErrorType: "overloaded_error"}, work.ClassRateLimit, "503"},
		{"529", turn{Status: 529, ErrorType: "overloaded_error"}, work.ClassRateLimit, "529"},
		{"529 bare", turn{Status: 529, ErrorType: "x"}, work.ClassRateLimit, "529"},
		{"cut", turn{Text: "half of it", Cut: true}, work.ClassInfra, "stream ended"},
		{"error in the stream", turn{Text: "half of it", ErrorType: "overloaded_error"}, work.ClassRateLimit, "overloaded"},
		{"other error in the stream", turn{Text: "half of it", ErrorType: "api_error"}, work.ClassInfra, "api_error"},
		{"refusal", turn{Text: "half of it", StopReason: "refusal"}, work.ClassRefusal, "declined"},
		{"max tokens", turn{Text: "half of it", StopReason: "max_tokens", OutputTokens: 77}, work.ClassInvalidRequest, "77 output tokens"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
				model.Script(test.turn)
				got := backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "x"))
				got.WantFailure(t, test.class, test.words, "")
				if strings.Contains(got.Error.Message, testKey) {
					t.Errorf("the key is in %q", got.Error.Message)
				}
				if test.turn.Status > 0 && !strings.Contains(got.Error.Message, "(request req_fake") {
					t.Errorf("no request id in %q", got.Error.Message)
				}
				if n := len(model.Requests()); n != 1 {
					t.Errorf("%d calls: the SDK tried again by itself", n)
				}
				if test.turn.Text != "" && (got.Output == "" || !strings.HasPrefix(test.turn.Text, got.Output)) {
					t.Errorf("the partial output is %q", got.Output)
				}
				if test.turn.Status > 0 && (got.CostIncomplete || got.Metadata.TotalCostUSD == nil || *got.Metadata.TotalCostUSD != 0) {
					t.Error("a refused call is said to cost something")
				}
			})
		})
	}
}

func TestLimitsTellWhenTheyEnd(t *testing.T) {
	in := func(s int) string { return time.Now().Add(time.Duration(s) * time.Second).UTC().Format(time.RFC3339) }
	for _, test := range []struct {
		name    string
		headers map[string]string
		seconds int
	}{
		{"retry-after", map[string]string{"Retry-After": "30", "x-ratelimit-reset-tokens": "5m"}, 30},
		{"retry-after date", map[string]string{"Retry-After": time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)}, 90},
		{"anthropic", map[string]string{
			"anthropic-ratelimit-requests-remaining": "7", "anthropic-ratelimit-requests-reset": in(100),
			"anthropic-ratelimit-output-tokens-remaining": "0", "anthropic-ratelimit-output-tokens-reset": in(40),
		}, 40},
		{"openai", map[string]string{
			"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m20s", "x-ratelimit-reset-tokens": "6m0s",
		}, 80},
		{"nothing used up", map[string]string{"x-ratelimit-reset-requests": "20ms", "x-ratelimit-reset-tokens": "50s"}, 50},
		{"nonsense", map[string]string{"Retry-After": "soon", "x-ratelimit-reset-tokens": "-5"}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			onEachAPI(t, func(t *testing.T, b backend.Backend, model *fakemodel.Server) {
				model.Script(fakemodel.Turn{Status: 429, Headers: test.headers})
				got := backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "x"))
				got.WantFailure(t, work.ClassRateLimit)
				if test.seconds == 0 {
					if !got.Error.ResetAt.IsZero() {
						t.Errorf("reset at %v", got.Error.ResetAt)
					}
					return
				}
				if left := time.Until(got.Error.ResetAt).Seconds(); left > float64(test.seconds) || left < float64(test.seconds)-20 {
					t.Errorf("the limit ends in %.1f s, want %d", left, test.seconds)
				}
			})
		})
	}
}

// Whatever a server sends instead of an answer, the run ends and says so.
func TestServersThatMisbehave(t *testing.T) {
	const sse = "text/event-stream"
	for _, test := range []struct {
		name, kind, body string
		status           int
		class            work.Class
		words            string
	}{
		{"malformed event", sse, "data: {\"type\":\n\n", 200, work.ClassInfra, "read an event"},
		{"empty stream", sse, "", 200, work.ClassInfra, "stream ended"},
		{"only a mark", sse, "data: [DONE]\n\n", 200, work.ClassInfra, ""},
		{"HTML", "text/html", "<h1>Welcome to the hotel</h1>", 200, work.ClassInfra, "Welcome to the hotel"},
		{"HTML error", "text/html", "<h1>Bad gateway</h1>", 502, work.ClassInfra, "502"},
		{"empty error", "application/json", "", 500, work.ClassInfra, "500 Internal Server Error"},
		{"error as text", "application/json", `{"error":"model 'x' not found"}`, 404, work.ClassInvalidRequest, "model 'x' not found"},
		{"error with a number", "application/json", `{"error":{"message":"no credits","code":402}}`, 402, work.ClassBilling, "no credits"},
		{"error as success", "application/json", `{"error":{"message":"slow","type":"rate_limit_error"}}`, 200, work.ClassRateLimit, "slow"},
		{"redirect", "text/html", "", 307, work.ClassInfra, "redirects are not followed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", test.kind)
				w.Header().Set("Location", "http://elsewhere.invalid/")
				w.WriteHeader(test.status)
				_, _ = w.Write([]byte(test.body))
			}))
			t.Cleanup(server.Close)
			for name, b := range modelAPIs(t, server.URL) {
				t.Run(name, func(t *testing.T) {
					backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "x")).WantFailure(t, test.class, test.words)
				})
			}
		})
	}
}

func TestServerIsAway(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	for _, b := range modelAPIs(t, server.URL) {
		got := backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "x"))
		got.WantFailure(t, work.ClassInfra, b.Name(), "refused")
		if got.CostIncomplete || got.Metadata.TotalCostUSD == nil || *got.Metadata.TotalCostUSD != 0 {
			t.Error("a call that was not made is said to cost something")
		}
		if err := b.Available(t.Context()); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Error(err)
		}
	}
}
