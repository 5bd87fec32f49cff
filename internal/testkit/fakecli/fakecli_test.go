package fakecli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"piecework/internal/testkit/fakecli"
)

func TestMain(m *testing.M) {
	fakecli.Main()
	os.Exit(m.Run())
}

type ran struct {
	exit   int
	signal syscall.Signal
	stdout string
	stderr string
	events []map[string]any
}

func (r ran) kinds() []string {
	var kinds []string
	for _, e := range r.events {
		kinds = append(kinds, e["type"].(string))
	}
	return kinds
}

func (r ran) result() map[string]any {
	for _, e := range slices.Backward(r.events) {
		if e["type"] == "result" {
			return e
		}
	}
	return map[string]any{}
}

// texts are those of the assistant events.
func (r ran) texts() []string {
	var texts []string
	for _, e := range r.events {
		if e["type"] != "assistant" {
			continue
		}
		block := e["message"].(map[string]any)["content"].([]any)[0].(map[string]any)
		if text, ok := block["text"].(string); ok {
			texts = append(texts, text)
		}
	}
	return texts
}

func command(t *testing.T, prompt string, args ...string) *exec.Cmd {
	t.Helper()
	line, err := json.Marshal(map[string]any{"type": "user", "message": map[string]any{
		"role": "user", "content": []map[string]string{{"type": "text", "text": " " + prompt}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), fakecli.Build(t), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"HOME=" + cmd.Dir, "MARK=yes"} // some dialects write there
	cmd.Stdin = bytes.NewReader(append(line, '\n'))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func finish(t *testing.T, cmd *exec.Cmd, stdout, stderr *bytes.Buffer) ran {
	t.Helper()
	_ = cmd.Wait()
	r := ran{exit: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		r.signal = status.Signal()
	}
	for line := range strings.Lines(r.stdout) {
		var e map[string]any
		if json.Unmarshal([]byte(line), &e) == nil {
			r.events = append(r.events, e)
		}
	}
	return r
}

func start(t *testing.T, cmd *exec.Cmd) (stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return stdout, stderr
}

func run(t *testing.T, prompt string, args ...string) ran {
	t.Helper()
	cmd := command(t, prompt, args...)
	stdout, stderr := start(t, cmd)
	return finish(t, cmd, stdout, stderr)
}

func TestVersion(t *testing.T) {
	out, err := exec.Command(fakecli.Build(t), "--version").Output()
	if err != nil || string(out) != "9.9.9 (Fake Code)\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestEcho(t *testing.T) {
	r := run(t, "say\nhi", "--session-id", "s-1", "--model", "m-1")
	if want := []string{"system", "assistant", "result"}; !slices.Equal(r.kinds(), want) || r.exit != 0 {
		t.Fatalf("exit %d, events %v: %s", r.exit, r.kinds(), r.stderr)
	}
	if r.events[0]["session_id"] != "s-1" || r.events[0]["model"] != "m-1" {
		t.Errorf("init %v", r.events[0])
	}
	if r.result()["result"] != "say hi" || r.result()["is_error"] != false || r.result()["session_id"] != "s-1" {
		t.Errorf("result %v", r.result())
	}
}

func TestPlainPrompt(t *testing.T) {
	cmd := command(t, "")
	cmd.Stdin = strings.NewReader("line one\n@@ result from plain text\n")
	stdout, stderr := start(t, cmd)
	if r := finish(t, cmd, stdout, stderr); r.result()["result"] != "from plain text" {
		t.Errorf("got %v %s", r.events, r.stderr)
	}
	cmd = command(t, "")
	cmd.Stdin = nil
	stdout, stderr = start(t, cmd)
	if r := finish(t, cmd, stdout, stderr); r.exit != 1 || r.stdout != "" || r.stderr == "" {
		t.Errorf("no prompt: exit %d %q %q", r.exit, r.stdout, r.stderr)
	}
}

func TestScript(t *testing.T) {
	r := run(t, `please
@@ init
@@ text I look
@@ tool Bash {"command":"ls"}
@@ tool Read {"file_path":"a"}
@@ toolresult one
  @@ toolresult two
@@ ratelimit 1700000000
@@ turns 3
@@ cost 1.25
@@ structured {"a":1}
@@ result all done`)
	want := []string{"system", "assistant", "assistant", "assistant", "user", "user", "rate_limit_event", "result"}
	if !slices.Equal(r.kinds(), want) {
		t.Fatalf("events %v: %s", r.kinds(), r.stderr)
	}
	ids := map[any]bool{}
	for _, e := range r.events[1:4] {
		ids[e["message"].(map[string]any)["id"]] = true
	}
	if len(ids) != 1 {
		t.Errorf("text and calls have message ids %v, want one", ids)
	}
	call := r.events[2]["message"].(map[string]any)["content"].([]any)[0].(map[string]any)
	answer := r.events[4]["message"].(map[string]any)["content"].([]any)[0].(map[string]any)
	if call["id"] != answer["tool_use_id"] || answer["content"] != "one" {
		t.Errorf("call %v, answer %v", call, answer)
	}
	end := r.result()
	if end["num_turns"] != 3.0 || end["total_cost_usd"] != 1.25 || end["structured_output"] == nil || end["result"] != "all done" {
		t.Errorf("result %v", end)
	}
	if !strings.HasPrefix(r.stdout[strings.LastIndex(r.stdout, "\n{")+1:], `{"duration_api_ms"`) {
		t.Error("type must not be the first field of a result")
	}
}

func TestErrors(t *testing.T) {
	r := run(t, "@@ init\n@@ error success 529 API Error: 529 busy")
	if end := r.result(); r.exit != 1 || end["is_error"] != true || end["api_error_status"] != 529.0 || end["result"] != "API Error: 529 busy" {
		t.Errorf("exit %d, result %v", r.exit, end)
	}
	r = run(t, "@@ error error_max_turns 0 Reached maximum number of turns (2)")
	if end := r.result(); r.exit != 1 || end["subtype"] != "error_max_turns" || end["result"] != nil || end["errors"] == nil {
		t.Errorf("exit %d, result %v", r.exit, end)
	}
	r = run(t, "@@ nonsense")
	if r.exit != 64 || !strings.Contains(r.stderr, "no such verb") {
		t.Errorf("exit %d, stderr %q", r.exit, r.stderr)
	}
}

func TestOddOutput(t *testing.T) {
	r := run(t, "@@ stderr 300000\n@@ line 200000\n@@ raw not JSON\n@@ nul\n@@ partial {\"half\":")
	lines := strings.SplitAfter(r.stdout, "\n")
	if len(r.stderr) != 300000 || len(lines) != 4 || len(lines[0]) != 200000 || lines[1] != "not JSON\n" || lines[3] != `{"half":` {
		t.Fatalf("stderr %d bytes, stdout %d lines", len(r.stderr), len(lines))
	}
	if !strings.Contains(lines[2], `\u0000`) || !strings.Contains(lines[2], "\xff\xfe") || len(r.events) != 2 {
		t.Errorf("dirt %q", lines[2])
	}
}

func TestSurroundings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "note")
	r := run(t, "@@ env\n@@ args\n@@ cwd\n@@ write "+file+" hello there\n@@ read "+file+"\n@@ read /no/such", "--print", "-x")
	texts := r.texts()
	if len(texts) != 5 {
		t.Fatalf("texts %q: %s", texts, r.stderr)
	}
	if !strings.Contains(texts[0], "HOME="+texts[2]+"\nMARK=yes") || strings.Contains(texts[0], "FAKECLI") {
		t.Errorf("env %q", texts[0])
	}
	if texts[1] != `["--print","-x"]` || !filepath.IsAbs(texts[2]) || texts[3] != "hello there" || !strings.HasPrefix(texts[4], "Error:") {
		t.Errorf("texts %q", texts)
	}
}

func TestEnds(t *testing.T) {
	if r := run(t, "@@ init\n@@ exit 7\n@@ result never"); r.exit != 7 || len(r.events) != 1 {
		t.Errorf("exit: %+v", r)
	}
	if r := run(t, "@@ init\n@@ kill"); r.signal != syscall.SIGKILL {
		t.Errorf("kill: %+v", r)
	}
	if r := run(t, "@@ init\n@@ segv"); r.signal != syscall.SIGSEGV {
		t.Errorf("segv: %+v", r)
	}
}

func TestSignals(t *testing.T) {
	const ready = 300 * time.Millisecond
	for _, c := range []struct {
		prompt  string
		send    syscall.Signal
		exit    int
		subtype any
		signal  syscall.Signal
	}{
		{"@@ init\n@@ cost 0.5\n@@ hang", syscall.SIGINT, 0, "error_during_execution", 0},
		{"@@ init\n@@ hang", syscall.SIGTERM, 143, nil, 0},
		{"@@ init\n@@ ignore\n@@ hang", syscall.SIGTERM, -1, nil, syscall.SIGKILL},
		{"@@ init\n@@ ignore\n@@ hang", syscall.SIGINT, -1, nil, syscall.SIGKILL},
	} {
		cmd := command(t, c.prompt)
		stdout, stderr := start(t, cmd)
		time.Sleep(ready)
		_ = cmd.Process.Signal(c.send)
		if c.signal == syscall.SIGKILL {
			time.Sleep(ready)
			_ = cmd.Process.Kill()
		}
		r := finish(t, cmd, stdout, stderr)
		if r.exit != c.exit || r.signal != c.signal || r.result()["subtype"] != c.subtype {
			t.Errorf("%v to %q: exit %d, signal %v, result %v", c.send, c.prompt, r.exit, r.signal, r.result())
		}
	}
}

// marked finds the processes that have this in their environment.
func marked(t *testing.T, mark string) []int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), mark) {
			continue
		}
		var pid int
		for _, digit := range filepath.Base(filepath.Dir(path)) {
			pid = pid*10 + int(digit-'0')
		}
		found = append(found, pid)
	}
	return found
}

func TestLeftovers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	mark := "FAKECLI_TEST=" + filepath.Base(t.TempDir()) + time.Now().String()
	cmd := command(t, "@@ init\n@@ spawn\n@@ setsid\n@@ daemon\n@@ holdstdout\n@@ holdstdout setsid\n@@ result done")
	cmd.Env = append(cmd.Env, mark)
	cmd.WaitDelay = 200 * time.Millisecond
	stdout, stderr := start(t, cmd)
	r := finish(t, cmd, stdout, stderr)
	if r.result()["result"] != "done" {
		t.Errorf("result %v: %s", r.result(), r.stderr)
	}
	left := marked(t, mark)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	time.Sleep(100 * time.Millisecond)
	outside := marked(t, mark)
	for _, pid := range outside {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if len(left) != 5 || len(outside) != 3 {
		t.Errorf("%d processes left, %d of them outside the group; want 5 and 3", len(left), len(outside))
	}
}

// The same script in the other dialects: the events have their shapes, the
// text of a line keeps its length.
func TestDialects(t *testing.T) {
	const script = "@@ init\n@@ text I look\n@@ tool Bash {\"command\":\"ls\"}\n@@ toolresult one\n@@ tool Look {}\n@@ toolresult two\n@@ line 5000\n@@ nul\n@@ result done"
	for dialect, want := range map[string]string{
		"codex":    "thread.started item.completed turn.started item.completed item.started item.completed item.started item.completed item.completed item.completed item.completed turn.completed",
		"cursor":   "system assistant tool_call tool_call tool_call tool_call assistant assistant result",
		"opencode": "ready status step_start text tool_use step_finish step_start tool_use step_finish step_start text text text step_finish",
		"gemini":   "init message message tool_use tool_result tool_use tool_result message message message message result",
	} {
		cmd := command(t, script)
		cmd.Path = fakecli.BuildAs(t, dialect)
		stdout, stderr := start(t, cmd)
		r := finish(t, cmd, stdout, stderr)
		if got := strings.Join(r.kinds(), " "); got != want || r.exit != 0 {
			t.Errorf("%s: exit %d, %s; want %s: %s", dialect, r.exit, got, want, r.stderr)
		}
		if !slices.ContainsFunc(slices.Collect(strings.Lines(r.stdout)), func(line string) bool { return len(line) == 5000 }) {
			t.Errorf("%s: no line of 5000 bytes", dialect)
		}
		failed := 1
		if dialect == "gemini" {
			failed = 500 - 256
		}
		for end, exit := range map[string]int{"@@ init\n@@ error success 500 oh": failed, "@@ init\n@@ exit 3": 3} {
			cmd := command(t, end)
			cmd.Path = fakecli.BuildAs(t, dialect)
			stdout, stderr := start(t, cmd)
			if r := finish(t, cmd, stdout, stderr); r.exit != exit {
				t.Errorf("%s: %q ends with %d: %s %s", dialect, end, r.exit, r.stdout, r.stderr)
			}
		}
	}
}
