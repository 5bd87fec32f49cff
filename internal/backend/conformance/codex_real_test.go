package conformance

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/backend/cli/codex"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// realCodex returns the installed client, talking to a model of our own.
func realCodex(t *testing.T, script ...codexTurn) (*codex.Backend, *codexModel) {
	t.Helper()
	path := fakecli.Real(t, "codex")
	model := startCodexModel(t, script...)
	return &codex.Backend{Options: cli.Options{Path: path, Supervisor: backendtest.Supervisor, Env: []string{"OPENAI_API_KEY=sk-secret-value", "OPENAI_BASE_URL=" + model.URL + "/v1"}}}, model
}

func codexRequest(t *testing.T, prompt string) backend.Request {
	req := backendtest.NewRequest(t, prompt)
	req.Model = "gpt-5"
	return req
}

// input returns the user's words as they reached the model, all requests
// together, and the images beside them.
func (r *codexModel) input(t *testing.T) (texts []string, images []string) {
	t.Helper()
	for _, body := range r.sent() {
		var sent struct {
			Input []struct {
				Role    string
				Content []struct {
					Type, Text string
					ImageURL   string `json:"image_url"`
				}
			}
		}
		if err := backend.Decode([]byte(body), &sent); err != nil {
			t.Fatal(err)
		}
		for _, message := range sent.Input {
			for _, part := range message.Content {
				if part.Type == "input_image" {
					images = append(images, part.ImageURL)
				} else if message.Role == "user" {
					texts = append(texts, part.Text)
				}
			}
		}
	}
	return texts, images
}

func TestRealCodex(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		script []codexTurn
		change func(*backend.Request)
		class  work.Class // "": success with the output "done"
		words  string
		calls  []string // their results
		turns  int
	}{
		{name: "plain", script: []codexTurn{{text: "done"}}, turns: 1},
		{name: "tool in the workspace", script: []codexTurn{{text: "I will", call: "echo from-tool > a.txt; cat a.txt"}, {text: "done"}},
			calls: []string{"from-tool\n"}, turns: 2},
		{name: "parallel calls", script: []codexTurn{{text: "both", calls: []string{"sleep 0.3; echo slow", "echo fast"}}, {text: "done"}},
			calls: []string{"fast\n", "slow\n"}, turns: 2},
		{name: "failing tool", script: []codexTurn{{call: "echo no; exit 3"}, {text: "done"}}, calls: []string{"no\n(exit code 3)"}, turns: 2},
		{name: "keys are hidden from tools", script: []codexTurn{{call: "env | grep -c API_KEY"}, {text: "done"}}, calls: []string{"0\n(exit code 1)"}, turns: 2},
		{name: "max turns", script: []codexTurn{{call: "echo 1"}, {call: "echo 2"}, {call: "echo 3"}, {call: "echo 4"}, {text: "done"}},
			change: func(r *backend.Request) { r.MaxTurns = 2 }, class: work.ClassMaxTurns, words: "max_turns (2)"},
		{name: "enough turns", script: []codexTurn{{call: "echo 1"}, {text: "done"}}, change: func(r *backend.Request) { r.MaxTurns = 2 },
			calls: []string{"1\n"}, turns: 2},
		{name: "500 once", script: []codexTurn{{status: 500, words: "oh"}, {text: "done"}}, turns: 1},
		{name: "cut once", script: []codexTurn{{text: "half", cut: true}, {text: "done"}}, turns: 1},
		{name: "503 always", script: []codexTurn{{status: 503, words: "oh"}}, class: work.ClassInfra, words: "503"},
		{name: "cut always", script: []codexTurn{{text: "half", cut: true}}, class: work.ClassInfra, words: "stream"},
		{name: "429", script: []codexTurn{{status: 429, words: "slow down"}}, class: work.ClassRateLimit, words: "429"},
		{name: "quota", script: []codexTurn{{failed: true, code: "insufficient_quota", words: "none left"}}, class: work.ClassBilling},
		{name: "too long", script: []codexTurn{{failed: true, code: "context_length_exceeded", words: "too long"}}, class: work.ClassContextTooLong},
		{name: "bad model", script: []codexTurn{{status: 404, code: "model_not_found", words: "The model gpt-5 does not exist"}},
			class: work.ClassInvalidRequest, words: "gpt-5"},
		{name: "bad request", script: []codexTurn{{status: 400, code: "invalid_value", words: "no such thing"}},
			class: work.ClassInvalidRequest, words: "no such thing invalid_value"},
		{name: "400 kB prompt", script: []codexTurn{{text: "done"}}, turns: 1,
			change: func(r *backend.Request) { r.Prompt = strings.Repeat("word ", 80_000) + "end" }},
		{name: "200 kB system prompt", script: []codexTurn{{text: "done"}}, turns: 1,
			change: func(r *backend.Request) { r.SystemPrompt = "a \"rule\" <b>\x7f\n" + strings.Repeat("rule ", 40_000) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, model := realCodex(t, test.script...)
			req := codexRequest(t, "say it")
			if test.change != nil {
				test.change(&req)
			}
			got := backendtest.Execute(t.Context(), t, c, req)
			texts, _ := model.input(t)
			if !slices.Contains(texts, req.Prompt) || !strings.Contains(model.sent()[0], strings.TrimPrefix(req.SystemPrompt, "a \"rule\" <b>\x7f\n")) {
				t.Errorf("the prompt or the system prompt did not reach the model")
			}
			if len(got.Metadata.SessionID) != 36 || got.Metadata.SessionID == req.SessionID || got.Metadata.Model != "gpt-5" || got.Metadata.DurationMS <= 0 {
				t.Errorf("metadata %+v", got.Metadata)
			}
			if got.Metadata.TotalCostUSD != nil || got.CostIncomplete && test.class != work.ClassMaxTurns {
				t.Errorf("cost %v, incomplete %v", got.Metadata.TotalCostUSD, got.CostIncomplete)
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
			if u := got.Metadata.Usage; got.Metadata.NumTurns != test.turns || u != (work.Usage{InputTokens: 60 * n, CacheReadTokens: 40 * n, OutputTokens: 10 * n}) {
				t.Errorf("%d turns, usage %+v; want %d turns", got.Metadata.NumTurns, u, n)
			}
		})
	}
}

func TestRealCodexMaxTurnsKeepsWhatThereIs(t *testing.T) {
	t.Parallel()
	c, model := realCodex(t, codexTurn{text: "first", call: "echo 1"}, codexTurn{text: "second", call: "echo 2; sleep 0.5"}, codexTurn{call: "echo 3"})
	req := codexRequest(t, "go")
	req.MaxTurns = 1
	got := backendtest.Execute(t.Context(), t, c, req)
	got.WantFailure(t, work.ClassMaxTurns)
	if got.Output == "" || got.Metadata.Usage.OutputTokens < 10 || len(model.sent()) > 3 || got.Metadata.NumTurns < 1 {
		t.Errorf("output %q after %d requests, metadata %+v", got.Output, len(model.sent()), got.Metadata)
	}
	got.WantStep(t, transcript.ToolResult, "1\n")
}

// What the sandbox denies is missing from the events. The thread's own record
// has it, in its place, and each call has one result.
func TestRealCodexDeniedCommand(t *testing.T) {
	t.Parallel()
	c, _ := realCodex(t, codexTurn{text: "I try", call: "touch denied.txt"}, codexTurn{text: "now this", call: "echo allowed"}, codexTurn{text: "done"})
	c.Sandbox = "read-only"
	got := backendtest.Execute(t.Context(), t, c, codexRequest(t, "go"))
	got.WantSuccess(t, "done")
	var kinds []string
	for _, s := range got.Steps {
		kinds = append(kinds, s.Type)
	}
	want := []string{"system_text", "action", "tool_result", "action", "tool_result", "action"}
	if !slices.Equal(kinds, want) {
		t.Fatalf("steps %q, want %q", kinds, want)
	}
	// On a busy machine Codex tells of the call itself, as it tells of others.
	call, answer := got.Steps[1], got.Steps[2]
	if len(call.Content) != 2 || call.Content[0].Text != "I try" || !strings.Contains(call.Content[1].Args, "touch denied.txt") ||
		answer.CallID != call.Content[1].ID || answer.Name != "shell" || !answer.IsError || !strings.HasSuffix(answer.Text, "Read-only file system\n(exit code 1)") {
		t.Errorf("the denied call %+v and its answer %+v", call, answer)
	}
	if got.Metadata.NumTurns != 3 {
		t.Errorf("%d turns", got.Metadata.NumTurns)
	}
}

// A model that is denied again and again says nothing that would show it.
func TestRealCodexDeniedForEver(t *testing.T) {
	t.Parallel()
	c, model := realCodex(t, codexTurn{call: "touch denied.txt"})
	c.Sandbox = "read-only"
	req := codexRequest(t, "go")
	req.MaxTurns = 5
	ctx, cancel := context.WithTimeout(t.Context(), backendtest.RunLimit)
	defer cancel()
	got := backendtest.Execute(ctx, t, c, req)
	got.WantFailure(t, work.ClassMaxTurns)
	if results := got.Texts(transcript.ToolResult); len(results) < 4 || len(model.sent()) < 5 {
		t.Errorf("%d results after %d requests", len(results), len(model.sent()))
	}
}

func TestRealCodexTimeoutInsideATool(t *testing.T) {
	t.Parallel()
	c, _ := realCodex(t, codexTurn{text: "I wait", call: "tail -f /dev/null | cat"}, codexTurn{text: "done"})
	ctx, cancel := context.WithCancelCause(t.Context())
	req := codexRequest(t, "wait")
	steps := transcript.NewWriter(func(s transcript.Step) {
		if len(s.Content) == 2 { // the text and the call
			cancel(work.ErrTimeout)
		}
	}, nil)
	result, err := c.Execute(ctx, req, steps)
	if err != nil || result.Error == nil || result.Error.Class != work.ClassTimeout || result.Output != "I wait" {
		t.Errorf("%v, %+v, error %v", err, result, result.Error)
	}
	if result.Metadata.Usage.OutputTokens != 10 || len(result.Metadata.SessionID) != 36 || result.Metadata.SessionID == req.SessionID {
		t.Errorf("metadata %+v", result.Metadata)
	}
	all := steps.Steps()
	if last := all[len(all)-1]; last.Type != transcript.ToolResult || !strings.Contains(last.Text, "the run ended") {
		t.Errorf("the last step is %+v", last)
	}
	backendtest.WantNoProcess(t, req)

	// The next run goes on with the thread, although nobody told it which.
	again, model := realCodex(t, codexTurn{text: "done"})
	req.Prompt, req.Resume = "go on", true
	got := backendtest.Execute(t.Context(), t, again, req)
	got.WantSuccess(t, "done")
	if texts, _ := model.input(t); got.Metadata.SessionID != result.Metadata.SessionID || !slices.Contains(texts, "wait") || !slices.Contains(texts, "go on") {
		t.Errorf("session %s, the model got %q", got.Metadata.SessionID, texts)
	}
	if u := got.Metadata.Usage; u.OutputTokens != 10 || got.Metadata.NumTurns != 1 {
		t.Errorf("usage of the whole thread? %+v", got.Metadata)
	}
}

func TestRealCodexRateLimitTellsWhenItEnds(t *testing.T) {
	t.Parallel()
	c, _ := realCodex(t, codexTurn{failed: true, code: "rate_limit_exceeded", words: "Rate limit reached for gpt-5. Please try again in 1.5s."})
	before := time.Now()
	got := backendtest.Execute(t.Context(), t, c, codexRequest(t, "go"))
	got.WantFailure(t, work.ClassRateLimit, "try again in 1.5s")
	if at := got.Error.ResetAt; at.Before(before) || at.After(time.Now().Add(2*time.Second)) {
		t.Errorf("reset at %v", at)
	}
}

// Text of a prompt is never an option, a command, or the name of a file.
func TestRealCodexPromptIsInert(t *testing.T) {
	t.Parallel()
	for _, prompt := range []string{"@/etc/hostname", "/cost", "--help", "-", "!ls", "$imagegen a cat", "# remember"} {
		t.Run(prompt, func(t *testing.T) {
			t.Parallel()
			c, model := realCodex(t, codexTurn{text: "done"})
			backendtest.Execute(t.Context(), t, c, codexRequest(t, prompt)).WantSuccess(t, "done")
			if texts, _ := model.input(t); len(texts) == 0 || texts[len(texts)-1] != prompt || len(texts) > 2 {
				t.Errorf("the model got %.300q", texts)
			}
		})
	}
}

func TestRealCodexFiles(t *testing.T) {
	t.Parallel()
	c, model := realCodex(t, codexTurn{text: "done"})
	req := codexRequest(t, "compare them")
	png, _ := base64.StdEncoding.DecodeString(backendtest.OnePixel)
	backendtest.Attach(t, &req, "dot.png", png)
	backendtest.Attach(t, &req, "notes.txt", []byte("/cost @/etc/hostname grüße"))
	backendtest.Attach(t, &req, "bytes.bin", []byte{1, 0, 2})
	backendtest.Execute(t.Context(), t, c, req).WantSuccess(t, "done")
	texts, images := model.input(t)
	all := strings.Join(texts, "\n")
	for _, part := range []string{"compare them", "/cost @/etc/hostname grüße", filepath.Join(req.Home, "files", "bytes.bin")} {
		if !strings.Contains(all, part) {
			t.Errorf("the model did not get %q: %.500q", part, all)
		}
	}
	if len(images) != 1 || !strings.HasPrefix(images[0], "data:image/png;base64,") {
		t.Errorf("images %.200q", images)
	}
}

func TestRealCodexResume(t *testing.T) {
	t.Parallel()
	c, _ := realCodex(t, codexTurn{call: "echo one"}, codexTurn{text: "done"})
	first := codexRequest(t, "one")
	got := backendtest.Execute(t.Context(), t, c, first)
	got.WantSuccess(t, "done")

	c, model := realCodex(t, codexTurn{call: "echo two"}, codexTurn{text: "done"})
	second := first
	second.Prompt, second.SessionID, second.Resume, second.Attempt = "two", got.Metadata.SessionID, true, 2
	again := backendtest.Execute(t.Context(), t, c, second)
	again.WantSuccess(t, "done")
	if again.Metadata.SessionID != got.Metadata.SessionID || again.Metadata.NumTurns != 2 || again.Metadata.Usage != got.Metadata.Usage {
		t.Errorf("metadata %+v after %+v", again.Metadata, got.Metadata)
	}
	if texts, _ := model.input(t); !slices.Contains(texts, "one") {
		t.Errorf("the resumed thread has %q", texts)
	}
	if results := again.Texts(transcript.ToolResult); !slices.Equal(results, []string{"two\n"}) {
		t.Errorf("results of the second run: %q", results)
	}
	if a, b := callID(got), callID(again); a == "" || a == b {
		t.Errorf("calls of two runs have the ids %q and %q", a, b)
	}

	lost := codexRequest(t, "four")
	lost.Resume = true
	got = backendtest.Execute(t.Context(), t, c, lost)
	got.WantSuccess(t, "done")
	got.WantStep(t, transcript.SystemText, "from the beginning")
}

func callID(got backendtest.Run) string {
	for _, s := range got.Steps {
		if s.Type == transcript.ToolResult {
			return s.CallID
		}
	}
	return ""
}

func TestRealCodexOutputSchema(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],"additionalProperties":false}`)
	for _, test := range []struct {
		name   string
		script []codexTurn
		class  work.Class
		turns  int
	}{
		{"fits", []codexTurn{{text: `{"name":"bob"}`}}, "", 1},
		{"fits when asked again", []codexTurn{{text: `bob`}, {text: `{"name":"bob"}`}}, "", 2},
		{"never fits", []codexTurn{{text: `{"nom":"bob"}`}}, work.ClassSchemaInvalid, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, model := realCodex(t, test.script...)
			req := codexRequest(t, "name?")
			req.OutputSchema = schema
			got := backendtest.Execute(t.Context(), t, c, req)
			if test.class == "" {
				got.WantSuccess(t, `{"name":"bob"}`)
			} else {
				got.WantFailure(t, test.class)
			}
			if !strings.Contains(model.sent()[0], `"json_schema"`) || got.Metadata.NumTurns != test.turns ||
				got.Metadata.Usage.OutputTokens != int64(10*test.turns) {
				t.Errorf("%d turns, usage %+v", got.Metadata.NumTurns, got.Metadata.Usage)
			}
		})
	}
}

func TestRealCodexBadStart(t *testing.T) {
	t.Parallel()
	c, _ := realCodex(t, codexTurn{text: "done"})
	c.Sandbox = "nonsense"
	backendtest.Execute(t.Context(), t, c, codexRequest(t, "hi")).WantFailure(t, work.ClassInvalidRequest, "sandbox")

	c, _ = realCodex(t, codexTurn{text: "done"})
	backendtest.Execute(t.Context(), t, c, codexRequest(t, " ")).WantFailure(t, work.ClassInvalidRequest, "No prompt")

	c, _ = realCodex(t, codexTurn{text: "done"})
	if version, err := c.Version(t.Context()); err != nil || !strings.HasPrefix(version, "codex-cli ") {
		t.Errorf("version %q, %v", version, err)
	}
}
