package handlers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend/model"
	"piecework/internal/backend/model/openai"
	"piecework/internal/work"
	"piecework/store"
)

// limitedModel is a model server that answers so many requests a second and
// refuses the rest for three.
type limitedModel struct {
	allowed int

	mu      sync.Mutex
	second  time.Time
	asked   int         // in this second
	refused time.Time   // when it first refused
	served  int         // in all
	later   map[int]int // requests by second, from when the first refused may come again
}

func (m *limitedModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		return // a look whether it is there
	}
	if m.refuses(time.Now()) {
		w.Header().Set("Retry-After", "3")
		http.Error(w, `{"error":{"message":"too many requests","code":"rate_limit_exceeded"}}`, http.StatusTooManyRequests)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
}

func (m *limitedModel) refuses(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.second) >= time.Second {
		m.second, m.asked = now, 0
	}
	if since := now.Sub(m.refused); !m.refused.IsZero() && since >= 3*time.Second {
		m.later[int(since/time.Second)]++
	}
	if m.asked++; m.asked > m.allowed {
		if m.refused.IsZero() {
			m.refused = now
		}
		return true
	}
	m.served++
	return false
}

// A wave of units runs into a rate limit. None uses up a retry, all succeed,
// the limit is not met a second time, and another backend does not notice.
func TestWaveAgainstARateLimit(t *testing.T) {
	t.Parallel()
	const units, allowed = 200, 25
	limited := &limitedModel{allowed: allowed, later: map[int]int{}}
	server := httptest.NewServer(limited)
	defer server.Close()
	h := newFixture(t)
	h.start(func(o *Options) {
		o.Backends, o.Slots, o.Lease = append(o.Backends, &openai.Backend{Options: model.Options{BaseURL: server.URL, Model: "m"}}),
			units, time.Minute
	})
	none := 0
	wave := make([]uuid.UUID, units)
	for i := range wave {
		wave[i] = h.submit(func(s *work.Spec) { s.Backend, s.MaxRetries = "openai", &none })
	}
	for { // units of another backend, one after the other, until the wave is over
		id := h.submit(nil)
		h.begun().end <- succeed("")
		h.becomes(id, work.Succeeded)
		left, _, err := h.store.Units.List(t.Context(), store.UnitFilter{Tenant: work.DefaultTenant, Backend: "openai",
			States: []work.State{work.Queued, work.Running}, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			break
		}
	}
	waits := 0
	for _, id := range wave {
		u := h.becomes(id, work.Succeeded)
		if waits += u.Waits; u.Failures != 0 {
			t.Errorf("unit %s: %d failures", id, u.Failures)
		}
	}
	if waits == 0 || limited.served != units {
		t.Errorf("%d waits, %d requests served", waits, limited.served)
	}
	for second, asked := range limited.later { // in two, for what began in one may arrive in the next
		if asked += limited.later[second-1]; asked > 2*allowed {
			t.Errorf("%d requests in seconds %d and %d after the limit was met", asked, second-1, second)
		}
	}
	t.Logf("%d waits; requests by second after the first refusal: %v", waits, limited.later)
}
