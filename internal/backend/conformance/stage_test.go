package conformance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/backend/cli/claude"
	"piecework/internal/backend/mock"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/testkit/fakemodel"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// action is one turn of a model, in words that every backend has a translation
// of.
type action struct {
	thinks string
	says   string
	echoes []string // what it has commands say, several at once
	fits   string   // an answer in the way that the backend asks for JSON
	ends   string   // other than well, see below

	status int           // in place of an answer
	words  string        // of that failure
	resets time.Duration // when the limit ends
}

// How a turn ends other than well.
const (
	endsEarly = "the stream ends in the middle"
	garbled   = "what comes is rubbish"
	breaks    = "whoever answers dies"
	silent    = "nothing more comes"
	declines  = "the model declines"
	tooLong   = "the answer reaches its longest length"
)

// The kinds of stages.
const (
	asAgent = "a fake agent"
	asAPI   = "an API"
	asMock  = "the mock"
	asReal  = "the real program"
)

// stage is a backend and what stands behind it.
type stage struct {
	name, kind string
	api        string // of a backend that has several
	b          backend.Backend
	model      *fakemodel.Server // of an API and of a real program
}

func (s stage) title() string {
	if s.kind == asReal {
		return s.name + " itself"
	}
	return s.name + s.api
}

// stages are all eight backends.
func stages() []stage {
	all := []stage{}
	for _, name := range backend.Names {
		switch {
		case slices.Contains(dialects, name):
			all = append(all, stage{name: name, kind: asAgent})
		case name == "openai":
			all = append(all, stage{name: name, kind: asAPI}, stage{name: name, kind: asAPI, api: " responses"})
		case name == "mock":
			all = append(all, stage{name: name, kind: asMock, b: mock.Backend{}})
		default:
			all = append(all, stage{name: name, kind: asAPI})
		}
	}
	return all
}

// realStages are the real programs.
func realStages() []stage {
	all := []stage{}
	for _, name := range dialects {
		if realModels[name] != "" {
			all = append(all, stage{name: name, kind: asReal})
		}
	}
	return all
}

// open brings up what the stage stands on.
func (s stage) open(t *testing.T) stage {
	t.Helper()
	switch s.kind {
	case asAgent:
		s.b = fakeAs(t, s.name)
	case asAPI:
		s.model = fakemodel.Start(t)
		apis := modelAPIs(t, s.model.URL)
		s.b = apis[map[string]string{"anthropic": "anthropic", "openai": "chat", "openai responses": "responses"}[s.name+s.api]]
	case asReal:
		s.model = fakemodel.Start(t)
		s.b = realAs(t, s.name, s.model.URL)
	}
	return s
}

// realAs is a real program that talks to a model of our own.
func realAs(t *testing.T, name, url string) backend.Backend {
	t.Helper()
	key := "sk-secret-value"
	prices, err := backend.ReadPrices(nil)
	if err != nil {
		t.Fatal(err)
	}
	cli := cli.Options{Path: fakecli.Real(t, name), Supervisor: backendtest.Supervisor, Prices: prices, Env: map[string][]string{
		"claude":   {"ANTHROPIC_API_KEY=" + key, "ANTHROPIC_BASE_URL=" + url, "CLAUDE_CODE_MAX_RETRIES=1"},
		"codex":    {"OPENAI_API_KEY=" + key, "OPENAI_BASE_URL=" + url + "/v1"},
		"opencode": {"ANTHROPIC_API_KEY=" + key, "ANTHROPIC_BASE_URL=" + url},
		"gemini":   {"GEMINI_API_KEY=" + key, "GOOGLE_GEMINI_BASE_URL=" + url},
	}[name]}
	if name == "claude" {
		return &claude.Backend{Options: cli, AllowedTools: []string{"Bash"}}
	}
	return backendAs(name, cli)
}

// realModels are names that the programs take.
var realModels = map[string]string{
	"claude": testModel, "codex": "gpt-5", "opencode": "anthropic/claude-sonnet-4-5", "gemini": "gemini-2.5-pro",
}

// play has what stands behind the backend do these actions for the request.
func (s stage) play(t *testing.T, req *backend.Request, actions []action) {
	t.Helper()
	switch s.kind {
	case asAgent:
		if req.Model = "fake-model"; s.name == "opencode" {
			req.Model = "fake/priced"
		}
		if len(actions) > 0 {
			req.Prompt = backendtest.Script(agentScript(s.name, *req, actions)...) + "\n" + req.Prompt
		}
	case asMock:
		s.playMock(t, req, actions)
	default:
		if s.kind == asReal {
			req.Model = realModels[s.name]
		}
		if len(actions) > 0 { // by a mark: what comes later in the conversation belongs to it too
			s.model.ScriptFor("case", s.turns(*req, actions)...)
			req.Prompt = "[[script:case]] " + req.Prompt
		}
	}
}

// turns are the actions as a model server does them.
func (s stage) turns(req backend.Request, actions []action) []fakemodel.Turn {
	var turns []fakemodel.Turn
	for _, d := range actions {
		turn := fakemodel.Turn{Thinking: d.thinks, Text: d.says, Status: d.status, ErrorMessage: d.words}
		if d.resets > 0 {
			turn.Headers = map[string]string{"retry-after": fmt.Sprint(int(d.resets.Seconds()))}
		}
		for _, word := range d.echoes {
			turn.Calls = append(turn.Calls, echo(s.name, word))
		}
		if d.fits != "" {
			turn.Text = d.fits
			if s.name == "claude" && s.kind == asReal {
				turn.Text, turn.Calls = "", []fakemodel.Call{{Name: "StructuredOutput", Input: json.RawMessage(d.fits)}}
			}
		}
		switch d.ends {
		case endsEarly:
			turn.Cut = true
		case breaks:
			turn.Cut, turn.Broken = true, true
		case garbled:
			turn.Raw = "data: {\"no\n\ndata: <html>\n\n"
		case declines:
			turn.StopReason = "refusal"
		case tooLong:
			turn.StopReason = "max_tokens"
		case silent:
			turn.Drip = 3 * time.Millisecond // slow enough to be stopped in the middle
			if req.IdleTimeout < quiet*2 {
				turn.Drip = time.Hour
			}
			if s.kind == asReal { // these show an answer when it is whole
				turn.Calls = []fakemodel.Call{echo(s.name, "something")}
				turns = append(turns, turn)
				turn = fakemodel.Turn{Silence: time.Hour}
			}
		}
		turns = append(turns, turn)
	}
	return turns
}

// echo is a command in the words of the client's own tool.
func echo(name, word string) fakemodel.Call {
	command := "echo " + word
	switch name {
	case "codex":
		return fakemodel.Call{Name: "exec_command", Input: map[string]string{"cmd": command}}
	case "opencode":
		return openCodeShell(command)
	case "gemini":
		return geminiShell(command)
	}
	return bash(command)
}

// agentScript are the actions as the lines of a fake agent. What the real client
// does by itself, such as keeping a limit, is done here in its place.
func agentScript(name string, req backend.Request, actions []action) []string {
	script := []string{"init"}
	says := func(lines ...string) { script = append(script, lines...) }
	if req.MaxCostUSD != nil {
		says("cost 1")
		if name == "opencode" { // the fake one tells of it with its last answer only
			actions = actions[len(actions)-1:]
		}
	}
	for n, d := range actions {
		switch {
		case name == "claude" && req.MaxTurns > 0 && n == req.MaxTurns && req.OutputSchema == nil:
			return append(script, "error error_max_turns 0 Reached maximum number of turns")
		case name == "claude" && req.MaxCostUSD != nil && n > 0:
			return append(script, "error error_max_budget_usd 0 Reached maximum budget")
		case d.fits != "":
			return append(script, agentAnswers(name, req, actions[n:])...)
		}
		last := n == len(actions)-1
		if d.says != "" && (!last || d.ends != "" || d.status > 0) {
			says("text " + d.says)
		}
		for _, word := range d.echoes {
			says(`tool Bash {"command":"echo ` + word + `"}`)
		}
		for _, word := range d.echoes {
			says("toolresult " + word)
		}
		says(agentEnd(name, d, last)...)
	}
	return script
}

// agentAnswers gives JSON in the client's way. Claude Code has the model mend
// an answer by itself; the others are started once more.
func agentAnswers(name string, req backend.Request, actions []action) []string {
	fits := func(d action) bool {
		schema, _ := backend.CompileSchema(req.OutputSchema)
		return backend.CheckOutput(schema, d.fits) == nil
	}
	if name != "claude" {
		lines := agentSays(name, actions[0].fits)
		for _, d := range actions[1:] {
			kept := []string{"next init"}
			for _, line := range agentSays(name, d.fits) {
				kept = append(kept, "next "+line)
			}
			lines = append(kept, lines...)
		}
		return lines
	}
	for _, d := range actions {
		if fits(d) {
			return []string{"text " + d.fits, "structured " + d.fits, "result " + d.fits}
		}
	}
	return []string{"text " + actions[0].fits, "error error_max_structured_output_retries 0 Failed to provide valid structured output"}
}

// agentSays gives an answer; Cursor says it before it says that it is done.
func agentSays(name, answer string) []string {
	if name == "cursor" {
		return []string{"text " + answer, "result " + answer}
	}
	return []string{"result " + answer}
}

func agentEnd(name string, d action, last bool) []string {
	switch d.ends {
	case endsEarly:
		return []string{"error success 0 API Error: stream disconnected before completion"}
	case breaks:
		return []string{"kill"}
	case silent:
		return []string{"hang"}
	case garbled:
		return []string{"raw <html>", `raw {"type":"`, "nul", "exit 0"}
	case declines, tooLong:
		return agentStops[d.ends][name]
	}
	if d.status > 0 {
		words := fmt.Sprintf("API Error: %d %s", d.status, cmp.Or(d.words, http.StatusText(d.status)))
		lines := []string{}
		if d.resets > 0 {
			words += fmt.Sprintf(", try again in %v", d.resets)
			lines = append(lines, fmt.Sprintf("ratelimit %d", time.Now().Add(d.resets).Unix()))
		}
		return append(lines, fmt.Sprintf("error success %d %s", d.status, words))
	}
	switch {
	case !last:
		return nil
	case name == "claude" || name == "cursor": // the result repeats the answer
		return []string{"text " + d.says, "result " + d.says}
	}
	return []string{"result " + d.says}
}

// agentStops is how the clients tell that an answer is none: as the real ones
// do; Cursor's words are not known.
var agentStops = map[string]map[string][]string{
	declines: {
		"claude":   {`raw {"type":"result","subtype":"success","is_error":false,"result":"","stop_reason":"refusal","num_turns":1,"total_cost_usd":0.001}`},
		"codex":    {"error success 0 Incomplete response returned, reason: content_filter"},
		"cursor":   {"error success 0 The request was stopped by a content filter"},
		"opencode": {`raw {"type":"error","error":{"name":"ContentFilterError","data":{"message":"The model declined."}}}`},
		"gemini":   {"error success 0 The model response was blocked due to safety settings."},
	},
	tooLong: {
		"claude":   {"error success 0 API Error: Claude's response exceeded the 32000 output token maximum."},
		"codex":    {"error success 0 Incomplete response returned, reason: max_output_tokens"},
		"cursor":   {"error success 0 The response exceeded the output token limit"},
		"opencode": {`raw {"type":"step_finish","part":{"type":"step-finish","reason":"length","cost":0.001,"tokens":{"input":100,"output":10}}}`},
		"gemini":   {"result"}, // it does not tell
	},
}

// mockFails are the classes that the mock is asked for: it has no model that
// could do these things.
var mockFails = map[string]work.Class{
	endsEarly: work.ClassInfra, breaks: work.ClassCrash, garbled: work.ClassInfra, silent: work.ClassHang,
	declines: work.ClassRefusal, tooLong: work.ClassInvalidRequest,
}

func (s stage) playMock(t *testing.T, req *backend.Request, actions []action) {
	t.Helper()
	if len(actions) == 0 {
		return
	}
	last := actions[len(actions)-1]
	mock := map[string]any{"steps": len(actions)}
	if req.MaxCostUSD != nil {
		mock["cost_usd"] = 1
	}
	switch {
	case last.ends == silent && req.IdleTimeout > quiet*2:
		mock["sleep"] = 3600
	case last.ends != "":
		mock["fail"] = mockFails[last.ends]
	case last.status > 0:
		mock["fail"], mock["message"] = backend.ClassOfStatus(last.status), last.words
	default:
		mock["output"] = cmp.Or(last.fits, last.says)
	}
	payload, err := json.Marshal(map[string]any{"mock": mock})
	if err != nil {
		t.Fatal(err)
	}
	req.Payload = payload
}

// heard is the prompt as it reached the model, the first of them.
func (s stage) heard(got backendtest.Run) string {
	if s.model == nil {
		return got.Output
	}
	for _, r := range s.model.Requests() {
		if !r.Side {
			return r.Prompt()
		}
	}
	return ""
}

// given tells whether the model was given a file of this kind as what it is.
func (s stage) given(got backendtest.Run, kind string) bool {
	if s.model == nil {
		return slices.ContainsFunc(got.Texts(transcript.Action), func(text string) bool { return strings.HasPrefix(text, kind+" ") })
	}
	for _, r := range s.model.Requests() {
		for _, m := range r.Messages {
			if slices.ContainsFunc(m.Content, func(b fakemodel.Block) bool { return b.Type == kind && len(b.Source) > 0 }) {
				return true
			}
		}
	}
	return false
}

// keepSession does what some real clients do at the end of a run and the fake
// ones do not: write the session down.
func (s stage) keepSession(t *testing.T, req backend.Request, session string) {
	t.Helper()
	path, text := "", ""
	switch s.name {
	case "codex":
		path = filepath.Join(".codex", "sessions", "2026", "01", "02", "rollout-2026-01-02T03-04-05-"+session+".jsonl")
	case "gemini":
		path = filepath.Join(".gemini", "tmp", "work", "chats", "session-2026-01-02T03-04-"+session[:min(8, len(session))]+".jsonl")
		text = fmt.Sprintf("{\"sessionId\":%q}\n", session)
	}
	if path == "" || s.kind != asAgent {
		return
	}
	path = filepath.Join(req.Home, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
