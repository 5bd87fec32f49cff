package backend

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// keeper is what the agents are started with, as in the program.
var keeper process.Keeper

// startMain is what the TestMain of a package begins with whose tests run agents.
func startMain() {
	keeper = process.Main(os.Args, os.Environ())
	fakecli.Main()
}

func TestMain(m *testing.M) {
	startMain()
	if os.Getenv(asWorker) != "" {
		beWorker()
	}
	os.Exit(m.Run())
}

// patience is how long a run that is to end may take: for ever, on any machine
// that works.
const patience = 2 * time.Minute

// trial is one run of a backend in a test.
type trial struct {
	Result
	err   error
	took  time.Duration
	steps []transcript.Step
}

func request(t *testing.T, prompt string) Request {
	t.Helper()
	home := t.TempDir()
	dir := filepath.Join(home, "work")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return Request{
		UnitID: uuid.New(), RunID: uuid.New(), Attempt: 1, Prompt: prompt, Home: home, Dir: dir,
		SessionID: uuid.NewString(), IdleTimeout: time.Hour,
	}
}

// try runs a request and sees that nothing of it is left. A run that does not
// end fails as one that was out of time.
func try(ctx context.Context, t *testing.T, b Backend, req Request) trial {
	t.Helper()
	steps := transcript.NewWriter(nil, transcript.Redactor([]string{"sk-secret-value"}))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	started := time.Now()
	result, err := b.Execute(ctx, req, steps)
	got := trial{Result: result, err: err, took: time.Since(started), steps: steps.Steps()}
	if err != nil {
		t.Errorf("Execute: %v", err)
	}
	wantNothingLeft(t, req)
	return got
}

func wantNothingLeft(t *testing.T, req Request) {
	t.Helper()
	if pids := processesOf(req); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
}

func processesOf(req Request) []int {
	return process.Marked(func(mark string) bool { return strings.HasPrefix(mark, req.RunID.String()+"@") })
}

func fake(t *testing.T) *Claude {
	t.Helper()
	return &Claude{CLI: fakeCLI(fakecli.Build(t))}
}

// fakePrices has what the fake agents' model costs: a call of 100 tokens in and
// 10 out, 40 of the 100 from a cache or not, costs 130 micro-dollars.
const fakePrices = `[{"model": "fake-model", "input": 1, "cache_read": 1, "output": 3}, {"model": "priced", "input": 1, "cache_read": 1, "output": 3}]`

// fakeCLI runs a fake agent with little patience.
func fakeCLI(path string) CLI {
	prices, err := ReadPrices([]byte(fakePrices))
	if err != nil {
		panic(err)
	}
	return CLI{
		Path: path, Keeper: keeper, Prices: prices, grace: 300 * time.Millisecond,
		ladder: process.Ladder{Interrupt: 500 * time.Millisecond, Terminate: 300 * time.Millisecond},
	}
}

// script makes a prompt of the fake agent's verbs.
func verbs(lines ...string) string { return "@@ " + strings.Join(lines, "\n@@ ") }

func (got trial) wantSuccess(t *testing.T, output string) {
	t.Helper()
	if !got.Success || got.Error != nil || got.Output != output {
		t.Errorf("success %v, error %v, output %.200q; want success with %q", got.Success, got.Error, got.Output, output)
	}
}

func (got trial) wantFailure(t *testing.T, class work.Class, words ...string) {
	t.Helper()
	if got.Success || got.Error == nil || got.Error.Class != class {
		t.Fatalf("success %v, error %v; want a failure of class %s", got.Success, got.Error, class)
	}
	for _, word := range words {
		if !strings.Contains(got.Error.Message, word) {
			t.Errorf("message %q lacks %q", got.Error.Message, word)
		}
	}
}

func (got trial) texts(kind string) (texts []string) {
	for _, s := range got.steps {
		if s.Type == kind && kind != transcript.Action {
			texts = append(texts, s.Text)
		}
		for _, c := range s.Content {
			if kind == transcript.Action && c.Type == transcript.Text {
				texts = append(texts, c.Text)
			}
		}
	}
	return texts
}

func (got trial) wantStep(t *testing.T, kind, part string) {
	t.Helper()
	if !slices.ContainsFunc(got.texts(kind), func(s string) bool { return strings.Contains(s, part) }) {
		t.Errorf("no %s step has %q: %.500q", kind, part, got.texts(kind))
	}
}

func TestAgentAnswers(t *testing.T) {
	req := request(t, verbs("init", "text I look", `tool Bash {"command":"ls"}`, "toolresult a.txt", "text done",
		"cost 0.25", "turns 2", "result all is well"))
	req.SessionCostUSD = 0.1
	got := try(t.Context(), t, fake(t), req)
	got.wantSuccess(t, "all is well")
	m := got.Metadata
	if m.SessionID != req.SessionID || m.Model != "fake-model" || m.NumTurns != 2 || m.DurationMS < 1 || m.Usage.InputTokens != 200 {
		t.Errorf("metadata %+v", m)
	}
	if m.TotalCostUSD == nil || *m.TotalCostUSD != 0.15 || got.CostIncomplete {
		t.Errorf("cost %v incomplete %v, want the difference 0.15", m.TotalCostUSD, got.CostIncomplete)
	}
	kinds := []string{}
	for _, s := range got.steps {
		kinds = append(kinds, s.Type)
	}
	if want := []string{"system_text", "action", "tool_result", "action"}; !slices.Equal(kinds, want) {
		t.Fatalf("steps %v, want %v", kinds, want)
	}
	action := got.steps[1].Content
	if len(action) != 2 || action[1].Name != "Bash" || action[1].Args != `{"command":"ls"}` ||
		got.steps[2].CallID != action[1].ID || got.steps[2].Name != "Bash" || got.steps[2].Text != "a.txt" {
		t.Errorf("the call and its result: %+v", got.steps[1:3])
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
				got := try(t.Context(), t, fakeAs(t, name), request(t, verbs(test.script...)))
				if test.class != "" {
					got.wantFailure(t, test.class, test.words)
					if slices.Contains(test.script, "text so far") && got.Output != "so far" {
						t.Errorf("the partial output is %q", got.Output)
					}
					return
				}
				got.wantSuccess(t, "fine")
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
				req := request(t, verbs(test.script...))
				req.IdleTimeout = 500 * time.Millisecond
				req.StartupTimeout = 700 * time.Millisecond
				got := try(t.Context(), t, fakeAs(t, name), req)
				got.wantFailure(t, work.ClassHang, test.words)
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
				req := request(t, verbs("init", "cost 0.5", "text half an answer", "setsid", "hang"))
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
				if told := cost != nil && *cost == 0.5; Can(name, work.CanCost) && !told && !result.CostIncomplete {
					t.Errorf("the cost is lost: %v", cost)
				}
				if test.class == "" && result.Error != nil || test.class != "" && (result.Error == nil || result.Error.Class != test.class) {
					t.Errorf("error %v, want class %q", result.Error, test.class)
				}
				wantNothingLeft(t, req)
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
			req := request(t, verbs("ignore", "init", "text still working", "daemon", "hang"))
			steps := transcript.NewWriter(func(s transcript.Step) {
				if s.Type == transcript.Action {
					cancel(work.ErrFenced)
				}
			}, nil)
			agent := fakeAs(t, name, func(c *CLI) { c.ladder = process.Ladder{Interrupt: time.Hour, Terminate: time.Hour} })
			result, err := agent.Execute(ctx, req, steps)
			if err != nil || result.Success || result.Error != nil || result.CostIncomplete != Can(name, work.CanCost) {
				t.Errorf("%v, %+v", err, result)
			}
			wantNothingLeft(t, req)
		})
	}
}

// What an agent had answered before it was killed counts: a worker process that
// was frozen finds the result in the pipe. That it was cut off is no answer.
func TestLastWordBeforeTheFenceIsHeard(t *testing.T) {
	t.Parallel()
	for verb, answered := range map[string]bool{"result done": true, "error error_during_execution 0 Request was aborted.": false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		req := request(t, verbs("init", "text nearly there", verb, "write said x", "hang"))
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
			for len(processesOf(req)) > 0 {
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
	got := try(ctx, t, fake(t), request(t, verbs("ignore", "init", "daemon", "hang")))
	got.wantFailure(t, work.ClassTimeout)
	if !got.CostIncomplete {
		t.Error("the cost is not marked as incomplete")
	}
}

func TestLongLines(t *testing.T) {
	got := try(t.Context(), t, fake(t), request(t, verbs("init", "line 20000000", "line 40000000", "result fine")))
	got.wantStep(t, transcript.SystemText, "a line of 40000000 bytes")
	texts := got.texts(transcript.Action)
	if len(texts) != 1 || len(texts[0]) > transcript.MaxResult+100 || !strings.Contains(texts[0], "[cut: ") {
		t.Errorf("%d texts, the first of %d bytes", len(texts), len(strings.Join(texts, "")))
	}
}

func TestTooMuchOutput(t *testing.T) {
	c := fake(t)
	c.maxOutput = 5 << 20
	got := try(t.Context(), t, c, request(t, verbs("init", "line 3000000", "line 3000000", "hang")))
	got.wantFailure(t, work.ClassInvalidRequest, "more than 5 MiB")
}

func TestEnvironmentIsAllowListed(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://secret")
	t.Setenv("CLAUDE_CODE_ENTRYPOINT", "outer")
	c := fake(t)
	c.Env = []string{"ANTHROPIC_API_KEY=sk-secret-value", "PATH=/usr/bin:/bin", "CLAUDE_CODE_DISABLE_ATTACHMENTS=0"}
	req := request(t, verbs("init", "env", "result the key is sk-secret-value"))
	got := try(t.Context(), t, c, req)
	got.wantSuccess(t, "the key is [redacted]")
	env := strings.Split(strings.Join(got.texts(transcript.Action), "\n"), "\n")
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
	got := try(t.Context(), t, fake(t), request(t, verbs("init", "ratelimit 1800000000", "error success 429 You have hit your limit")))
	got.wantFailure(t, work.ClassRateLimit)
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
			err := fakeAs(t, name, func(c *CLI) { c.Path = path }).Available(t.Context())
			if err == nil || !strings.Contains(err.Error(), variable) {
				t.Errorf("%s %s: %v", name, path, err)
			}
		}
		got := try(t.Context(), t, fakeAs(t, name, func(c *CLI) { c.Path = "/nonexistent/agent" }), request(t, "hi"))
		got.wantFailure(t, work.ClassInfra, variable)
	}
}
