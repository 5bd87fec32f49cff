package conformance

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// cutShort runs a request until the agent has called a tool, and ends it there.
func cutShort(t *testing.T, b backend.Backend, req backend.Request, cause error) backend.Result {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	steps := transcript.NewWriter(func(s transcript.Step) {
		if s.Type == transcript.Action {
			cancel(cause)
		}
	}, nil)
	result, err := b.Execute(ctx, req, steps)
	if err != nil || result.Success {
		t.Errorf("%v, %+v", err, result)
	}
	backendtest.WantNoProcess(t, req)
	return result
}

// nextRun is the request of the run after one that was cut off.
func nextRun(req backend.Request, former backend.Result) backend.Request {
	req.Resume, req.Attempt = true, req.Attempt+1
	if former.Metadata.SessionID != "" {
		req.SessionID = former.Metadata.SessionID
	}
	req.SessionCostUSD += backend.USD(former.Metadata.TotalCostUSD)
	return req
}

// recordOf finds the file in which an agent keeps a session.
func recordOf(t *testing.T, name string, req backend.Request) string {
	t.Helper()
	pattern := map[string]string{
		"claude": ".claude/projects/*/*.jsonl", "codex": ".codex/sessions/*/*/*/*.jsonl", "cursor": ".cursor/chats/*",
		"opencode": ".local/share/opencode/*", "gemini": ".gemini/tmp/*/chats/*.jsonl",
	}[name]
	paths, _ := filepath.Glob(filepath.Join(req.Home, pattern))
	if len(paths) != 1 {
		t.Fatalf("records %q", paths)
	}
	return paths[0]
}

// What a run was told is what its agent says back: the fake one answers a
// prompt without a script with the prompt.
func TestResumedSessionIsToldToGoOn(t *testing.T) {
	prompt := backendtest.Script("init", "text half", `tool Bash {"command":"ls"}`, "setsid", "hang")
	for _, name := range dialects {
		for _, test := range []struct {
			name   string
			change func(t *testing.T, req *backend.Request)
			goesOn bool
			note   string
		}{
			{"it holds the prompt", func(*testing.T, *backend.Request) {}, true, ""},
			{"it is gone", func(t *testing.T, req *backend.Request) {
				if err := os.Remove(recordOf(t, name, *req)); err != nil {
					t.Fatal(err)
				}
			}, false, "from the beginning"},
			{"it lacks the prompt", func(t *testing.T, req *backend.Request) {
				path := recordOf(t, name, *req)
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "@@ hang", "")), 0o600); err != nil {
					t.Fatal(err)
				}
				if name == "cursor" || name == "opencode" { // they are remembered when the model has begun
					if err := os.Remove(filepath.Join(req.Home, name+"-session")); err != nil {
						t.Fatal(err)
					}
				}
			}, false, ""},
			{"another unit's home", func(t *testing.T, req *backend.Request) { req.Home = t.TempDir() }, false, "from the beginning"},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				b := fakeAs(t, name)
				req := backendtest.NewRequest(t, prompt)
				req = nextRun(req, cutShort(t, b, req, work.ErrTimeout))
				test.change(t, &req)
				if test.goesOn {
					got := backendtest.Execute(t.Context(), t, b, req)
					got.WantSuccess(t, cli.ResumePrompt)
					return
				}
				got := cutShort(t, b, req, work.ErrShutdown) // the prompt is done once more
				if got.Output != "half" {
					t.Errorf("the prompt was not given again: %q", got.Output)
				}
			})
		}
	}
}

// Cost and tokens of a resumed run are its own.
func TestResumedRunCountsItsOwn(t *testing.T) {
	for _, name := range dialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := fakeAs(t, name)
			req := backendtest.NewRequest(t, backendtest.Script("init", "text half", `tool Bash {}`, "toolresult ok", `tool Bash {}`, "toolresult ok", "hang"))
			first := cutShort(t, b, req, work.ErrTimeout)
			got := backendtest.Execute(t.Context(), t, b, nextRun(req, first))
			got.WantSuccess(t, cli.ResumePrompt)
			if m := got.Metadata; m.NumTurns != 1 || m.Usage.OutputTokens != 10 || m.SessionID != first.Metadata.SessionID {
				t.Errorf("metadata %+v", m)
			}
		})
	}
}

// An answer that does not fit is asked for once more, in its session.
func TestSchemaOnEveryAgent(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","required":["a"]}`)
	for _, name := range dialects {
		for _, test := range []struct {
			name   string
			script []string
			change func(*backend.Request)
			class  work.Class
			turns  int
			asked  bool
		}{
			{name: "fits", script: []string{"init", `result {"a":1}`}, turns: 1},
			{name: "does not fit", script: []string{"init", `result {"b":1}`}, class: work.ClassSchemaInvalid, turns: 2, asked: true},
			{name: "no turn is left", script: []string{"init", `result {"b":1}`}, change: func(r *backend.Request) { r.MaxTurns = 1 },
				class: work.ClassSchemaInvalid, turns: 1},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				req := backendtest.NewRequest(t, backendtest.Script(test.script...))
				req.OutputSchema = schema
				if test.change != nil {
					test.change(&req)
				}
				got := backendtest.Execute(t.Context(), t, fakeAs(t, name), req)
				if test.class == "" {
					got.WantSuccess(t, `{"a":1}`)
				} else {
					got.WantFailure(t, test.class)
				}
				if asked := strings.Contains(strings.Join(got.Texts(transcript.SystemText), "\n"), "asking once more"); asked != test.asked || got.Metadata.NumTurns != test.turns {
					t.Errorf("asked once more: %v; %d turns", asked, got.Metadata.NumTurns)
				}
				if test.asked && !strings.Contains(got.Output+strings.Join(got.Texts(transcript.Action), ""), "does not fit output_schema") {
					t.Errorf("it was not told what is wrong: %q", got.Output)
				}
			})
		}
	}
}

// A budget is kept by us where the agent tells what it has used while it works.
func TestMaxCostIsKept(t *testing.T) {
	call := []string{`tool Bash {"command":"ls"}`, "toolresult a.txt"}
	script := append(append(append([]string{"init", "text so far"}, call...), call...), "setsid", "hang")
	for _, name := range []string{"codex", "opencode", "gemini"} {
		ask := func(model string, dollars float64, lines ...string) backend.Request {
			req := backendtest.NewRequest(t, backendtest.Script(lines...))
			req.Model, req.MaxCostUSD = model, &dollars
			if name == "opencode" && model != "" {
				req.Model = "fake/" + model
			}
			return req
		}
		t.Run(name+"/reached", func(t *testing.T) {
			t.Parallel()
			got := backendtest.Execute(t.Context(), t, fakeAs(t, name), ask("fake-model", 0.0002, script...))
			got.WantFailure(t, work.ClassMaxCost, "max_cost_usd ($0.0002)", "$0.00026")
			if got.Metadata.TotalCostUSD == nil || *got.Metadata.TotalCostUSD != 0.00026 || got.Output != "so far" {
				t.Errorf("cost %v, output %q", backend.USD(got.Metadata.TotalCostUSD), got.Output)
			}
		})
		t.Run(name+"/faster than the check", func(t *testing.T) {
			t.Parallel()
			got := backendtest.Execute(t.Context(), t, fakeAs(t, name), ask("fake-model", 0.0001, "init", "result fine"))
			got.WantFailure(t, work.ClassMaxCost, "max_cost_usd ($0.0001)")
		})
		t.Run(name+"/within", func(t *testing.T) {
			t.Parallel()
			backendtest.Execute(t.Context(), t, fakeAs(t, name), ask("fake-model", 1, "init", "result fine")).WantSuccess(t, "fine")
		})
		for _, model := range []string{"nobody-knows", "", "free"} {
			t.Run(name+"/price of "+model, func(t *testing.T) {
				t.Parallel()
				got := backendtest.Execute(t.Context(), t, fakeAs(t, name), ask(model, 1, "init", "result fine"))
				got.WantFailure(t, work.ClassInvalidRequest, "max_cost_usd", model)
				if len(got.Steps) > 0 {
					t.Errorf("it was begun: %+v", got.Steps)
				}
			})
		}
	}
	t.Run("opencode knows a price", func(t *testing.T) {
		t.Parallel()
		req := backendtest.NewRequest(t, backendtest.Script("init", "cost 0.25", "result fine"))
		req.Model, req.MaxCostUSD = "fake/priced", new(0.2)
		got := backendtest.Execute(t.Context(), t, fakeAs(t, "opencode"), req)
		got.WantFailure(t, work.ClassMaxCost, "$0.25")
	})
}

// A run without a price has no cost: never a guess.
func TestCostWithoutAPrice(t *testing.T) {
	for _, name := range []string{"codex", "cursor", "gemini"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := backendtest.Execute(t.Context(), t, fakeAs(t, name, func(c *cli.Options) { c.Prices = nil }), backendtest.NewRequest(t, backendtest.Script("init", "result fine")))
			got.WantSuccess(t, "fine")
			if got.Metadata.TotalCostUSD != nil || got.CostIncomplete {
				t.Errorf("%+v", got.Result)
			}
		})
	}
}

// Claude Code counts the cost of its session: the run's own is what came on top,
// and the sum is told, from which the database takes it when ends come late.
func TestClaudeCountsTheCostOfItsSession(t *testing.T) {
	req := backendtest.NewRequest(t, backendtest.Script("init", "cost 0.25", "result one"))
	b := fake(t)
	first := backendtest.Execute(t.Context(), t, b, req)
	first.WantSuccess(t, "one")
	again := nextRun(req, first.Result)
	again.SessionCostUSD = 0 // the end of the first is not in the database yet
	again.Prompt = backendtest.Script("init", "cost 0.5", "result two")
	for i, want := range []struct{ cost, total float64 }{{0.25, 0.25}, {0.75, 0.75}} {
		m := first.Metadata
		if i == 1 {
			second := backendtest.Execute(t.Context(), t, b, again)
			m = second.Metadata
		}
		if backend.USD(m.TotalCostUSD) != want.cost || backend.USD(m.SessionTotalUSD) != want.total || m.SessionResumed != (i == 1) {
			t.Errorf("run %d: cost %v, session %v, resumed %v", i+1, backend.USD(m.TotalCostUSD), backend.USD(m.SessionTotalUSD), m.SessionResumed)
		}
	}
}
