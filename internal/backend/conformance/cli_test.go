package conformance

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/backend/cli/claude"
	"piecework/internal/process"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestMain(m *testing.M) {
	backendtest.Start()
	if os.Getenv(asWorker) != "" {
		beWorker()
	}
	os.Exit(m.Run())
}

func fake(t *testing.T) *claude.Backend {
	t.Helper()
	return &claude.Backend{Options: backendtest.FakeOptions(fakecli.Build(t))}
}

func TestAgentAnswers(t *testing.T) {
	req := backendtest.NewRequest(t, backendtest.Script("init", "text I look", `tool Bash {"command":"ls"}`, "toolresult a.txt", "text done",
		"cost 0.25", "turns 2", "result all is well"))
	req.SessionCostUSD = 0.1
	got := backendtest.Execute(t.Context(), t, fake(t), req)
	got.WantSuccess(t, "all is well")
	m := got.Metadata
	if m.SessionID != req.SessionID || m.Model != "fake-model" || m.NumTurns != 2 || m.DurationMS < 1 || m.Usage.InputTokens != 200 {
		t.Errorf("metadata %+v", m)
	}
	if m.TotalCostUSD == nil || *m.TotalCostUSD != 0.15 || got.CostIncomplete {
		t.Errorf("cost %v incomplete %v, want the difference 0.15", m.TotalCostUSD, got.CostIncomplete)
	}
	kinds := []string{}
	for _, s := range got.Steps {
		kinds = append(kinds, s.Type)
	}
	if want := []string{"system_text", "action", "tool_result", "action"}; !slices.Equal(kinds, want) {
		t.Fatalf("steps %v, want %v", kinds, want)
	}
	action := got.Steps[1].Content
	if len(action) != 2 || action[1].Name != "Bash" || action[1].Args != `{"command":"ls"}` ||
		got.Steps[2].CallID != action[1].ID || got.Steps[2].Name != "Bash" || got.Steps[2].Text != "a.txt" {
		t.Errorf("the call and its result: %+v", got.Steps[1:3])
	}
}

// Whatever an agent does, its run ends in time and nothing of it is left.
func TestAgentsThatMisbehave(t *testing.T) {
	for _, test := range []struct {
		name   string
		script []string
		class  work.Class // "": success with the output "fine"
		words  string
	}{
		{"noisy stderr", []string{"init", "stderr 300000", "result fine"}, "", ""},
		{"noisy stderr and death", []string{"init", "stderr 300000", "exit 3"}, work.ClassCrash, "fakecli makes noise"},
		{"alive after its result", []string{"init", "result fine", "hang"}, "", ""},
		{"deaf after its result", []string{"ignore", "init", "result fine", "hang"}, "", ""},
		{"leaves a child", []string{"init", "spawn", "result fine"}, "", ""},
		{"leaves a session", []string{"init", "setsid", "result fine"}, "", ""},
		{"leaves a daemon", []string{"init", "daemon", "result fine"}, "", ""},
		{"orphan holds stdout", []string{"init", "holdstdout", "result fine"}, "", ""},
		{"hidden orphan holds stdout", []string{"init", "holdstdout setsid", "result fine"}, "", ""},
		{"not JSON", []string{"init", "raw what is this", `raw {"no":"type"}`, "result fine"}, "", ""},
		{"20 MB line", []string{"init", "line 20000000", "result fine"}, "", ""},
		{"40 MB line", []string{"init", "line 40000000", "result fine"}, "", ""},
		{"dirty text", []string{"init", "nul", "result fine"}, "", ""},
		{"partial last line", []string{"init", "text so far", `partial {"type":"res`, "exit 0"}, work.ClassCrash, "without a result"},
		{"kills itself", []string{"init", "text so far", "kill"}, work.ClassCrash, "killed"},
		{"segfault", []string{"init", "segv"}, work.ClassCrash, "segmentation fault"},
		{"no result", []string{"init", "text so far", "exit 0"}, work.ClassCrash, "without a result"},
		{"nothing at all", []string{"exit 0"}, work.ClassCrash, "without a result"},
		{"an error that is a success", []string{"init", "error success 500 API Error: 500 oh"}, work.ClassInfra, "500"},
		{"two results", []string{"init", "result first", "init", "text more", "result fine"}, "", ""},
	} {
		for _, name := range dialects {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				got := backendtest.Execute(t.Context(), t, fakeAs(t, name), backendtest.NewRequest(t, backendtest.Script(test.script...)))
				if test.class != "" {
					got.WantFailure(t, test.class, test.words)
					if slices.Contains(test.script, "text so far") && got.Output != "so far" {
						t.Errorf("the partial output is %q", got.Output)
					}
					return
				}
				got.WantSuccess(t, "fine")
			})
		}
	}
}

func TestAgentThatHangs(t *testing.T) {
	for _, test := range []struct {
		name   string
		script []string
		words  string
	}{
		{"silent from the start", []string{"hang"}, "no output at all"},
		{"silent later", []string{"init", "text so far", "hang"}, "no output for"},
		{"silent and deaf", []string{"ignore", "init", "setsid", "hang"}, "no output for"},
	} {
		for _, name := range dialects {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				req := backendtest.NewRequest(t, backendtest.Script(test.script...))
				req.IdleTimeout = 500 * time.Millisecond
				req.StartupTimeout = 700 * time.Millisecond
				got := backendtest.Execute(t.Context(), t, fakeAs(t, name), req)
				got.WantFailure(t, work.ClassHang, test.words)
			})
		}
	}
}

// A run that its caller ends keeps what there is; only a timeout is a failure.
func TestCallerEndsTheRun(t *testing.T) {
	for _, test := range []struct {
		name  string
		cause error
		class work.Class
	}{
		{"timeout", work.ErrTimeout, work.ClassTimeout},
		{"cancel", work.ErrCancelled, ""},
		{"shutdown", work.ErrShutdown, ""},
	} {
		for _, name := range dialects {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancelCause(t.Context())
				req := backendtest.NewRequest(t, backendtest.Script("init", "cost 0.5", "text half an answer", "setsid", "hang"))
				steps := transcript.NewWriter(func(s transcript.Step) {
					if s.Type == transcript.Action {
						cancel(test.cause)
					}
				}, nil)
				result, err := fakeAs(t, name).Execute(ctx, req, steps)
				if err != nil || result.Success || result.Output != "half an answer" || len(result.Metadata.SessionID) != 36 {
					t.Errorf("%v, %+v", err, result)
				}
				cost := result.Metadata.TotalCostUSD
				if told := cost != nil && *cost == 0.5; backend.Can(name, work.CanCost) && !told && !result.CostIncomplete {
					t.Errorf("the cost is lost: %v", cost)
				}
				if test.class == "" && result.Error != nil || test.class != "" && (result.Error == nil || result.Error.Class != test.class) {
					t.Errorf("error %v, want class %q", result.Error, test.class)
				}
				backendtest.WantNoProcess(t, req)
			})
		}
	}
}

// A run that lost its lease is killed at once: another may begin any moment.
func TestFencedAgentIsNotAsked(t *testing.T) {
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			req := backendtest.NewRequest(t, backendtest.Script("ignore", "init", "text still working", "daemon", "hang"))
			steps := transcript.NewWriter(func(s transcript.Step) {
				if s.Type == transcript.Action {
					cancel(work.ErrFenced)
				}
			}, nil)
			agent := fakeAs(t, name, func(c *cli.Options) { c.StopPolicy = process.StopPolicy{Interrupt: time.Hour, Terminate: time.Hour} })
			result, err := agent.Execute(ctx, req, steps)
			if err != nil || result.Success || result.Error != nil || result.CostIncomplete != backend.Can(name, work.CanCost) {
				t.Errorf("%v, %+v", err, result)
			}
			backendtest.WantNoProcess(t, req)
		})
	}
}

// What an agent had answered before it was killed counts: a worker process that
// was frozen finds the result in the pipe. That it was cut off is no answer.
func TestLastWordBeforeTheFenceIsHeard(t *testing.T) {
	t.Parallel()
	for verb, answered := range map[string]bool{"result done": true, "error error_during_execution 0 Request was aborted.": false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		req := backendtest.NewRequest(t, backendtest.Script("init", "text nearly there", verb, "write said x", "hang"))
		steps := transcript.NewWriter(func(s transcript.Step) {
			if s.Type != transcript.Action {
				return
			}
			// While this step is held up nothing more is heard.
			for said := false; !said && t.Context().Err() == nil; time.Sleep(10 * time.Millisecond) {
				_, err := os.Stat(filepath.Join(req.Dir, "said"))
				said = err == nil
			}
			cancel(work.ErrFenced)
			for len(backendtest.Processes(req)) > 0 {
				time.Sleep(10 * time.Millisecond)
			}
		}, nil)
		result, err := fake(t).Execute(ctx, req, steps)
		if err != nil || result.Success != answered || result.Error != nil || answered && result.Output != "done" {
			t.Errorf("%s: %v, %+v", verb, err, result)
		}
	}
}

func TestDeadlineIsATimeout(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	got := backendtest.Execute(ctx, t, fake(t), backendtest.NewRequest(t, backendtest.Script("ignore", "init", "daemon", "hang")))
	got.WantFailure(t, work.ClassTimeout)
	if !got.CostIncomplete {
		t.Error("the cost is not marked as incomplete")
	}
}

func TestLongLines(t *testing.T) {
	got := backendtest.Execute(t.Context(), t, fake(t), backendtest.NewRequest(t, backendtest.Script("init", "line 20000000", "line 40000000", "result fine")))
	got.WantStep(t, transcript.SystemText, "a line of 40000000 bytes")
	texts := got.Texts(transcript.Action)
	if len(texts) != 1 || len(texts[0]) > transcript.MaxResult+100 || !strings.Contains(texts[0], "[cut: ") {
		t.Errorf("%d texts, the first of %d bytes", len(texts), len(strings.Join(texts, "")))
	}
}

func TestTooMuchOutput(t *testing.T) {
	c := fake(t)
	c.MaxOutput = 5 << 20
	got := backendtest.Execute(t.Context(), t, c, backendtest.NewRequest(t, backendtest.Script("init", "line 3000000", "line 3000000", "hang")))
	got.WantFailure(t, work.ClassInvalidRequest, "more than 5 MiB")
}

func TestEnvironmentIsAllowListed(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://secret")
	t.Setenv("CLAUDE_CODE_ENTRYPOINT", "outer")
	c := fake(t)
	c.Env = []string{"ANTHROPIC_API_KEY=sk-secret-value", "PATH=/usr/bin:/bin", "CLAUDE_CODE_DISABLE_ATTACHMENTS=0"}
	req := backendtest.NewRequest(t, backendtest.Script("init", "env", "result the key is sk-secret-value"))
	got := backendtest.Execute(t.Context(), t, c, req)
	got.WantSuccess(t, "the key is [redacted]")
	env := strings.Split(strings.Join(got.Texts(transcript.Action), "\n"), "\n")
	for _, want := range []string{
		"ANTHROPIC_API_KEY=[redacted]", "HOME=" + req.Home, "CLAUDE_CONFIG_DIR=" + req.Home + "/.claude", "TERM=dumb",
		"PATH=/usr/bin:/bin", "CLAUDE_CODE_DISABLE_ATTACHMENTS=1", "TMPDIR=" + req.Home + "/tmp",
		"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1", "DISABLE_AUTOUPDATER=1",
	} {
		if !slices.Contains(env, want) {
			t.Errorf("the environment lacks %s", want)
		}
	}
	for _, entry := range env {
		if strings.HasPrefix(entry, "DATABASE_URL") || strings.HasPrefix(entry, "CLAUDE_CODE_ENTRYPOINT") ||
			strings.HasPrefix(entry, "IS_SANDBOX") || strings.Contains(entry, "sk-secret") {
			t.Errorf("the environment has %s", entry)
		}
	}
}

func TestRateLimitTellsWhenItEnds(t *testing.T) {
	got := backendtest.Execute(t.Context(), t, fake(t), backendtest.NewRequest(t, backendtest.Script("init", "ratelimit 1800000000", "error success 429 You have hit your limit")))
	got.WantFailure(t, work.ClassRateLimit)
	if want := time.Unix(1800000000, 0).UTC(); !got.Error.ResetAt.Equal(want) {
		t.Errorf("reset at %v, want %v", got.Error.ResetAt, want)
	}
}

func TestAvailable(t *testing.T) {
	for _, name := range dialects {
		if err := fakeAs(t, name).Available(t.Context()); err != nil {
			t.Error(err)
		}
		variable := "PIECEWORK_" + strings.ToUpper(name) + "_PATH"
		for _, path := range []string{"/nonexistent/agent", "no-such-agent", "/bin/false"} {
			err := fakeAs(t, name, func(c *cli.Options) { c.Path = path }).Available(t.Context())
			if err == nil || !strings.Contains(err.Error(), variable) {
				t.Errorf("%s %s: %v", name, path, err)
			}
		}
		got := backendtest.Execute(t.Context(), t, fakeAs(t, name, func(c *cli.Options) { c.Path = "/nonexistent/agent" }), backendtest.NewRequest(t, "hi"))
		got.WantFailure(t, work.ClassInfra, variable)
	}
}
