package conformance

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// realSession is a real client in front of a model that first calls a tool
// which does not end, and then is done.
type realSession struct {
	b   backend.Backend
	req backend.Request
	// then has the model answer whatever comes.
	then func()
	// body is the newest request that reached the model.
	body func() string
}

// inTool is a command that tells the test by a pipe that it has begun, and does
// not end.
const inTool = "echo begun > begun; tail -f /dev/null | cat"

// written waits until Claude Code has written the call down, a moment after it
// began.
const written = "until grep -rqs begun $HOME/.claude/projects; do sleep 0.1; done; "

// cutInTool runs a request until its tool has begun, and ends it there.
func cutInTool(t *testing.T, b backend.Backend, req backend.Request, cause error) backend.Result {
	t.Helper()
	pipe := filepath.Join(req.Dir, "begun")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		_, _ = os.ReadFile(pipe) // waits for the writer
		cancel(cause)
	}()
	result, err := b.Execute(ctx, req, transcript.NewWriter(nil, nil))
	if err != nil || result.Success || ctx.Err() == nil {
		t.Errorf("%v, %+v, error %v", err, result, result.Error)
	}
	backendtest.WantNoProcess(t, req)
	return result
}

func realSessions() map[string]func(*testing.T) realSession {
	const waits = inTool
	served := func(b backend.Backend, req backend.Request, model *fakemodel.Server) realSession {
		return realSession{b, req, func() { model.Script(fakemodel.Turn{Text: "done"}) }, func() string {
			requests := model.Requests()
			return string(requests[len(requests)-1].Body)
		}}
	}
	return map[string]func(*testing.T) realSession{
		"claude": func(t *testing.T) realSession {
			c, model := real(t)
			model.Script(fakemodel.Turn{Text: "I wait", Calls: []fakemodel.Call{bash(written + waits)}}, fakemodel.Turn{Text: "done"})
			return served(c, realRequest(t, "/watch the kettle"), model)
		},
		"codex": func(t *testing.T) realSession {
			c, model := realCodex(t, codexTurn{text: "I wait", call: waits}, codexTurn{text: "done"})
			return realSession{c, codexRequest(t, "/watch the kettle"), func() {}, func() string {
				sent := model.sent()
				return sent[len(sent)-1]
			}}
		},
		"opencode": func(t *testing.T) realSession {
			o, model := realOpenCode(t, fakemodel.Turn{Text: "I wait", Calls: []fakemodel.Call{openCodeShell(waits)}}, fakemodel.Turn{Text: "done"})
			return served(o, openCodeRequest(t, "/watch the kettle"), model)
		},
		"gemini": func(t *testing.T) realSession {
			g, model := realGemini(t, fakemodel.Turn{Text: "I wait", Calls: []fakemodel.Call{geminiShell(waits)}}, fakemodel.Turn{Text: "done"})
			return served(g, geminiRequest(t, "watch the kettle"), model)
		},
	}
}

// Whatever ended a run inside a tool, the next one's model gets the old
// conversation, prompt and files once, and is told to go on.
func TestRealSessionsGoOn(t *testing.T) {
	t.Parallel()
	png, _ := base64.StdEncoding.DecodeString(backendtest.OnePixel)
	for name, start := range realSessions() {
		for _, test := range []struct {
			name  string
			cause error
			lost  bool // killed at once, and nobody heard its result
		}{
			{"lost", work.ErrFenced, true},
			{"timeout", work.ErrTimeout, false},
			{"shutdown", work.ErrShutdown, false},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				s := start(t)
				backendtest.Attach(t, &s.req, "dot.png", png)
				first := cutInTool(t, s.b, s.req, test.cause)
				if test.lost {
					first = backend.Result{}
				}
				s.then()
				next := nextRun(s.req, first)
				got := backendtest.Execute(t.Context(), t, s.b, next)
				got.WantSuccess(t, "done")
				body := s.body()
				for _, words := range []string{"watch the kettle", "I wait", "tail -f /dev/null", cli.ResumePrompt} {
					if name == "gemini" && words == "tail -f /dev/null" {
						continue // it does not write down a call without an answer
					}
					if n := strings.Count(body, words); n != 1 {
						t.Errorf("the model got %q %d times", words, n)
					}
				}
				if n := strings.Count(body, backendtest.OnePixel); n != 1 && name != "gemini" { // to it a file is a name
					t.Errorf("the model got the image %d times", n)
				}
				m := got.Metadata
				if m.Usage.OutputTokens != 10 || m.NumTurns != 1 || name != "codex" && name != "opencode" && m.SessionID != s.req.SessionID {
					t.Errorf("metadata %+v", m)
				}
				if cost := map[string]float64{"claude": 0.00045, "opencode": 0.00045}[name]; cost > 0 && backend.USD(m.TotalCostUSD) != cost && !test.lost { // what was lost comes on top, if the client knows it
					t.Errorf("cost %v after %v", backend.USD(m.TotalCostUSD), backend.USD(first.Metadata.TotalCostUSD))
				}
			})
		}
	}
}
