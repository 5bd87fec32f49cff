package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"piecework/internal/process"
	"piecework/internal/testkit"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/work"
)

// agentCase is one unit on an agent and how it must end.
type agentCase struct {
	name  string
	body  map[string]any // beside backend and max_retries
	state work.State
	class work.Class
	check func(*testing.T, unitWithRuns)
}

func runAgentCases(t *testing.T, p *program, cases []agentCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			body := map[string]any{"backend": "claude", "model": "claude-sonnet-4-5", "max_retries": 0}
			for name, value := range c.body {
				body[name] = value
			}
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			u := p.post("/work-units?wait=2m", string(text))
			class := work.Class("")
			if u.Error != nil {
				class = u.Error.Class
			}
			if u.State != c.state || class != c.class || len(u.Runs) != 1 {
				t.Fatalf("the unit is %s after %d runs, error %v; want %s, %s", u.State, len(u.Runs), u.Error, c.state, c.class)
			}
			if left := process.Marked(func(mark string) bool { return strings.HasPrefix(mark, u.Runs[0].ID.String()) }); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
			if c.check != nil {
				c.check(t, u)
			}
		})
	}
}

func (p *program) transcript(u unitWithRuns) string {
	_, text := p.call("GET", "/runs/"+u.Runs[0].ID.String()+"/transcript?format=jsonl", "")
	return string(text)
}

// The real Claude Code, against a model server of ours, through our API.
func TestRealClaude(t *testing.T) {
	t.Parallel()
	claude := fakecli.Real(t, "claude")
	model := fakemodel.Start(t)
	bash := func(id, command string) fakemodel.Call {
		return fakemodel.Call{ID: id, Name: "Bash", Input: map[string]any{"command": command}}
	}
	model.Script(fakemodel.Turn{Text: "Hello."})
	model.ScriptFor("tool", fakemodel.Turn{Text: "I will run it.", Calls: []fakemodel.Call{bash("a", "echo hello-from-tool")}}, fakemodel.Turn{Text: "Done."})
	model.ScriptFor("parallel", fakemodel.Turn{Calls: []fakemodel.Call{bash("a", "echo first"), bash("b", "echo second")}},
		fakemodel.Turn{Text: "Done."})
	model.ScriptFor("turns", fakemodel.Turn{Calls: []fakemodel.Call{bash("a", "echo 1")}},
		fakemodel.Turn{Calls: []fakemodel.Call{bash("b", "echo 2")}},
		fakemodel.Turn{Calls: []fakemodel.Call{bash("c", "echo 3")}}, fakemodel.Turn{Text: "Done."})
	model.ScriptFor("broken", fakemodel.Turn{Status: 500})
	model.ScriptFor("limited", fakemodel.Turn{Status: 429, Times: 2, Headers: map[string]string{"retry-after": "1"}}, fakemodel.Turn{Text: "Done."})
	model.ScriptFor("absent", fakemodel.Turn{Status: 404, ErrorType: "not_found_error", ErrorMessage: "model: claude-none"})
	model.ScriptFor("stuck", fakemodel.Turn{Calls: []fakemodel.Call{bash("a", "tail -f /dev/null | cat")}}, fakemodel.Turn{Text: "Done."})
	model.ScriptFor("long", fakemodel.Turn{TextBytes: 20 << 20})

	docs := t.TempDir()
	picture, err := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"dot.png": picture, "note.txt": []byte("the word is heliotrope")} {
		if err := os.WriteFile(filepath.Join(docs, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := launch(t, []string{"ANTHROPIC_BASE_URL=" + model.URL, "ANTHROPIC_API_KEY=sk-ant-test-key-0123456789"}, "dev", "--data", dataDir(t),
		"--listen", "127.0.0.1:0", "--claude-path", claude, "--claude-allowed-tools", "Bash", "--roots", "docs="+docs, "--concurrency", "4").up()

	sent := func(t *testing.T, marker, want string) {
		t.Helper()
		for _, r := range model.Requests() {
			if body := string(r.Body); strings.Contains(body, marker) && strings.Contains(body, want) {
				return
			}
		}
		t.Errorf("%q never reached the model", want)
	}
	runAgentCases(t, p, []agentCase{
		{name: "plain", body: map[string]any{"prompt": "say hello"}, state: work.Succeeded, check: func(t *testing.T, u unitWithRuns) {
			r := u.Runs[0]
			if *u.Output != "Hello." || len(*r.SessionID) != 36 || r.NumTurns != 1 || r.TotalCostUSD == nil || *r.TotalCostUSD <= 0 ||
				r.DurationMS <= 0 || r.DurationAPIMS <= 0 || u.Known() != *r.TotalCostUSD {
				t.Errorf("output %q, run %+v", *u.Output, r)
			}
		}},
		{name: "tool call", body: map[string]any{"prompt": "[[script:tool]] go"}, state: work.Succeeded, check: func(t *testing.T, u unitWithRuns) {
			if steps := p.transcript(u); !strings.Contains(steps, `"text":"hello-from-tool"`) || u.Runs[0].ToolCalls != 1 {
				t.Errorf("transcript %s", steps)
			}
		}},
		{name: "two parallel calls", body: map[string]any{"prompt": "[[script:parallel]] go"}, state: work.Succeeded, check: func(t *testing.T, u unitWithRuns) {
			if steps := p.transcript(u); !strings.Contains(steps, `"text":"first"`) || !strings.Contains(steps, `"text":"second"`) ||
				u.Runs[0].ToolCalls != 2 {
				t.Errorf("transcript %s", steps)
			}
		}},
		{name: "max turns", body: map[string]any{"prompt": "[[script:turns]] go", "max_turns": 2}, state: work.Failed, class: work.ClassMaxTurns},
		{name: "api 500", body: map[string]any{"prompt": "[[script:broken]] go"}, state: work.Failed, class: work.ClassInfra},
		{name: "429 then fine", body: map[string]any{"prompt": "[[script:limited]] go"}, state: work.Succeeded},
		{name: "bad model", body: map[string]any{"prompt": "[[script:absent]] go", "model": "claude-none"}, state: work.Failed, class: work.ClassInvalidRequest},
		{name: "timeout inside a tool", body: map[string]any{"prompt": "[[script:stuck]] go", "timeout": "12s"}, state: work.TimedOut,
			class: work.ClassTimeout, check: func(t *testing.T, u unitWithRuns) {
				if steps := p.transcript(u); !strings.Contains(steps, "tail -f") {
					t.Errorf("the call before the timeout is lost: %s", steps)
				}
			}},
		{name: "400 kB prompt", body: map[string]any{"prompt": "[[script:tool]] " + strings.Repeat("words ", 70000)}, state: work.Succeeded},
		{name: "20 MB line", body: map[string]any{"prompt": "[[script:long]] go"}, state: work.Succeeded, check: func(t *testing.T, u unitWithRuns) {
			if len(*u.Output) < 20<<20 {
				t.Errorf("the output has %d bytes", len(*u.Output))
			}
		}},
		{name: "file and image", body: map[string]any{"prompt": "look at marker-files",
			"payload": map[string]any{"file_paths": []string{"docs:dot.png", "docs:note.txt"}}},
			state: work.Succeeded, check: func(t *testing.T, _ unitWithRuns) {
				sent(t, "marker-files", base64.StdEncoding.EncodeToString(picture))
				sent(t, "marker-files", "heliotrope")
			}},
		{name: "mention of a file", body: map[string]any{"prompt": "marker-mention @/etc/passwd"}, state: work.Succeeded, check: func(t *testing.T, _ unitWithRuns) {
			for _, r := range model.Requests() {
				if strings.Contains(string(r.Body), "marker-mention") && strings.Contains(string(r.Body), "root:") {
					t.Error("a file that was only mentioned reached the model")
				}
			}
		}},
		{name: "slash command", body: map[string]any{"prompt": "/cost marker-slash"}, state: work.Succeeded, check: func(t *testing.T, _ unitWithRuns) {
			sent(t, "marker-slash", "/cost")
		}},
	})
}

// What agents do at their worst, by a scripted one, through our API.
func TestUnrulyAgent(t *testing.T) {
	t.Parallel()
	agent := fakecli.Build(t)
	p := launch(t, nil, "dev", "--data", dataDir(t), "--listen", "127.0.0.1:0", "--claude-path", agent, "--concurrency", "8").up()
	script := func(lines ...string) string { return "@@ " + strings.Join(lines, "\n@@ ") }
	fine := func(want string) func(*testing.T, unitWithRuns) {
		return func(t *testing.T, u unitWithRuns) {
			if *u.Output != want {
				t.Errorf("output %.100q; want %q", *u.Output, want)
			}
		}
	}
	runAgentCases(t, p, []agentCase{
		{name: "300 kB on stderr", body: map[string]any{"prompt": script("init", "stderr 300000", "result ok")}, state: work.Succeeded, check: fine("ok")},
		{name: "an answer that never comes", body: map[string]any{"prompt": script("init", "hang"), "timeout": "2s"},
			state: work.TimedOut, class: work.ClassTimeout},
		{name: "silence", body: map[string]any{"prompt": script("init", "hang"), "idle_timeout": "2s"},
			state: work.TimedOut, class: work.ClassHang},
		{name: "deaf to signals", body: map[string]any{"prompt": script("init", "ignore", "hang"), "timeout": "2s"},
			state: work.TimedOut, class: work.ClassTimeout},
		{name: "alive after its result", body: map[string]any{"prompt": script("init", "result ok", "hang"), "timeout": "1h"},
			state: work.Succeeded, check: fine("ok")},
		{name: "a double-forked daemon", body: map[string]any{"prompt": script("init", "daemon", "setsid", "spawn", "result ok")},
			state: work.Succeeded, check: fine("ok")},
		{name: "stdout held open", body: map[string]any{"prompt": script("init", "result ok", "holdstdout"), "timeout": "1h"},
			state: work.Succeeded, check: fine("ok")},
		{name: "killed", body: map[string]any{"prompt": script("init", "text half", "kill")}, state: work.Failed, class: work.ClassCrash},
		{name: "no result", body: map[string]any{"prompt": script("init", "text half", "exit 0")}, state: work.Failed, class: work.ClassCrash},
		{name: "not text", body: map[string]any{"prompt": script("init", "nul", "result ok")}, state: work.Succeeded, check: fine("ok")},
		{name: "environment", body: map[string]any{"prompt": script("init", "env", "result ok")}, state: work.Succeeded,
			check: func(t *testing.T, u unitWithRuns) {
				for _, secret := range []string{"PIECEWORK_DATA", "DATABASE_URL", asProgram} {
					if strings.Contains(p.transcript(u), secret) {
						t.Errorf("the agent sees %s", secret)
					}
				}
			}},
	})
	t.Run("cancel", func(t *testing.T) {
		t.Parallel()
		u := p.post("/work-units", fmt.Sprintf(`{"backend":"claude","prompt":%q}`, script("init", "text so far", "daemon", "hang")))
		testkit.Eventually(t, "the run with a step", func() bool {
			u = p.unit(u.ID.String())
			return u.State == work.Running && strings.Contains(p.transcript(u), "so far")
		})
		p.post("/work-units/"+u.ID.String()+"/cancel", "")
		testkit.Eventually(t, "cancelled", func() bool { u = p.unit(u.ID.String()); return u.State == work.Cancelled })
		if left := process.Marked(func(mark string) bool { return strings.HasPrefix(mark, u.Runs[0].ID.String()) }); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
	})
}

// A worker process is killed while its agent has daemons; a sibling that was
// running all along takes the unit over. The first tree dies with its own.
func TestLostTreeDiesWithItsWorkerProcess(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + testkit.DB(t, nil), "REDIS_URL=" + testkit.Redis(t), "PIECEWORK_DATA=" + dataDir(t),
		"PIECEWORK_LEASE=3s", "PIECEWORK_HEARTBEAT=700ms", "PIECEWORK_CLAUDE_PATH=" + fakecli.Build(t), "PIECEWORK_GRACE=0s"}
	front := launch(t, env, "api", "--listen", "127.0.0.1:0").up()
	first := launch(t, env, "worker").up()
	marked := func(u unitWithRuns, attempt int) int {
		return len(process.Marked(func(mark string) bool { return strings.HasPrefix(mark, u.Runs[attempt-1].ID.String()) }))
	}
	hidden := 1e6 + rand.IntN(1e9)
	u := front.post("/work-units", fmt.Sprintf(`{"backend":"claude","prompt":%q}`,
		fmt.Sprintf("@@ init\n@@ daemon\n@@ setsid\n@@ hide %d\n@@ text there\n@@ hang", hidden)))
	testkit.Eventually(t, "the first run with its daemons", func() bool {
		u = front.unit(u.ID.String())
		return u.State == work.Running && strings.Contains(front.transcript(u), "there")
	})
	testkit.Eventually(t, "somebody who could be left", func() bool { return marked(u, 1) >= 3 && len(fakecli.Asleep(t, hidden)) == 1 })
	launch(t, env, "worker").up()
	first.kill()
	testkit.Eventually(t, "the killed worker process leaves nobody behind", func() bool {
		return marked(u, 1)+len(fakecli.Asleep(t, hidden)) == 0
	})
	testkit.Eventually(t, "the second run at work", func() bool {
		u = front.unit(u.ID.String())
		return len(u.Runs) == 2 && marked(u, 2) > 0
	})
}
