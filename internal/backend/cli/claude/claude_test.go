package claude

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestClaudeArguments(t *testing.T) {
	c := fake(t)
	c.PermissionMode, c.AllowedTools = "acceptEdits", []string{"Bash(git *)", "Edit"}
	req := backendtest.NewRequest(t, backendtest.Script("init", "args", "structured {}", "result fine"))
	req.Model, req.MaxTurns, req.MaxCostUSD = "--dangerously-skip-permissions", 7, new(1.5)
	req.SystemPrompt = strings.Repeat("long ", 50_000)
	req.OutputSchema = json.RawMessage(`{"type":"object"}`)
	got := backendtest.Execute(t.Context(), t, c, req)
	var args []string
	if err := json.Unmarshal([]byte(strings.Join(got.Texts(transcript.Action), "")), &args); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--print --input-format stream-json --output-format stream-json --verbose", "--session-id " + req.SessionID,
		"--model=--dangerously-skip-permissions", "--max-turns=7", "--max-budget-usd=1.5", `--json-schema={"type":"object"}`,
		"--append-system-prompt-file=" + req.Home, "--permission-mode=acceptEdits", "--allowedTools Bash(git *) Edit --disallowedTools AskUserQuestion",
	} {
		if !strings.Contains(strings.Join(args, " "), want) {
			t.Errorf("the arguments lack %q: %q", want, args)
		}
	}
	if at := slices.Index(args, "--setting-sources"); at < 0 || args[at+1] != "" {
		t.Errorf("settings of the machine are read: %q", args)
	}
	got.WantSuccess(t, "{}")
	if info, err := os.Stat(filepath.Join(req.Home, "tmp")); err == nil {
		t.Errorf("temporary files are left in %s", info.Name())
	}
}

func TestClaudeRefusesWhatCannotWork(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(elsewhere, []byte(`{"type":"object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*backend.Request)
		words  string
	}{
		"no schema":         {func(r *backend.Request) { r.OutputSchema = json.RawMessage(`{"type":"blah"}`) }, "output_schema"},
		"schema of a list":  {func(r *backend.Request) { r.OutputSchema = json.RawMessage(`{"type":"array"}`) }, "object"},
		"schema opens file": {func(r *backend.Request) { r.OutputSchema = json.RawMessage(`{"$ref":"file://` + elsewhere + `"}`) }, "output_schema"},
		"long schema": {func(r *backend.Request) {
			r.OutputSchema = json.RawMessage(`{"type":"object","title":"` + strings.Repeat("x", 1<<17) + `"}`)
		}, "--json-schema is"},
		"NUL in model": {func(r *backend.Request) { r.Model = "a\x00b" }, "NUL"},
		"lost file":    {func(r *backend.Request) { r.Files = []backend.File{{Name: "lost.txt", Path: "/nonexistent/lost.txt"}} }, "lost.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			req := backendtest.NewRequest(t, "hi")
			test.change(&req)
			backendtest.Execute(t.Context(), t, fake(t), req).WantFailure(t, work.ClassInvalidRequest, test.words)
		})
	}
}

func TestClaudeFileInput(t *testing.T) {
	req := backendtest.NewRequest(t, "/cost")
	backendtest.Attach(t, &req, "small.md", []byte("# ok"))
	backendtest.Attach(t, &req, `odd">.txt`, []byte("odd"))
	backendtest.Attach(t, &req, "large.txt", []byte(strings.Repeat("line\n", backend.MaxInlineText/5+1)))
	backendtest.Attach(t, &req, "bytes.bin", []byte{1, 0, 2})
	backendtest.Attach(t, &req, "empty.txt", nil)
	inside := filepath.Join(req.Dir, "inside.bin")
	if err := os.WriteFile(inside, []byte{0}, 0o600); err != nil {
		t.Fatal(err)
	}
	req.Files = append(req.Files, backend.File{Name: "inside.bin", Path: inside, Size: 1})
	files := filepath.Join(req.Home, "files")
	message, failure := newMessage(req, files)
	if failure != nil {
		t.Fatal(failure)
	}
	var sent struct{ Message struct{ Content []block } }
	if err := json.Unmarshal(message.line, &sent); err != nil {
		t.Fatal(err)
	}
	content := sent.Message.Content
	last := content[len(content)-1].Text
	if !strings.HasPrefix(last, " /cost") {
		t.Errorf("the prompt could be a command: %q", last)
	}
	want := []string{filepath.Join(files, "large.txt"), filepath.Join(files, "bytes.bin"), filepath.Join(files, "inside.bin")}
	if !slices.Equal(message.named, want) {
		t.Errorf("named %q, want %q", message.named, want)
	}
	for _, path := range want {
		if _, err := os.Stat(path); err != nil || !strings.Contains(last, path) {
			t.Errorf("%s: %v, or not in the prompt", path, err)
		}
	}
	for i, start := range []string{`<file name="small.md">`, `<file name="odd&#34;&gt;.txt">`, `<file name="empty.txt">`} {
		if !strings.HasPrefix(content[i].Text, start) {
			t.Errorf("block %d is %q", i, content[i].Text)
		}
	}
	if strings.Count(string(message.line), "\n") != 1 {
		t.Error("the message is not one line")
	}
}

// A tool may answer before its message has been written to the end.
func TestClaudeMergesAMessageAcrossResults(t *testing.T) {
	steps := transcript.NewWriter(nil, nil)
	told := newParser(cli.NewOutput(backendtest.NewRequest(t, ""), nil, steps, nil))
	call := func(id string) string {
		return `{"type":"assistant","message":{"id":"m1","content":[{"type":"tool_use","id":"` + id + `","name":"Bash","input":{}}]}}`
	}
	answer := func(id string) string {
		return `{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"` + id + `","content":[{"type":"text","text":"` + id + `"},{"type":"image"}]}]}}`
	}
	for _, line := range []string{call("a"), answer("a"), call("b"), answer("b"),
		`{"type":"assistant","parent_tool_use_id":"a","message":{"id":"m1","content":[{"type":"text","text":"from below"}]}}`} {
		cli.NewHandler(told).Line([]byte(line))
	}
	got := steps.Steps()
	if len(got) != 4 || len(got[0].Content) != 2 || got[2].CallID != "b" || got[2].Name != "Bash" || got[2].Text != "b\n[image]" {
		t.Errorf("steps %+v", got)
	}
	if got[3].Parent != "a" || told.text.Len() > 0 {
		t.Errorf("the sub-agent's step %+v, the run's own text %q", got[3], told.text.String())
	}
}

func TestOldLimitTextTellsTheReset(t *testing.T) {
	told := newParser(cli.NewOutput(backend.Request{}, nil, transcript.NewWriter(nil, nil), nil))
	cli.NewHandler(told).Line([]byte(`{"type":"result","subtype":"success","is_error":true,"result":"Claude AI usage limit reached|1763712000"}`))
	if r := told.Result(cli.Ending{}); r.Error == nil || r.Error.Class != work.ClassRateLimit || r.Error.ResetAt.Unix() != 1763712000 {
		t.Errorf("%+v", r.Error)
	}
}

func TestClaudeTurnsUsedUp(t *testing.T) {
	got := backendtest.Execute(t.Context(), t, fake(t), backendtest.NewRequest(t, backendtest.Script("init", "error error_max_turns 0 too many")))
	got.WantFailure(t, work.ClassMaxTurns, "max_turns")
}
