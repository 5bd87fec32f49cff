package codex

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestCodexArguments(t *testing.T) {
	c := fake(t)
	c.Env = []string{"OPENAI_API_KEY=sk-secret-value", `OPENAI_BASE_URL=http://x/"v1"`}
	c.Sandbox = "read-only"
	req := backendtest.NewRequest(t, backendtest.Script("init", "args", `result {"a":1}`))
	req.Model, req.SystemPrompt = "--yolo", strings.Repeat("long ", 50_000)
	req.OutputSchema = json.RawMessage(`{"type":"object"}`)
	backendtest.Attach(t, &req, "dot.png", []byte("\x89PNG\r\n\x1a\n"))
	got := backendtest.Execute(t.Context(), t, c, req)
	got.WantSuccess(t, `{"a":1}`)
	args := backendtest.Args(t, got)
	for _, want := range []string{
		"exec --json --skip-git-repo-check --sandbox=read-only ", " --model=--yolo ", "-c model_provider=piecework",
		`base_url="http://x/\"v1\"",wire_api="responses",env_key="OPENAI_API_KEY"`, " --output-schema=" + req.Home, " --image=" + filepath.Join(req.Home, "files", "dot.png") + " -",
		"skills.bundled.enabled=false", "shell_environment_policy.ignore_default_excludes=false", "analytics.enabled=false",
	} {
		if !strings.Contains(strings.Join(args, " "), want) {
			t.Errorf("the arguments lack %q: %q", want, args)
		}
	}
	if slices.Contains(args, "resume") || strings.Contains(strings.Join(args, " "), "sk-secret") {
		t.Errorf("arguments %q", args)
	}
}

func TestCodexRefusesWhatCannotWork(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*backend.Request)
		words  string
	}{
		"no schema":        {func(r *backend.Request) { r.OutputSchema = json.RawMessage(`{"type":"blah"}`) }, "output_schema"},
		"schema of a list": {func(r *backend.Request) { r.OutputSchema = json.RawMessage(`{"type":"array"}`) }, "object"},
		"NUL in model":     {func(r *backend.Request) { r.Model = "a\x00b" }, "NUL"},
		"lost file":        {func(r *backend.Request) { r.Files = []backend.File{{Name: "lost.txt", Path: "/nonexistent/lost.txt"}} }, "lost.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			req := backendtest.NewRequest(t, "hi")
			test.change(&req)
			backendtest.Execute(t.Context(), t, fake(t), req).WantFailure(t, work.ClassInvalidRequest, test.words)
		})
	}
}

func TestCodexSandboxThatDoesNotWork(t *testing.T) {
	events := `{"type":"item.completed","item":{"id":"item_1","type":"command_execution","command":"ls","aggregated_output":"bwrap: execvp codex-linux-sandbox: no\n","exit_code":1,"status":"failed"}}`
	got := backendtest.Execute(t.Context(), t, fake(t), backendtest.NewRequest(t, backendtest.Script("init", "raw "+events, "result fine")))
	got.WantFailure(t, work.ClassInfra, "bwrap: execvp", "PIECEWORK_CODEX_SANDBOX")
	got = backendtest.Execute(t.Context(), t, fake(t), backendtest.NewRequest(t,
		backendtest.Script("init", "raw "+events, `tool Bash {"command":"ls"}`, "toolresult ok", "result fine")))
	got.WantSuccess(t, "fine")
}

func TestCodexItemsOfTwoTurnsAreTold(t *testing.T) {
	event := func(text string) string {
		return `raw {"type":"item.completed","item":{"id":"item_7","type":"file_change","changes":[{"path":"` + text + `","kind":"add"}],"status":"completed"}}`
	}
	got := backendtest.Execute(t.Context(), t, fake(t), backendtest.NewRequest(t,
		backendtest.Script("init", event("a"), "init", event("b"), "result fine")))
	var ids []string
	for _, s := range got.Steps {
		if s.Type == transcript.ToolResult {
			ids = append(ids, s.CallID)
		}
	}
	if len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("the calls have the ids %q", ids)
	}
}

// record writes a rollout file line by line.
type record struct {
	t    *testing.T
	file *os.File
}

func (r record) add(kind, payload string) {
	r.t.Helper()
	if _, err := r.file.WriteString(`{"type":"` + kind + `","payload":` + payload + "}\n"); err != nil {
		r.t.Fatal(err)
	}
}

func (r record) call(id string) {
	r.add("response_item", `{"type":"function_call","name":"exec_command","arguments":"{\"cmd\":\"`+id+`\"}","call_id":"`+id+`"}`)
}

func (r record) answer(id, text string) {
	r.add("response_item", `{"type":"function_call_output","call_id":"`+id+`","output":"`+text+`"}`)
}

func (r record) item(kind, id string) {
	r.add("event_msg", `{"type":"item_completed","item":{"type":"`+kind+`","id":"`+id+`"}}`)
}

func newRecord(t *testing.T) (record, *rollout) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "rollout.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return record{t, file}, openRollout(file.Name())
}

func names(calls []unreported) string {
	var all []string
	for _, c := range calls {
		all = append(all, c.call.ID+":"+c.answer.Text)
	}
	return strings.Join(all, " ")
}

// The record may be behind the events or ahead of them; a call is added once,
// and only if no event tells of it.
func TestCodexRecordFillsTheGaps(t *testing.T) {
	w, r := newRecord(t)
	until := func(kind, want string) {
		t.Helper()
		r.read()
		if got := names(r.until(kind)); got != want {
			t.Errorf("before the next %s: %q, want %q", kind, got, want)
		}
	}
	until("agent_message", "") // the record is behind
	w.item("AgentMessage", "m1")
	w.call("denied")
	w.call("allowed")
	w.item("CommandExecution", "allowed")
	w.answer("denied", "Process exited with code 1")
	w.answer("allowed", "fine")
	w.call("long")
	w.answer("long", "Process running with session ID 7")
	w.item("AgentMessage", "m2")
	w.call("later")
	w.answer("later", "soon")
	until("agent_message", "")
	until("command_execution", "") // its own answer is not there yet
	until("agent_message", "denied:Process exited with code 1")
	if got := names(r.rest()); got != "later:soon" {
		t.Errorf("the rest is %q", got)
	}
	if got := names(r.rest()); got != "" {
		t.Errorf("told twice: %q", got)
	}
}

func TestCodexRecordCountsTurns(t *testing.T) {
	w, r := newRecord(t)
	usage := func(output string) {
		w.add("token_usage_record", `{"thread_token_usage":{"input_tokens":100,"output_tokens":`+output+`}}`)
	}
	over := func(turns int, want bool) {
		t.Helper()
		if r.read(); r.turnOver(turns) != want {
			t.Errorf("%d turns, %d calls, %d answers: over is %v", len(r.uses), r.calls, r.answers, !want)
		}
	}
	w.call("a")
	over(1, false)
	usage("10")
	over(1, false) // the tool is still at work
	w.answer("a", "ok")
	over(1, true)
	over(2, false)
	usage("20") // a last word
	over(2, false)
	over(1, true)
	if _, err := w.file.WriteString(`{"type":"token_usage_record","payl`); err != nil {
		t.Fatal(err)
	}
	r.read()
	again := openRollout(w.file.Name())
	if again.former.Output != 20 || len(again.uses) != 0 || r.total.Output != 20 {
		t.Errorf("former %+v, turns %d", again.former, len(again.uses))
	}
	if _, err := w.file.WriteString(`oad":{"thread_token_usage":{"output_tokens":35}}}` + "\n"); err != nil {
		t.Fatal(err)
	}
	if again.read(); len(again.uses) != 1 || again.total.Output != 35 {
		t.Errorf("the line that was half written: %+v", again.total)
	}
}
