package api

import (
	"strings"
	"testing"
	"time"

	"piecework/internal/work"
)

// The overview shows which models do not begin just now, as each worker process
// has met it with its own credential. What is over is not shown.
func TestOverviewShowsShutModels(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	soon, later, last, past := time.Now().Add(time.Minute).UTC(), time.Now().Add(time.Hour).UTC(), time.Now().Add(2*time.Hour).UTC(),
		time.Now().Add(-time.Minute).UTC()
	f.crew(work.Offer{Name: "claude", Available: true, Limits: []work.ModelLimit{
		{Model: "opus", Message: "429: <first>", Until: &last}, {Model: "old", Message: "429", Until: &past}, {Model: "slow", PerSecond: 2}}},
		work.Offer{Name: "openai", Available: true, Limits: []work.ModelLimit{{Message: "429: second", Until: &soon}}},
		work.Offer{Name: "mock", Available: true, Paused: &work.Pause{Class: work.ClassAuth, Message: "401: no such key"}},
		work.Offer{Name: "codex", Available: true, Paused: &work.Pause{Class: work.ClassRateLimit, Message: "429: account", Until: &later}})
	f.crew(work.Offer{Name: "claude", Available: true, Limits: []work.ModelLimit{{Model: "opus", Message: "429: third", Until: &soon}}},
		work.Offer{Name: "openai", Detail: "has no key"}, work.Offer{Name: "mock", Available: true}, work.Offer{Name: "codex", Available: true})
	page := f.get("/overview").is(200).has(
		"opus until ", "in 2 of 2 worker processes: 429: ", "the default model until", "in 1 of 1 worker processes: 429: second",
		"all models in 1 of 2 worker processes: 401: no such key", "all models until", "in 1 of 2 worker processes: 429: account")
	text := string(page.body)
	if n := strings.Count(text, "rate limit</span>"); n != 3 {
		t.Errorf("%d rate limits are shown, want 3: %s", n, text)
	}
	if !strings.Contains(text, last.Format("15:04:05")) || strings.Contains(text, "slow") || strings.Contains(text, "<first>") {
		t.Error(text)
	}
}
