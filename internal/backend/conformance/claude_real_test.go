package conformance

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/backend/cli/claude"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

const testModel = "claude-sonnet-4-5"

// real returns the installed client, talking to a model of our own.
func real(t *testing.T) (*claude.Backend, *fakemodel.Server) {
	t.Helper()
	path := fakecli.Real(t, "claude")
	model := fakemodel.Start(t)
	return &claude.Backend{AllowedTools: []string{"Bash"}, Options: cli.Options{Path: path, Supervisor: backendtest.Supervisor, Env: []string{
		"ANTHROPIC_API_KEY=sk-secret-value", "ANTHROPIC_BASE_URL=" + model.URL, "CLAUDE_CODE_MAX_RETRIES=1",
	}}}, model
}

func realRequest(t *testing.T, prompt string) backend.Request {
	req := backendtest.NewRequest(t, prompt)
	req.Model = testModel
	return req
}

func bash(command string) fakemodel.Call {
	return fakemodel.Call{Name: "Bash", Input: map[string]string{"command": command}}
}

// prompted returns the user's message as it reached the model.
func prompted(t *testing.T, model *fakemodel.Server) fakemodel.Request {
	t.Helper()
	for _, r := range model.Requests() {
		if !r.Side {
			return r
		}
	}
	t.Fatal("no request reached the model")
	return fakemodel.Request{}
}

func TestRealClaude(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		turns  []fakemodel.Turn
		change func(*backend.Request)
		class  work.Class // "": success with the output "done"
		words  string
		calls  int
	}{
		{name: "plain", turns: []fakemodel.Turn{{Text: "done"}}},
		{name: "tool call", calls: 1, turns: []fakemodel.Turn{
			{Thinking: "hm", Text: "I will", Calls: []fakemodel.Call{bash("echo from-the-tool")}}, {Text: "done"}}},
		{name: "max turns", calls: 2, class: work.ClassMaxTurns, words: "max_turns (2)", turns: []fakemodel.Turn{
			{Calls: []fakemodel.Call{bash("echo 1")}}, {Calls: []fakemodel.Call{bash("echo 2")}},
			{Calls: []fakemodel.Call{bash("echo 3")}}, {Text: "done"}},
			change: func(r *backend.Request) { r.MaxTurns = 2 }},
		{name: "max cost", class: work.ClassMaxCost, words: "$0.0001", calls: 1,
			turns:  []fakemodel.Turn{{Calls: []fakemodel.Call{bash("echo 1")}}, {Text: "done"}},
			change: func(r *backend.Request) { r.MaxCostUSD = new(0.0001) }},
		{name: "429 then fine", turns: []fakemodel.Turn{
			{Status: 429, Times: 1, Headers: map[string]string{"retry-after": "1"}}, {Text: "done"}}},
		{name: "429", class: work.ClassRateLimit, turns: []fakemodel.Turn{
			{Status: 429, Headers: map[string]string{"retry-after": "600"}}}},
		{name: "cut stream", class: work.ClassInfra, turns: []fakemodel.Turn{{Text: "some words", Cut: true}}},
		{name: "400 kB prompt", turns: []fakemodel.Turn{{Text: "done"}},
			change: func(r *backend.Request) { r.Prompt = strings.Repeat("word ", 80_000) }},
		{name: "200 kB system prompt", turns: []fakemodel.Turn{{Text: "done"}},
			change: func(r *backend.Request) { r.SystemPrompt = strings.Repeat("rule ", 40_000) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, model := real(t)
			model.Script(test.turns...)
			req := realRequest(t, "say it")
			if test.change != nil {
				test.change(&req)
			}
			got := backendtest.Execute(t.Context(), t, c, req)
			if test.class != "" {
				got.WantFailure(t, test.class, test.words)
			} else {
				got.WantSuccess(t, "done")
				if got.Metadata.TotalCostUSD == nil || *got.Metadata.TotalCostUSD <= 0 || got.Metadata.DurationMS <= 0 || got.Metadata.DurationAPIMS <= 0 {
					t.Errorf("metadata %+v", got.Metadata)
				}
			}
			if got.Metadata.SessionID != req.SessionID || got.Metadata.Model != testModel {
				t.Errorf("session %s model %s", got.Metadata.SessionID, got.Metadata.Model)
			}
			results := got.Texts(transcript.ToolResult)
			if len(results) != test.calls {
				t.Errorf("%d tool results, want %d: %q", len(results), test.calls, results)
			}
			if r := prompted(t, model); !strings.Contains(r.Prompt(), req.Prompt) || !strings.Contains(r.System, req.SystemPrompt) {
				t.Errorf("the model got the prompt %.100q, the system prompt of %d bytes", r.Prompt(), len(r.System))
			}
			for _, s := range got.Steps {
				if encoded, _ := json.Marshal(s); strings.Contains(string(encoded), "sk-secret") {
					t.Errorf("the key is in the transcript: %s", encoded)
				}
			}
		})
	}
}

func TestRealClaudeParallelCallsAreOneAction(t *testing.T) {
	t.Parallel()
	c, model := real(t)
	model.Script(fakemodel.Turn{Thinking: "hm", Text: "both", Calls: []fakemodel.Call{
		{ID: "toolu_slow", Name: "Bash", Input: map[string]string{"command": "sleep 0.3; echo slow"}},
		{ID: "toolu_fast", Name: "Bash", Input: map[string]string{"command": "echo fast"}},
	}}, fakemodel.Turn{Text: "done"})
	got := backendtest.Execute(t.Context(), t, c, realRequest(t, "go"))
	actions := slices.DeleteFunc(slices.Clone(got.Steps), func(s transcript.Step) bool { return s.Type != transcript.Action })
	if len(actions) != 2 || len(actions[0].Content) != 3 {
		t.Fatalf("actions %+v", actions)
	}
	for _, s := range got.Steps {
		if s.Type == transcript.ToolResult && (s.Name != "Bash" || s.Text != strings.TrimPrefix(s.CallID, "toolu_")) {
			t.Errorf("the result of %s is %q", s.CallID, s.Text)
		}
	}
}

func TestRealClaudeTimeoutInsideATool(t *testing.T) {
	t.Parallel()
	c, model := real(t)
	model.Script(fakemodel.Turn{Text: "I wait", Calls: []fakemodel.Call{bash(inTool)}}, fakemodel.Turn{Text: "done"})
	got := backendtest.Run{Result: cutInTool(t, c, realRequest(t, "wait"), work.ErrTimeout)}
	got.WantFailure(t, work.ClassTimeout)
	// Interrupted, it does not always find the time for its result.
	if got.Output != "I wait" || (got.Metadata.TotalCostUSD == nil) != got.CostIncomplete {
		t.Errorf("output %q, cost %v, incomplete %v", got.Output, got.Metadata.TotalCostUSD, got.CostIncomplete)
	}
}

func TestRealClaude20MBLine(t *testing.T) {
	t.Parallel()
	c, model := real(t)
	model.Script(fakemodel.Turn{TextBytes: 20_000_000})
	got := backendtest.Execute(t.Context(), t, c, realRequest(t, "a lot"))
	if !got.Success || len(got.Output) != 20_000_000 {
		t.Errorf("success %v, %d bytes of output, error %v", got.Success, len(got.Output), got.Error)
	}
}

// Text of a prompt is never a command of the client's, nor the name of a file
// for it to read.
func TestRealClaudePromptIsInert(t *testing.T) {
	t.Parallel()
	host := filepath.Join(t.TempDir(), "secret.txt")
	if err := os.WriteFile(host, []byte("the-hidden-words"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, prompt := range []string{"/cost", "/usr/bin/env", "@/etc/hostname", "look at @" + host + " now", "!ls", "# remember"} {
		t.Run(prompt, func(t *testing.T) {
			t.Parallel()
			c, model := real(t)
			model.Script(fakemodel.Turn{Text: "done"})
			got := backendtest.Execute(t.Context(), t, c, realRequest(t, prompt))
			got.WantSuccess(t, "done")
			if r := prompted(t, model); strings.TrimSpace(r.Prompt()) != prompt || strings.Contains(string(r.Body), "the-hidden-words") {
				t.Errorf("the model got %q", r.Prompt())
			}
		})
	}
}

func TestRealClaudeFiles(t *testing.T) {
	t.Parallel()
	c, model := real(t)
	req := realRequest(t, "compare them")
	png, _ := base64.StdEncoding.DecodeString(backendtest.OnePixel)
	backendtest.Attach(t, &req, "dot.png", png)
	backendtest.Attach(t, &req, "paper.pdf", []byte("%PDF-1.4\n1 0 obj\n<< >>\nendobj\n%%EOF\n"))
	backendtest.Attach(t, &req, "notes.txt", []byte("/cost @/etc/hostname grüße"))
	backendtest.Attach(t, &req, "long.txt", []byte(strings.Repeat("a line of a long file\n", 20_000)))
	copied := filepath.Join(req.Home, "files", "long.txt")
	model.Script(fakemodel.Turn{Calls: []fakemodel.Call{{Name: "Read", Input: map[string]any{"file_path": copied, "limit": 3}}}},
		fakemodel.Turn{Text: "done"})
	got := backendtest.Execute(t.Context(), t, c, req)
	got.WantSuccess(t, "done")
	got.WantStep(t, transcript.ToolResult, "a line of a long file")
	r := prompted(t, model)
	kinds := map[string]string{}
	for _, b := range r.Messages[0].Content {
		if len(b.Source) > 0 {
			kinds[b.Type] = string(b.Source)
		}
	}
	if !strings.Contains(kinds["image"], backendtest.OnePixel) || !strings.Contains(kinds["document"], "application/pdf") {
		t.Errorf("blocks with data: %v", kinds)
	}
	for _, part := range []string{"compare them", "/cost @/etc/hostname grüße", copied} {
		if !strings.Contains(r.Prompt(), part) {
			t.Errorf("the model did not get %q: %.500q", part, r.Prompt())
		}
	}
}

func TestRealClaudeResume(t *testing.T) {
	t.Parallel()
	c, model := real(t)
	model.Script(fakemodel.Turn{Text: "done"})
	first := realRequest(t, "one")
	got := backendtest.Execute(t.Context(), t, c, first)
	got.WantSuccess(t, "done")
	cost := *got.Metadata.TotalCostUSD

	second := first
	second.Prompt, second.Resume, second.SessionCostUSD = "two", true, cost
	got = backendtest.Execute(t.Context(), t, c, second)
	got.WantSuccess(t, "done")
	if got.Metadata.SessionID != first.SessionID || got.Metadata.TotalCostUSD == nil || *got.Metadata.TotalCostUSD != cost {
		t.Errorf("session %s, cost %v after %v", got.Metadata.SessionID, got.Metadata.TotalCostUSD, cost)
	}
	last := model.Requests()[len(model.Requests())-1]
	if !strings.Contains(string(last.Body), "one") || len(last.Messages) < 3 {
		t.Errorf("the resumed session has %d messages", len(last.Messages))
	}

	t.Run("id in use", func(t *testing.T) {
		again := first
		again.Prompt = "three"
		got := backendtest.Execute(t.Context(), t, c, again)
		got.WantSuccess(t, "done")
		got.WantStep(t, transcript.SystemText, "resuming it")
	})
	t.Run("unknown id", func(t *testing.T) {
		lost := realRequest(t, "four")
		lost.Resume, lost.SessionCostUSD = true, 5
		got := backendtest.Execute(t.Context(), t, c, lost)
		got.WantSuccess(t, "done")
		got.WantStep(t, transcript.SystemText, "from the beginning")
		if got.Metadata.SessionID != lost.SessionID || got.Metadata.TotalCostUSD == nil || *got.Metadata.TotalCostUSD <= 0 {
			t.Errorf("metadata %+v", got.Metadata)
		}
	})
}

func TestRealClaudeOutputSchema(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)
	answer := func(field string) fakemodel.Turn {
		return fakemodel.Turn{Calls: []fakemodel.Call{{Name: "StructuredOutput", Input: map[string]string{field: "bob"}}}}
	}
	for _, test := range []struct {
		name  string
		turn  fakemodel.Turn
		class work.Class
	}{
		{"fits", answer("name"), ""},
		{"never fits", answer("nom"), work.ClassSchemaInvalid},
		{"text", fakemodel.Turn{Text: "bob"}, work.ClassSchemaInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, model := real(t)
			model.Script(test.turn)
			req := realRequest(t, "name?")
			req.OutputSchema = schema
			got := backendtest.Execute(t.Context(), t, c, req)
			if test.class == "" {
				got.WantSuccess(t, `{"name":"bob"}`)
				return
			}
			got.WantFailure(t, test.class)
		})
	}
}

func TestRealClaudeBadStart(t *testing.T) {
	t.Parallel()
	c, _ := real(t)
	c.PermissionMode = "nonsense"
	backendtest.Execute(t.Context(), t, c, realRequest(t, "hi")).WantFailure(t, work.ClassInvalidRequest, "permission-mode")

	c, _ = real(t)
	c.Env = slices.DeleteFunc(c.Env, func(s string) bool { return strings.HasPrefix(s, "ANTHROPIC_API_KEY") })
	backendtest.Execute(t.Context(), t, c, realRequest(t, "hi")).WantFailure(t, work.ClassAuth)

	c, model := real(t)
	c.PermissionMode = "bypassPermissions" // also as root
	model.Script(fakemodel.Turn{Calls: []fakemodel.Call{{Name: "Write", Input: map[string]string{"file_path": "x.txt", "content": "y"}}}},
		fakemodel.Turn{Text: "done"})
	req := realRequest(t, "write")
	backendtest.Execute(t.Context(), t, c, req).WantSuccess(t, "done")
}
