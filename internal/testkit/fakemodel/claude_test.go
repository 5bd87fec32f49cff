package fakemodel_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"piecework/internal/testkit/fakemodel"
)

// A run of the real Claude Code CLI against the server.
type claudeRun struct {
	exit   int
	events []claudeEvent
	result claudeEvent
}

type claudeEvent struct {
	Type    string `json:"type"`
	Subtype string `json:"subtype"`
	IsError bool   `json:"is_error"`
	Result  string `json:"result"`
	Turns   int    `json:"num_turns"`
	Message struct {
		Content json.RawMessage `json:"content"`
	} `json:"message"`
	Status *int `json:"api_error_status"`
}

func runClaude(t *testing.T, server *fakemodel.Server, prompt string, args ...string) claudeRun {
	t.Helper()
	path, err := exec.LookPath("claude")
	if err != nil {
		t.Skip("needs the claude CLI in PATH")
	}
	line, err := json.Marshal(map[string]any{"type": "user", "message": map[string]any{
		"role": "user", "content": []map[string]string{{"type": "text", "text": prompt}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{
		"--print", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose",
		"--model", "claude-sonnet-4-5",
	}, args...)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.WaitDelay = time.Second
	cmd.Dir = t.TempDir()
	home := t.TempDir()
	cmd.Env = []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "CLAUDE_CODE_TMPDIR=" + home, "TERM=dumb",
		"ANTHROPIC_BASE_URL=" + server.URL, "ANTHROPIC_API_KEY=test-key", "CLAUDE_CODE_MAX_RETRIES=2",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1",
	}
	cmd.Stdin = bytes.NewReader(append(line, '\n'))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	run := claudeRun{exit: cmd.ProcessState.ExitCode()}
	lines := bufio.NewReader(&stdout)
	for {
		line, err := lines.ReadBytes('\n')
		var event claudeEvent
		if json.Unmarshal(line, &event) == nil {
			run.events = append(run.events, event)
			if event.Type == "result" {
				run.result = event
			}
			t.Logf("%.600s", line)
		}
		if err != nil {
			break
		}
	}
	t.Logf("exit %d, stderr: %.2000s", run.exit, stderr.String())
	for _, r := range server.Requests() {
		t.Logf("request %s stream=%v tools=%d max_tokens=%d messages=%d side=%v index=%d system %.60q prompt %.60q",
			r.Model, r.Stream, len(r.Tools), r.MaxTokens, len(r.Messages), r.Side, r.Index, r.System, r.Prompt())
	}
	return run
}

func TestClaude(t *testing.T) {
	if testing.Short() {
		t.Skip("starts the real CLI many times")
	}
	bash := func(id, command string) fakemodel.Call {
		return fakemodel.Call{ID: id, Name: "Bash", Input: map[string]string{"command": command, "description": "test"}}
	}
	cases := []struct {
		name     string
		turns    []fakemodel.Turn
		want     string
		isError  bool
		numTurns int
		output   string // of a tool, seen by the model
	}{
		{name: "plain", turns: []fakemodel.Turn{{Text: "hello there", Thinking: "hm"}}, want: "hello there", numTurns: 1},
		{name: "dripping", turns: []fakemodel.Turn{{Text: "hello there, drop by drop", Drip: 20 * time.Millisecond,
			Silence: 300 * time.Millisecond}}, want: "hello there, drop by drop", numTurns: 1},
		{name: "tool", turns: []fakemodel.Turn{{Text: "I look", Calls: []fakemodel.Call{bash("", "echo hello-from-tool")}},
			{Text: "done"}}, want: "done", numTurns: 2, output: "hello-from-tool"},
		{name: "parallel tools", turns: []fakemodel.Turn{
			{Calls: []fakemodel.Call{bash("toolu_a", "sleep 0.5; echo first"), bash("toolu_b", "echo second")}}, {Text: "both done"},
		}, want: "both done", numTurns: 3, output: "second"},
		{name: "500", turns: []fakemodel.Turn{{Status: 500}}, isError: true, want: "500", numTurns: 1},
		{name: "429 then fine", turns: []fakemodel.Turn{
			{Status: 429, Times: 2, Headers: map[string]string{"retry-after": "1"}}, {Text: "at last"},
		}, want: "at last", numTurns: 1},
		{name: "401", turns: []fakemodel.Turn{{Status: 401}}, isError: true, numTurns: 1},
		{name: "overloaded in the stream", turns: []fakemodel.Turn{{Text: "half", ErrorType: "overloaded_error", Times: 1},
			{Text: "whole"}}, want: "whole", numTurns: 1},
		{name: "cut always", turns: []fakemodel.Turn{{Text: "this never ends", Cut: true}}, isError: true, numTurns: 1},
		{name: "cut once", turns: []fakemodel.Turn{{Text: "this never ends", Cut: true, Times: 1}, {Text: "it ends"}}, want: "it ends", numTurns: 1},
		{name: "long line", turns: []fakemodel.Turn{{TextBytes: 1 << 20}}, want: "lazy dog", numTurns: 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := fakemodel.Start(t)
			server.Script(c.turns...)
			run := runClaude(t, server, "please do the work", "--allowedTools", "Bash")
			if run.result.IsError != c.isError || !strings.Contains(run.result.Result, c.want) {
				t.Errorf("result: is_error %v %.200q, want %v and %q", run.result.IsError, run.result.Result, c.isError, c.want)
			}
			if run.result.Turns != c.numTurns {
				t.Errorf("num_turns %d, want %d", run.result.Turns, c.numTurns)
			}
			requests := server.Requests()
			if last := requests[len(requests)-1]; !strings.Contains(string(last.Body), c.output) {
				t.Errorf("the model never saw %q", c.output)
			}
		})
	}
}
