package conformance

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/backend/model/anthropic"
	"piecework/internal/backend/model/openai"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/work"
)

func TestModelAvailable(t *testing.T) {
	for status, complaint := range map[int]string{200: "", 404: "", 500: "", 401: "_API_KEY", 403: "refuses the key"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != "/v1/models" {
				t.Errorf("asked %s %s", r.Method, r.URL)
			}
			w.WriteHeader(status)
		}))
		for name, b := range modelAPIs(t, server.URL) {
			err := b.Available(t.Context())
			if (err == nil) != (complaint == "") || err != nil && !strings.Contains(err.Error(), complaint) {
				t.Errorf("%s with status %d: %v", name, status, err)
			}
		}
		server.Close()
	}
}

// The environment of the process is none of the backends' business.
func TestModelNeedsAKey(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", testKey)
	t.Setenv("OPENAI_API_KEY", testKey)
	for _, b := range []backend.Backend{&anthropic.Backend{}, &openai.Backend{}} {
		if err := b.Available(t.Context()); err == nil || !strings.Contains(err.Error(), "_API_KEY") {
			t.Errorf("%s: %v", b.Name(), err)
		}
		backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "x")).WantFailure(t, work.ClassAuth, "_API_KEY")
	}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("X-Api-Key") + r.Header.Get("Authorization"); key != "" {
			t.Errorf("a key of the environment was sent: %q", key)
		}
	}))
	defer server.Close()
	for _, b := range []backend.Backend{&anthropic.Backend{Options: model.Options{BaseURL: server.URL}}, &openai.Backend{Options: model.Options{BaseURL: server.URL}}} {
		if err := b.Available(t.Context()); err != nil {
			t.Error(err)
		}
		backendtest.Execute(t.Context(), t, b, backendtest.NewRequest(t, "x"))
	}
}
