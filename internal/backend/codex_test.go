package backend

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

func argsOf(t *testing.T, got trial) []string {
	t.Helper()
	var args []string
	if err := json.Unmarshal([]byte(got.texts(transcript.Action)[0]), &args); err != nil {
		t.Fatal(err)
	}
	return args
}

func TestCodexArguments(t *testing.T) {
	c := fakeAs(t, "codex", func(c *CLI) {
		c.Env = []string{"OPENAI_API_KEY=sk-secret-value", `OPENAI_BASE_URL=http://x/"v1"`}
	}).(*Codex)
	c.Sandbox = "read-only"
	req := request(t, verbs("init", "args", `result {"a":1}`))
	req.Model, req.SystemPrompt = "--yolo", strings.Repeat("long ", 50_000)
	req.OutputSchema = json.RawMessage(`{"type":"object"}`)
	attach(t, &req, "dot.png", []byte("\x89PNG\r\n\x1a\n"))
	got := try(t.Context(), t, c, req)
	got.wantSuccess(t, `{"a":1}`)
	args := argsOf(t, got)
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
		change func(*Request)
		words  string
	}{
		"no schema":        {func(r *Request) { r.OutputSchema = json.RawMessage(`{"type":"blah"}`) }, "output_schema"},
		"schema of a list": {func(r *Request) { r.OutputSchema = json.RawMessage(`{"type":"array"}`) }, "object"},
		"NUL in model":     {func(r *Request) { r.Model = "a\x00b" }, "NUL"},
		"lost file":        {func(r *Request) { r.Files = []File{{Name: "lost.txt", Path: "/nonexistent/lost.txt"}} }, "lost.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t, "hi")
			test.change(&req)
			try(t.Context(), t, fakeAs(t, "codex"), req).wantFailure(t, work.ClassInvalidRequest, test.words)
		})
	}
}

func TestCodexSandboxThatDoesNotWork(t *testing.T) {
	events := `{"type":"item.completed","item":{"id":"item_1","type":"command_execution","command":"ls","aggregated_output":"bwrap: execvp codex-linux-sandbox: no\n","exit_code":1,"status":"failed"}}`
	got := try(t.Context(), t, fakeAs(t, "codex"), request(t, verbs("init", "raw "+events, "result fine")))
	got.wantFailure(t, work.ClassInfra, "bwrap: execvp", "PIECEWORK_CODEX_SANDBOX")
	got = try(t.Context(), t, fakeAs(t, "codex"), request(t, verbs("init", "raw "+events, `tool Bash {"command":"ls"}`, "toolresult ok", "result fine")))
	got.wantSuccess(t, "fine")
}

func TestCodexItemsOfTwoTurnsAreTold(t *testing.T) {
	event := func(text string) string {
		return `raw {"type":"item.completed","item":{"id":"item_7","type":"file_change","changes":[{"path":"` + text + `","kind":"add"}],"status":"completed"}}`
	}
	got := try(t.Context(), t, fakeAs(t, "codex"), request(t, verbs("init", event("a"), "init", event("b"), "result fine")))
	var ids []string
	for _, s := range got.steps {
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

func names(calls []untold) string {
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

func TestWaitIn(t *testing.T) {
	for words, want := range map[string]time.Duration{
		"Please try again in 3s.":                 3 * time.Second,
		"try again in 1m12s":                      72 * time.Second,
		"Try again in 20ms":                       20 * time.Millisecond,
		"try again in 6.5 seconds":                6500 * time.Millisecond,
		"or try again in 2 days 3 hours 1 minute": 51*time.Hour + time.Minute,
		"try again later":                         0,
	} {
		if got, ok := waitIn(words); got != want || ok != (want > 0) {
			t.Errorf("%q: %v, %v", words, got, ok)
		}
	}
}

func TestClassOfWords(t *testing.T) {
	for words, want := range map[string]work.Class{
		"exceeded retry limit, last status: 429 Too Many Requests":          work.ClassRateLimit,
		"unexpected status 401 Unauthorized: no":                            work.ClassAuth,
		"unexpected status 402 Payment Required: pay":                       work.ClassBilling,
		"unexpected status 503 Service Unavailable: rate limit":             work.ClassInfra,
		"Quota exceeded. Check your plan and billing details.":              work.ClassBilling,
		"Codex ran out of room in the model's context window.":              work.ClassContextTooLong,
		"Missing environment variable: `OPENAI_API_KEY`.":                   work.ClassAuth,
		"The model gpt-9 does not exist":                                    work.ClassInvalidRequest,
		"Selected model is at capacity.":                                    work.ClassRateLimit,
		"stream disconnected before completion":                             work.ClassInfra,
		"Authentication required. Please run 'agent login' or set the key.": work.ClassAuth,
	} {
		if got := classOf(words); got != want {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
}
