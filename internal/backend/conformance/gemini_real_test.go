package conformance

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/backend/cli/gemini"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// realGemini returns the installed client, talking to a model of our own.
func realGemini(t *testing.T, turns ...fakemodel.Turn) (*gemini.Backend, *fakemodel.Server) {
	t.Helper()
	path := fakecli.Real(t, "gemini")
	model := fakemodel.Start(t)
	model.Script(turns...)
	return &gemini.Backend{ApprovalMode: "yolo", Options: cli.Options{Path: path, Supervisor: backendtest.Supervisor, Env: []string{"GEMINI_API_KEY=sk-secret-value", "GOOGLE_GEMINI_BASE_URL=" + model.URL}}}, model
}

func geminiRequest(t *testing.T, prompt string) backend.Request {
	req := backendtest.NewRequest(t, prompt)
	req.Model, req.IdleTimeout = "gemini-2.5-pro", 2*time.Minute
	return req
}

func geminiShell(command string) fakemodel.Call {
	return fakemodel.Call{Name: "run_shell_command", Input: map[string]string{"command": command}}
}

// asked is what reached the model, of each request the last words of the user.
func asked(model *fakemodel.Server) (texts []string) {
	for _, r := range model.Requests() {
		for _, m := range slices.Backward(r.Messages) {
			if m.Role == "user" && m.Content[len(m.Content)-1].Type == "text" {
				texts = append(texts, m.Content[len(m.Content)-1].Text)
				break
			}
		}
	}
	return texts
}

func TestRealGemini(t *testing.T) {
	t.Parallel()
	calls := func(commands ...string) (c []fakemodel.Call) {
		for _, command := range commands {
			c = append(c, geminiShell(command))
		}
		return c
	}
	done := fakemodel.Turn{Text: "done"}
	for _, test := range []struct {
		name   string
		script []fakemodel.Turn
		change func(*backend.Request)
		class  work.Class // "": success with the output "done"
		words  string
		calls  []string // their results
		turns  int
	}{
		{name: "plain", script: []fakemodel.Turn{done}, turns: 1},
		{name: "tool", script: []fakemodel.Turn{{Text: "I will", Thinking: "hm", Calls: calls("echo from-tool > a.txt; cat a.txt")}, done}, calls: []string{"from-tool"}, turns: 2},
		{name: "parallel calls", script: []fakemodel.Turn{{Calls: calls("sleep 1; echo slow", "echo fast")}, done}, calls: []string{"slow", "fast"}, turns: 2},
		{name: "max turns", script: []fakemodel.Turn{{Calls: calls("echo 1")}, {Calls: calls("echo 2")}, {Calls: calls("echo 3; sleep 5")}, done},
			change: func(r *backend.Request) { r.MaxTurns = 2 }, class: work.ClassMaxTurns, words: "max_turns (2)"},
		{name: "500 once", script: []fakemodel.Turn{{Status: 500, Times: 1}, done}, turns: 1},
		{name: "cut once", script: []fakemodel.Turn{{Text: "half an answer", Cut: true, Times: 1}, done}, turns: 1},
		{name: "cut always", script: []fakemodel.Turn{{Text: "half an answer", Cut: true}}, class: work.ClassInfra, words: "finish reason"},
		{name: "429", script: []fakemodel.Turn{{Status: 429, ErrorMessage: "You exceeded your current quota, please check your plan and billing details."}}, class: work.ClassRateLimit, words: "429"},
		{name: "bad key", script: []fakemodel.Turn{{Status: 400, ErrorMessage: "API key not valid. Please pass a valid API key."}}, class: work.ClassAuth},
		{name: "403", script: []fakemodel.Turn{{Status: 403}}, class: work.ClassAuth},
		{name: "bad model", script: []fakemodel.Turn{{Status: 404}}, class: work.ClassInvalidRequest},
		{name: "bad request", script: []fakemodel.Turn{{Status: 400}}, class: work.ClassInvalidRequest, words: "400"},
		{name: "too long", script: []fakemodel.Turn{{Status: 400, ErrorMessage: "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576)."}}, class: work.ClassContextTooLong},
		{name: "720 kB prompt with a name", script: []fakemodel.Turn{done}, turns: 1, change: func(r *backend.Request) { r.Prompt = "@a " + strings.Repeat("word ", 144_000) + "end" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g, model := realGemini(t, test.script...)
			req := geminiRequest(t, "say it")
			if test.change != nil {
				test.change(&req)
			}
			got := backendtest.Execute(t.Context(), t, g, req)
			if sent := asked(model); len(sent) == 0 || sent[0] != req.Prompt {
				t.Errorf("the prompt did not reach the model: %.300q", sent)
			}
			if m := got.Metadata; m.SessionID != req.SessionID || m.Model != req.Model || m.DurationMS <= 0 || m.TotalCostUSD != nil || got.CostIncomplete && test.class != work.ClassMaxTurns {
				t.Errorf("metadata %+v", m)
			}
			if test.class != "" {
				got.WantFailure(t, test.class, test.words)
				return
			}
			got.WantSuccess(t, "done")
			if results := got.Texts(transcript.ToolResult); !slices.Equal(results, test.calls) {
				t.Errorf("tool results %q, want %q", results, test.calls)
			}
			n := int64(test.turns)
			if m := got.Metadata; m.NumTurns != test.turns || m.Usage != (work.Usage{InputTokens: 100 * n, OutputTokens: 10 * n}) {
				t.Errorf("metadata %+v; want %d turns", m, n)
			}
			if test.name == "tool" {
				got.WantStep(t, transcript.Reasoning, "hm")
			}
		})
	}
}

func TestRealGeminiTellsWhenALimitEnds(t *testing.T) {
	t.Parallel()
	g, _ := realGemini(t, fakemodel.Turn{Status: 429, Headers: map[string]string{"retry-after": "3600"}})
	got := backendtest.Execute(t.Context(), t, g, geminiRequest(t, "go"))
	got.WantFailure(t, work.ClassRateLimit)
	if left := time.Until(got.Error.ResetAt); left < 50*time.Minute || left > 70*time.Minute {
		t.Errorf("the limit ends in %v", left)
	}
}

// A pipe would lose most of it.
func TestRealGeminiHugeToolOutput(t *testing.T) {
	t.Parallel()
	g, _ := realGemini(t, fakemodel.Turn{Calls: []fakemodel.Call{geminiShell("yes 0123456789 | head -c 1000000")}}, fakemodel.Turn{Text: "done"})
	got := backendtest.Execute(t.Context(), t, g, geminiRequest(t, "go"))
	got.WantSuccess(t, "done")
	if results := got.Texts(transcript.ToolResult); len(results) != 1 || len(results[0]) < transcript.MaxResult {
		t.Errorf("%d results", len(results))
	}
}

func TestRealGeminiTimeoutInsideAToolAndResume(t *testing.T) {
	t.Parallel()
	g, model := realGemini(t, fakemodel.Turn{Text: "I wait here", Calls: []fakemodel.Call{geminiShell("tail -f /dev/null | cat")}}, fakemodel.Turn{Text: "done"})
	ctx, cancel := context.WithCancelCause(t.Context())
	req := geminiRequest(t, "wait for @nothing")
	steps := transcript.NewWriter(func(s transcript.Step) {
		if len(s.Content) == 2 { // the text and the call
			cancel(work.ErrTimeout)
		}
	}, nil)
	result, err := g.Execute(ctx, req, steps)
	if err != nil || result.Error == nil || result.Error.Class != work.ClassTimeout || result.Output != "I wait here" || result.Metadata.SessionID != req.SessionID {
		t.Errorf("%v, %+v, error %v", err, result, result.Error)
	}
	backendtest.WantNoProcess(t, req)

	req.Prompt, req.Resume, req.Attempt = "go on", true, 2
	model.Script(fakemodel.Turn{Text: "done"})
	got := backendtest.Execute(t.Context(), t, g, req)
	got.WantSuccess(t, "done")
	last := model.Requests()[len(model.Requests())-1]
	if got.Metadata.SessionID != req.SessionID || !strings.Contains(string(last.Body), "wait for @nothing") || got.Metadata.NumTurns != 1 || got.Metadata.Usage.OutputTokens != 10 {
		t.Errorf("metadata %+v, the model got %.2000s", got.Metadata, last.Body)
	}

	lost := geminiRequest(t, "go")
	lost.Resume = true
	got = backendtest.Execute(t.Context(), t, g, lost)
	got.WantSuccess(t, "done")
	got.WantStep(t, transcript.SystemText, "from the beginning")
}

// Text of a prompt is never an option, a command, or the name of a file.
func TestRealGeminiPromptIsInert(t *testing.T) {
	t.Parallel()
	for _, prompt := range []string{"@/etc/hostname", "@a.txt", "see \"@a.txt\"\n\n  and\\@b", "/cost", "/help @a.txt", "--help", "-", "!ls", "@{a.txt} !{date} {{args}}  @a.txt"} {
		t.Run(prompt, func(t *testing.T) {
			t.Parallel()
			g, model := realGemini(t, fakemodel.Turn{Text: "done"})
			req := geminiRequest(t, prompt)
			if err := os.WriteFile(req.Dir+"/a.txt", []byte("CONTENT"), 0o600); err != nil {
				t.Fatal(err)
			}
			backendtest.Execute(t.Context(), t, g, req).WantSuccess(t, "done")
			if sent := asked(model); len(sent) != 1 || !strings.HasSuffix(sent[0], prompt) || strings.Contains(string(model.Requests()[0].Body), "CONTENT") {
				t.Errorf("the model got %.300q", sent)
			} else if !strings.Contains(prompt, "{") && sent[0] != prompt {
				t.Errorf("the model got more than the prompt: %.300q", sent)
			}
		})
	}
}

func TestRealGeminiOutputSchema(t *testing.T) {
	t.Parallel()
	g, model := realGemini(t, fakemodel.Turn{Text: "bob"})
	req := geminiRequest(t, "name?")
	req.OutputSchema = json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)
	got := backendtest.Execute(t.Context(), t, g, req)
	got.WantFailure(t, work.ClassSchemaInvalid)
	if len(model.Requests()) != 2 || got.Metadata.NumTurns != 2 || got.Metadata.Usage.OutputTokens != 20 {
		t.Errorf("%d requests, metadata %+v", len(model.Requests()), got.Metadata)
	}
}

func TestRealGeminiVersionAndKey(t *testing.T) {
	t.Parallel()
	g, _ := realGemini(t)
	if version, err := g.Version(t.Context()); version == "" || err != nil {
		t.Errorf("version %q, %v", version, err)
	}
	g.Env = nil
	backendtest.Execute(t.Context(), t, g, geminiRequest(t, "go")).WantFailure(t, work.ClassAuth, "GEMINI_API_KEY")
}
