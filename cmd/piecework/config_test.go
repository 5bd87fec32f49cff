package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend/cli/claude"
	"piecework/internal/backend/cli/codex"
	"piecework/internal/backend/cli/cursor"
	"piecework/internal/backend/cli/gemini"
	"piecework/internal/backend/cli/opencode"
	"piecework/internal/backend/model/anthropic"
	"piecework/internal/backend/model/openai"
	"piecework/internal/process"
)

func TestPrintedConfigurationHidesSecrets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	logConfig(log, Base{DatabaseURL: "postgres://me:hunter2@db/x", RedisURL: "redis://:hunter2@r:6379/0"},
		Crew{Concurrency: 3, Agents: Agents{ClaudePath: "/bin/claude"}})
	if text := out.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "db/x") ||
		!strings.Contains(text, "PIECEWORK_CONCURRENCY=3") || !strings.Contains(text, "/bin/claude") {
		t.Error(text)
	}
	for _, url := range []string{
		"postgres://db/x?password=hunter2", "redis-sentinel://u:hunter2@a:1,b:2/0?master=m&sentinel_password=hunter2",
		"rediss-cluster://u:hunter2@a:1,b:2", "redis-cluster://u:hunter2@[::1]:1,[::2]:2", "redis://u:12/hunter2@a:1", "redis://u:12?hunter2@a:1",
	} {
		if got := hidden(url); strings.Contains(got, "hunter2") {
			t.Error(got)
		}
	}
	if got := hidden("redis-sentinel://u:x@a:1,b:2/0?master=m"); !strings.Contains(got, "@a:1,b:2/0?master=m") {
		t.Error(got)
	}
	if hidden("host=db password=hunter2") != "(set)" {
		t.Error("a keyword string is printed as it is")
	}
}

func TestAgentsSeeOnlyWhatIsAllowed(t *testing.T) {
	t.Parallel()
	given := map[string]string{
		"PATH": "/bin", "ANTHROPIC_API_KEY": "sk-1", "OPENAI_API_KEY": "sk-2", "CURSOR_API_KEY": "sk-3", "GEMINI_API_KEY": "sk-4",
		"AWS_SECRET": "no", "MY_TOKEN": "yes-please", "CLAUDECODE": "1",
	}
	list, secrets, err := Agents{PassEnv: " MY_TOKEN ,", CodexSandbox: "read-only", OpenCodeConfig: "oc.json",
		GeminiApprovalMode: "plan"}.backends(func(name string) string { return given[name] }, process.Supervisor{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range list {
		var env []string
		want := map[string]string{"claude": "ANTHROPIC_API_KEY=sk-1", "codex": "OPENAI_API_KEY=sk-2", "cursor": "CURSOR_API_KEY=sk-3",
			"opencode": "ANTHROPIC_API_KEY=sk-1 OPENAI_API_KEY=sk-2 GEMINI_API_KEY=sk-4", "gemini": "GEMINI_API_KEY=sk-4"}[b.Name()]
		switch b := b.(type) {
		case *claude.Backend:
			env = b.Env
		case *codex.Backend:
			env = b.Env
			if b.Sandbox != "read-only" {
				t.Errorf("sandbox %q", b.Sandbox)
			}
		case *cursor.Backend:
			env = b.Env
		case *opencode.Backend:
			env = b.Env
			if !filepath.IsAbs(b.Config) {
				t.Errorf("opencode's configuration %q", b.Config)
			}
		case *gemini.Backend:
			env = b.Env
			if b.ApprovalMode != "plan" {
				t.Errorf("approval mode %q", b.ApprovalMode)
			}
		default:
			continue
		}
		if got := strings.Join(env, " "); got != "PATH=/bin "+want+" MY_TOKEN=yes-please" {
			t.Errorf("%s sees %s", b.Name(), got)
		}
	}
	slices.Sort(secrets)
	if got := strings.Join(slices.Compact(secrets), " "); got != "sk-1 sk-2 sk-3 sk-4 yes-please" {
		t.Error(got)
	}
}

func TestModelsAreWired(t *testing.T) {
	t.Parallel()
	given := map[string]string{
		"ANTHROPIC_API_KEY": "sk-1", "ANTHROPIC_BASE_URL": "http://me:hunter2@a", "OPENAI_API_KEY": "sk-2", "OPENAI_BASE_URL": "http://o/v1",
	}
	table := filepath.Join(t.TempDir(), "prices.json")
	if err := os.WriteFile(table, []byte(`[{"model":"mine","input":1}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	agents := Agents{Models: Models{AnthropicModel: "a", AnthropicMaxTokens: 5, OpenAIModel: "o", OpenAIAPI: "responses",
		Pricing: Pricing{Prices: table}}}
	list, secrets, err := agents.backends(func(name string) string { return given[name] }, process.Supervisor{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range list {
		names = append(names, b.Name())
		switch b := b.(type) {
		case *anthropic.Backend:
			if b.Key != "sk-1" || b.BaseURL != "http://me:hunter2@a" || b.Model != "a" || b.MaxTokens != 5 || b.Prices == nil || b.Proxy == nil {
				t.Errorf("%+v", b)
			}
		case *openai.Backend:
			if b.Key != "sk-2" || b.BaseURL != "http://o/v1" || b.Model != "o" || !b.Responses || b.Prices == nil || b.Proxy == nil {
				t.Errorf("%+v", b)
			}
		}
	}
	if got := strings.Join(names, " "); got != "mock claude codex cursor opencode gemini anthropic openai" {
		t.Error(got)
	}
	for _, secret := range []string{"sk-1", "sk-2", "hunter2"} {
		if !slices.Contains(secrets, secret) {
			t.Errorf("%s is not known as a secret", secret)
		}
	}
	for text, known := range map[string]bool{"": false, "15,75": true, " 0 , 1.5 ": true} {
		prices, err := Pricing{UnknownPrice: text}.prices()
		if err != nil || prices.Unpriced("anthropic", "nobody-knows") == known {
			t.Errorf("--unknown-price %q: %v", text, err)
		}
	}
	for _, text := range []string{"15", "15,", "a,b", "-1,2", "1,2,3", "1,NaN", "1,Inf"} {
		if _, err := (Pricing{UnknownPrice: text}).prices(); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--unknown-price") {
			t.Errorf("--unknown-price %q: %v", text, err)
		}
	}
	agents.Prices = "/nonexistent/prices.json"
	if _, _, err := agents.backends(func(string) string { return "" }, process.Supervisor{}); exitCode(err) != exitUsage ||
		!strings.Contains(err.Error(), "--prices") {
		t.Error(err)
	}
}

func TestSecretsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"postgres://me:hunter2@db/x", "postgres://db/x?user=me&password=hunter2", "host=db password=hunter2 user=me", "host=db password = 'hunter2'"} {
		b := Base{DatabaseURL: text, RedisURL: "redis://r:6379/0"}
		if got := b.secrets(); !slices.Equal(got, []string{"hunter2"}) {
			t.Errorf("%s: %v", text, got)
		}
	}
	b := Base{RedisURL: "redis-sentinel://u:hunter2@a:1,b:2/0?master=m&sentinel_password=hunter3"}
	if got := b.secrets(); !slices.Equal(got, []string{"hunter2", "hunter3"}) {
		t.Error(got)
	}
}

func TestQueues(t *testing.T) {
	t.Parallel()
	crew := Crew{Concurrency: 1, Lease: 30 * time.Second, Heartbeat: 5 * time.Second, Probe: time.Second, Pack: time.Second, Queues: "default=3, slow"}
	queues, err := crew.check()
	if err != nil || queues["default"] != 3 || queues["slow"] != 1 || len(queues) != 2 {
		t.Error(queues, err)
	}
	for _, bad := range []string{"", "a=0", "a=x", "a=101", "A", "a b"} {
		if _, err := parseQueues(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestDoorHosts(t *testing.T) {
	t.Parallel()
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	d := Door{Listen: "0.0.0.0:7070", NoAuth: true, PublicURL: "https://units.example:8443/x", HostNames: " a.example ,,b"}
	want := []string{"0.0.0.0", "units.example", own, "a.example", "b"}
	if got := d.hosts(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (&Door{Listen: ":7070"}).hosts(); !slices.Equal(got, []string{own}) {
		t.Errorf("%q", got)
	}
}
