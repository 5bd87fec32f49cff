package conformance

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/backend/cli/opencode"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// realOpenCode returns the installed client, talking to a model of our own.
func realOpenCode(t *testing.T, turns ...fakemodel.Turn) (*opencode.Backend, *fakemodel.Server) {
	t.Helper()
	path := fakecli.Real(t, "opencode")
	model := fakemodel.Start(t)
	model.Script(turns...)
	return &opencode.Backend{Options: cli.Options{Path: path, Supervisor: backendtest.Supervisor, Env: []string{"ANTHROPIC_API_KEY=sk-secret-value", "ANTHROPIC_BASE_URL=" + model.URL}}}, model
}

func openCodeRequest(t *testing.T, prompt string) backend.Request {
	req := backendtest.NewRequest(t, prompt)
	req.Model, req.IdleTimeout = "anthropic/claude-sonnet-4-5", 2*time.Minute
	return req
}

// openCodeShell has opencode run a command.
func openCodeShell(command string) fakemodel.Call {
	return fakemodel.Call{Name: "bash", Input: map[string]string{"command": command, "description": "run it"}}
}

func prompts(model *fakemodel.Server) (texts []string) {
	for _, r := range model.Requests() {
		texts = append(texts, r.Prompt())
	}
	return texts
}

func TestRealOpenCode(t *testing.T) {
	t.Parallel()
	calls := func(commands ...string) (c []fakemodel.Call) {
		for _, command := range commands {
			c = append(c, openCodeShell(command))
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
		{name: "tool", script: []fakemodel.Turn{{Text: "I will", Calls: calls("echo from-tool > a.txt; cat a.txt")}, done}, calls: []string{"from-tool\n"}, turns: 2},
		{name: "parallel calls", script: []fakemodel.Turn{{Calls: calls("sleep 1; echo slow", "echo fast")}, done}, calls: []string{"fast\n", "slow\n"}, turns: 2},
		{name: "failing tool", script: []fakemodel.Turn{{Calls: calls("echo no; exit 3")}, done}, calls: []string{"no\n(exit code 3)"}, turns: 2},
		{name: "outside the directory", script: []fakemodel.Turn{{Calls: calls("cat /etc/hostname >/dev/null; echo ok")}, done}, calls: []string{"ok\n"}, turns: 2},
		{name: "no sub-agents", script: []fakemodel.Turn{{Calls: calls("echo ok")}, done}, calls: []string{"ok\n"}, turns: 2},
		{name: "max turns", script: []fakemodel.Turn{{Calls: calls("echo 1")}, {Calls: calls("echo 2")}, {Calls: calls("echo 3; sleep 5")}, done},
			change: func(r *backend.Request) { r.MaxTurns = 2 }, class: work.ClassMaxTurns, words: "max_turns (2)"},
		{name: "max cost", script: []fakemodel.Turn{{Calls: calls("echo 1")}, {Calls: calls("sleep 5")}, done},
			change: func(r *backend.Request) { r.MaxCostUSD = new(0.0001) }, class: work.ClassMaxCost, words: "$0.0001"},
		{name: "500 once", script: []fakemodel.Turn{{Status: 500, Times: 1}, done}, turns: 1},
		{name: "cut once", script: []fakemodel.Turn{{Text: "half an answer", Cut: true, Times: 1}, done}, turns: 1},
		{name: "cut always", script: []fakemodel.Turn{{Text: "half an answer", Cut: true}}, class: work.ClassInfra, words: "before their end"},
		{name: "429", script: []fakemodel.Turn{{Status: 429}}, class: work.ClassRateLimit},
		{name: "bad model", script: []fakemodel.Turn{{Status: 404}}, change: func(r *backend.Request) { r.Model = "anthropic/no-such" }, class: work.ClassInvalidRequest, words: "404"},
		{name: "200 kB system prompt", script: []fakemodel.Turn{done}, turns: 1,
			change: func(r *backend.Request) {
				r.SystemPrompt = "a \"rule\" @/etc/hostname\n" + strings.Repeat("rule ", 40_000)
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o, model := realOpenCode(t, test.script...)
			req := openCodeRequest(t, "say it")
			if test.change != nil {
				test.change(&req)
			}
			got := backendtest.Execute(t.Context(), t, o, req)
			if sent := prompts(model); len(sent) == 0 || sent[0] != req.Prompt || !strings.Contains(model.Requests()[0].System, req.SystemPrompt) {
				t.Errorf("the prompt or the system prompt did not reach the model: %.300q", sent)
			}
			if !strings.HasPrefix(got.Metadata.SessionID, "ses_") || got.Metadata.Model != req.Model || got.Metadata.DurationMS <= 0 {
				t.Errorf("metadata %+v", got.Metadata)
			}
			if test.class != "" {
				got.WantFailure(t, test.class, test.words)
				return
			}
			got.WantSuccess(t, "done")
			if results := got.Texts(transcript.ToolResult); !slices.Equal(results, test.calls) {
				t.Errorf("tool results %q, want %q", results, test.calls)
			}
			n := test.turns
			cut := test.name == "cut once"
			if m := got.Metadata; !cut && (m.NumTurns != n || m.Usage.OutputTokens != int64(10*n) || m.TotalCostUSD == nil || *m.TotalCostUSD < 0.0004*float64(n)) {
				t.Errorf("metadata %+v; want %d turns", m, n)
			}
		})
	}
}

func TestRealOpenCodeTellsWhenALimitEnds(t *testing.T) {
	t.Parallel()
	o, _ := realOpenCode(t, fakemodel.Turn{Status: 429, Headers: map[string]string{"retry-after": "3600"}})
	got := backendtest.Execute(t.Context(), t, o, openCodeRequest(t, "go"))
	got.WantFailure(t, work.ClassRateLimit)
	if left := time.Until(got.Error.ResetAt); left < 50*time.Minute || left > 70*time.Minute {
		t.Errorf("the limit ends in %v", left)
	}
}

func TestRealOpenCodeTimeoutInsideAToolAndResume(t *testing.T) {
	t.Parallel()
	o, model := realOpenCode(t, fakemodel.Turn{Text: "I wait", Calls: []fakemodel.Call{openCodeShell(inTool)}}, fakemodel.Turn{Text: "done"})
	req := openCodeRequest(t, "wait")
	result := cutInTool(t, o, req, work.ErrTimeout)
	if result.Error == nil || result.Error.Class != work.ClassTimeout || !result.CostIncomplete {
		t.Errorf("%+v, error %v", result, result.Error)
	}

	req.Resume = true
	model.Script(fakemodel.Turn{Text: "done"})
	got := backendtest.Execute(t.Context(), t, o, req)
	got.WantSuccess(t, "done")
	last := model.Requests()[len(model.Requests())-1]
	if got.Metadata.SessionID != result.Metadata.SessionID || !strings.Contains(string(last.Body), `"wait"`) || !strings.Contains(string(last.Body), cli.ResumePrompt) {
		t.Errorf("session %s after %s, the model got %+v", got.Metadata.SessionID, result.Metadata.SessionID, last.Messages)
	}

	lost := openCodeRequest(t, "go")
	lost.Resume = true
	got = backendtest.Execute(t.Context(), t, o, lost)
	got.WantSuccess(t, "done")
	got.WantStep(t, transcript.SystemText, "from the beginning")
}

// Text of a prompt is never an option, a command, or the name of a file.
func TestRealOpenCodePromptIsInert(t *testing.T) {
	t.Parallel()
	for _, prompt := range []string{"@/etc/hostname", "/cost", "--help", "-", "!ls", "@a.txt $ARGUMENTS !`date`"} {
		t.Run(prompt, func(t *testing.T) {
			t.Parallel()
			o, model := realOpenCode(t, fakemodel.Turn{Text: "done"})
			req := openCodeRequest(t, prompt)
			if err := os.WriteFile(req.Dir+"/a.txt", []byte("CONTENT"), 0o600); err != nil {
				t.Fatal(err)
			}
			backendtest.Execute(t.Context(), t, o, req).WantSuccess(t, "done")
			if sent := prompts(model); len(sent) != 1 || sent[0] != prompt || strings.Contains(string(model.Requests()[0].Body), "CONTENT") {
				t.Errorf("the model got %.300q", sent)
			}
		})
	}
}

func TestRealOpenCodeFiles(t *testing.T) {
	t.Parallel()
	o, model := realOpenCode(t, fakemodel.Turn{Text: "done"})
	req := openCodeRequest(t, "compare them")
	png, _ := base64.StdEncoding.DecodeString(backendtest.OnePixel)
	backendtest.Attach(t, &req, "dot.png", png)
	backendtest.Attach(t, &req, "notes.txt", []byte("/cost @/etc/hostname grüße"))
	backendtest.Execute(t.Context(), t, o, req).WantSuccess(t, "done")
	body := string(model.Requests()[0].Body)
	for _, part := range []string{"compare them", "/cost @/etc/hostname grüße", backendtest.OnePixel} {
		if !strings.Contains(body, part) {
			t.Errorf("the model did not get %.60q", part)
		}
	}
}

func TestRealOpenCodeOutputSchema(t *testing.T) {
	t.Parallel()
	o, model := realOpenCode(t, fakemodel.Turn{Text: "bob"})
	req := openCodeRequest(t, "name?")
	req.OutputSchema = json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)
	got := backendtest.Execute(t.Context(), t, o, req)
	got.WantFailure(t, work.ClassSchemaInvalid)
	if len(model.Requests()) != 2 || got.Metadata.NumTurns != 2 || got.Metadata.TotalCostUSD == nil || *got.Metadata.TotalCostUSD < 0.0008 {
		t.Errorf("%d requests, metadata %+v", len(model.Requests()), got.Metadata)
	}
	model.Script(fakemodel.Turn{Text: "```json\n{\"name\":\"bob\"}\n```"})
	req = openCodeRequest(t, "name?")
	req.OutputSchema = json.RawMessage(`{"type":"object","required":["name"]}`)
	backendtest.Execute(t.Context(), t, o, req).WantSuccess(t, `{"name":"bob"}`)
}

func TestRealOpenCodeVersionAndKey(t *testing.T) {
	t.Parallel()
	o, _ := realOpenCode(t)
	if version, err := o.Version(t.Context()); cmp.Or(version, "x") == "x" || err != nil {
		t.Errorf("version %q, %v", version, err)
	}
	o.Env = nil
	backendtest.Execute(t.Context(), t, o, openCodeRequest(t, "go")).WantFailure(t, work.ClassAuth, "API key")
}
