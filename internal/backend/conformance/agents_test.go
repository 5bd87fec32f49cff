package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/backend/cli/claude"
	"piecework/internal/backend/cli/codex"
	"piecework/internal/backend/cli/cursor"
	"piecework/internal/backend/cli/gemini"
	"piecework/internal/backend/cli/opencode"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// dialects are the command-line agents that the fake one can be.
var dialects = []string{"claude", "codex", "cursor", "opencode", "gemini"}

// fakeAs returns the backend of that name with a fake agent behind it.
func fakeAs(t *testing.T, name string, change ...func(*cli.Options)) backend.Backend {
	t.Helper()
	cli := backendtest.FakeOptions(fakecli.BuildAs(t, name))
	for _, c := range change {
		c(&cli)
	}
	return backendAs(name, cli)
}

func backendAs(name string, cli cli.Options) backend.Backend {
	switch name {
	case "codex":
		return &codex.Backend{Options: cli}
	case "cursor":
		return &cursor.Backend{Options: cli}
	case "opencode":
		return &opencode.Backend{Options: cli}
	case "gemini":
		return &gemini.Backend{Options: cli}
	}
	return &claude.Backend{Options: cli}
}

// The same work in every dialect leaves the same transcript.
func TestAgentsAnswerAlike(t *testing.T) {
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := backendtest.Execute(t.Context(), t, fakeAs(t, name), backendtest.NewRequest(t, backendtest.Script("init", "text I look", `tool Bash {"command":"ls"}`, "toolresult a.txt",
				`tool Look {"at":"b"}`, "toolresult b", "turns 3", "text done", "result all is well")))
			got.WantSuccess(t, "all is well")
			m := got.Metadata
			if len(m.SessionID) != 36 || m.NumTurns != 3 || m.DurationMS < 1 || m.Usage.OutputTokens != 30 || (m.TotalCostUSD != nil) != backend.Can(name, work.CanCost) {
				t.Errorf("metadata %+v", m)
			}
			steps := slices.DeleteFunc(got.Steps, func(s transcript.Step) bool { return s.Type == transcript.SystemText })
			if len(steps) != 5 || len(steps[0].Content) != 2 || len(steps[2].Content) != 1 {
				t.Fatalf("steps %+v", steps)
			}
			for _, at := range []int{0, 2} {
				call, answer := steps[at].Content[len(steps[at].Content)-1], steps[at+1]
				if answer.Type != transcript.ToolResult || call.ID == "" || answer.CallID != call.ID || answer.Name != call.Name || answer.IsError {
					t.Errorf("call %+v, answer %+v", call, answer)
				}
			}
			if args := steps[0].Content[1].Args; args != `{"command":"ls"}` || steps[1].Text != "a.txt" || steps[3].Text != "b" {
				t.Errorf("args %s, answers %q and %q", args, steps[1].Text, steps[3].Text)
			}
		})
	}
}

// The agents without a turn limit of their own are stopped by us.
func TestTurnsAreLimited(t *testing.T) {
	call := func(more ...string) []string {
		return append([]string{`tool Bash {"command":"ls"}`, "toolresult a.txt"}, more...)
	}
	for _, test := range []struct {
		name   string
		script []string
		class  work.Class
		calls  int
	}{
		{"within", slices.Concat(call(), []string{"result fine"}), "", 1},
		{"beyond", slices.Concat(call("text so far"), call(), []string{"setsid", "hang"}), work.ClassMaxTurns, 2},
		{"two at once", []string{`tool Bash {}`, `tool Look {}`, "toolresult a", "result fine"}, "", 1},
		{"faster than the check", slices.Concat(call(), call(), call(), []string{"result fine"}), work.ClassMaxTurns, 3},
	} {
		for _, name := range dialects[1:] {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				req := backendtest.NewRequest(t, backendtest.Script(append([]string{"init"}, test.script...)...))
				req.MaxTurns = 2
				got := backendtest.Execute(t.Context(), t, fakeAs(t, name), req)
				if test.class == "" {
					got.WantSuccess(t, "fine")
				} else {
					got.WantFailure(t, test.class, "max_turns (2)")
				}
				if results := got.Texts(transcript.ToolResult); len(results) < min(test.calls, 2) || got.Metadata.NumTurns < 2 {
					t.Errorf("%d turns, results %q", got.Metadata.NumTurns, results)
				}
			})
		}
	}
}

func TestEnvironmentOfEveryAgent(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://secret")
	for _, name := range dialects {
		agent := fakeAs(t, name, func(c *cli.Options) {
			c.Env = []string{"MY_KEY=sk-secret-value", "PATH=/usr/bin:/bin", "TMPDIR=/var/tmp"}
		})
		req := backendtest.NewRequest(t, backendtest.Script("init", "env", "result fine"))
		got := backendtest.Execute(t.Context(), t, agent, req)
		env := strings.Split(strings.Join(got.Texts(transcript.Action), "\n"), "\n")
		for _, want := range []string{"MY_KEY=[redacted]", "HOME=" + req.Home, "TERM=dumb", "PATH=/usr/bin:/bin"} {
			if !slices.Contains(env, want) {
				t.Errorf("%s: the environment lacks %s: %q", name, want, env)
			}
		}
		if name == "codex" && (!slices.Contains(env, "CODEX_HOME="+req.Home+"/.codex") || !slices.Contains(env, "TMPDIR="+req.Home+"/tmp")) {
			t.Errorf("codex's home and its directory for temporary files: %q", env)
		}
		if strings.Contains(strings.Join(env, " "), "DATABASE_URL") {
			t.Errorf("%s: the environment has %q", name, env)
		}
		if _, err := os.Stat(filepath.Join(req.Home, "tmp")); err == nil {
			t.Errorf("%s: temporary files are left", name)
		}
	}
}
