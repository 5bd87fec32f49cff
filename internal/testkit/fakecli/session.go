package fakecli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// record is the file in which the real agent keeps a session; "" when it has no
// place for it.
func (a *agent) record() string {
	home, first := os.Getenv("HOME"), a.session[:min(8, len(a.session))]
	switch a.speak.(type) {
	case *codex:
		return filepath.Join(os.Getenv("CODEX_HOME"), "sessions", "2026", "11", "21", "rollout-2026-11-21T07-52-43-"+a.session+".jsonl")
	case *gemini:
		return filepath.Join(home, ".gemini", "tmp", "fake", "chats", "session-2026-11-21T07-52-"+first+".jsonl")
	case *opencode:
		return filepath.Join(home, ".local", "share", "opencode", a.session)
	case *cursor:
		return filepath.Join(home, ".cursor", "chats", a.session)
	}
	if config := os.Getenv("CLAUDE_CONFIG_DIR"); config != "" {
		return filepath.Join(config, "projects", "fake", a.session+".jsonl")
	}
	return ""
}

func (a *agent) recorded() string {
	text, _ := os.ReadFile(a.record())
	return string(text)
}

// keep adds lines to the session's record.
func (a *agent) keep(lines ...any) {
	path := a.record()
	if path == "" {
		return
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		panic(err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer func() { _ = file.Close() }()
	for _, line := range lines {
		if _, err := file.WriteString(encode(line) + "\n"); err != nil {
			panic(err)
		}
	}
}

// found tells whether the session is as the command line has it; otherwise the
// agent says that it is not, and is to end.
func (a *agent) found() bool {
	there := a.recorded() != ""
	c, isClaude := a.speak.(*claude)
	switch {
	case a.record() == "":
		return true
	case a.resumes && !there && isClaude:
		a.turns, a.cost = 0, 0
		c.writeResult(result{Subtype: "error_during_execution", IsError: true, Errors: []string{"No conversation found with session ID: " + a.session}})
	case a.resumes && !there:
		fmt.Fprintln(os.Stderr, "Error: Session not found")
		a.exitCode = 1
	case !a.resumes && there && isClaude:
		fmt.Fprintf(os.Stderr, "Error: Session ID %s is already in use.\n", a.session)
		a.exitCode = 1
	default:
		return true
	}
	return false
}

func (a *claude) keepPrompt() {
	a.keep(map[string]any{"type": "user", "message": map[string]any{"role": "user", "content": a.prompt}})
}

func (c *codex) keepPrompt() {
	c.former = strings.Count(c.recorded(), `"token_usage_record"`)
	c.keep(entry("turn_context", map[string]any{"model": c.model}), entry("response_item", map[string]any{
		"type": "message", "role": "user", "content": []map[string]any{{"type": "input_text", "text": c.prompt}},
	}))
}

func entry(kind string, payload map[string]any) map[string]any {
	return map[string]any{"type": kind, "payload": payload}
}

// used is what so many calls of the model have used.
func used(calls int) map[string]any {
	return map[string]any{
		"input_tokens": 100 * calls, "cached_input_tokens": 40 * calls, "cache_write_input_tokens": 0,
		"output_tokens": 10 * calls, "reasoning_output_tokens": 0,
	}
}

// keepUse writes down what a call of the model has used, whose tools are about
// to answer, or which is the last.
func (c *codex) keepUse() {
	c.uses++
	c.asking = false
	c.keep(entry("token_usage_record", map[string]any{"usage": used(1), "thread_token_usage": used(c.former + c.uses)}))
}

func (g *gemini) keepPrompt() {
	if g.recorded() == "" {
		g.keep(map[string]any{"sessionId": g.session, "kind": "main"})
	}
	g.keep(map[string]any{"id": uuid.NewString(), "type": "user", "content": []map[string]any{{"text": g.prompt}}})
}

func (g *gemini) keepAnswer(text string) {
	g.asking = false
	g.keep(map[string]any{
		"id": uuid.NewString(), "type": "gemini", "content": text, "model": g.model, "tokens": map[string]any{"input": 100, "output": 10},
	})
}
