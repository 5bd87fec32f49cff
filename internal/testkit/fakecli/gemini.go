package fakecli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// gemini speaks as the Gemini CLI does.
type gemini struct {
	*agent
	asking bool // the model has called tools, and none has answered
}

func (*gemini) version() string { return "9.9.9" }

// command returns what a command of the user's own stands for: what its file
// says, and what follows its name.
func (g *gemini) command(prompt string) string {
	name, rest, _ := strings.Cut(strings.TrimPrefix(prompt, "/"), " ")
	file, err := os.ReadFile(filepath.Join(os.Getenv("HOME"), ".gemini", "commands", name+".toml"))
	if err != nil || !strings.HasPrefix(prompt, "/") {
		return prompt
	}
	var text string
	_ = json.Unmarshal([]byte(strings.TrimPrefix(string(file), "prompt = ")), &text)
	return text + "\n\n" + rest
}

func (g *gemini) event(kind string, fields map[string]any) map[string]any {
	fields["type"], fields["timestamp"] = kind, time.Now().UTC().Format(time.RFC3339Nano)
	return fields
}

func (g *gemini) begin() {
	g.keepPrompt()
	writeJSON(g.event("init", map[string]any{"session_id": g.session, "model": g.model}))
	g.asked("do it")
}

// asked is the user's message, which every answer follows.
func (g *gemini) asked(text string) {
	writeJSON(g.event("message", map[string]any{"role": "user", "content": text}))
}

func (g *gemini) said(text string) any {
	return g.event("message", map[string]any{"role": "assistant", "content": text, "delta": true})
}

func (g *gemini) call(of call) {
	g.asking = true
	writeJSON(g.event("tool_use", map[string]any{"tool_name": of.name, "tool_id": of.id, "parameters": of.input}))
}

func (g *gemini) answer(of call, text string, denied bool) {
	if g.asking {
		g.keepAnswer("")
	}
	result := map[string]any{"tool_id": of.id, "status": "success", "output": text}
	if denied {
		result["status"], result["error"] = "error", map[string]any{"type": "policy_violation", "message": text}
	}
	writeJSON(g.event("tool_result", result))
}

func (g *gemini) result(fields map[string]any) {
	stats, _ := json.Marshal(map[string]any{
		"total_tokens": 110 * g.turns, "input_tokens": 100 * g.turns, "output_tokens": 10 * g.turns, "cached": 0,
		"input": 100 * g.turns, "duration_ms": time.Since(g.started).Milliseconds() + 1, "tool_calls": 0,
	})
	fields["stats"] = json.RawMessage(stats)
	writeJSON(g.event("result", fields))
}

// end says the text as an answer of its own: the real one joins what comes
// without a break.
func (g *gemini) end(text string) {
	g.keepAnswer(text)
	g.asked("and now?")
	writeJSON(g.said(text))
	g.result(map[string]any{"status": "success"})
}

// fail ends with the status as the exit code, as far as one byte holds it.
func (g *gemini) fail(_ string, status int, text string) {
	g.result(map[string]any{"status": "error", "error": map[string]any{"type": "unknown", "message": "[API Error: " + text + "]"}})
	if g.exitCode = status % 256; g.exitCode == 0 {
		g.exitCode = 1
	}
}

func (g *gemini) limit(int64) {} // it has no event for that

func (g *gemini) signalled(syscall.Signal) int { return 0 }
