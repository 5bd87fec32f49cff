package fakecli

import (
	"encoding/json"
	"os"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// cursor speaks as the Cursor CLI is documented to.
type cursor struct{ *agent }

func (*cursor) version() string { return "2026.01.01-fake" }

func (c *cursor) begin() {
	c.keep(c.prompt)
	dir, _ := os.Getwd()
	writeJSON(map[string]any{
		"type": "system", "subtype": "init", "apiKeySource": "env", "cwd": dir, "session_id": c.session,
		"model": c.model, "permissionMode": "default",
	})
}

func (c *cursor) said(text string) any {
	return map[string]any{"type": "assistant", "session_id": c.session, "message": map[string]any{
		"role": "assistant", "content": []map[string]any{{"type": "text", "text": text}},
	}}
}

func (c *cursor) tool(subtype string, of call, result any) {
	body := map[string]any{}
	if of.name == "Bash" {
		body["shellToolCall"] = withResult(map[string]any{"args": of.input}, result)
	} else {
		body["function"] = withResult(map[string]any{"name": of.name, "arguments": string(of.input)}, result)
	}
	writeJSON(map[string]any{"type": "tool_call", "subtype": subtype, "call_id": of.id, "tool_call": body, "session_id": c.session})
}

func withResult(body map[string]any, result any) map[string]any {
	if result != nil {
		body["result"] = result
	}
	return body
}

func (c *cursor) call(of call) { c.tool("started", of, nil) }

func (c *cursor) answer(of call, text string, denied bool) {
	if denied {
		c.tool("completed", of, map[string]any{"rejected": map[string]any{"reason": text}})
		return
	}
	success := map[string]any{"content": text}
	if of.name == "Bash" {
		success = map[string]any{"exitCode": 0, "stdout": text, "stderr": ""}
	}
	c.tool("completed", of, map[string]any{"success": success})
}

func (c *cursor) end(text string) {
	took := time.Since(c.started).Milliseconds() + 1
	usage, _ := json.Marshal(map[string]int{
		"inputTokens": 100 * c.turns, "outputTokens": 10 * c.turns, "cacheReadTokens": 0, "cacheWriteTokens": 0,
	})
	writeJSON(map[string]any{
		"type": "result", "subtype": "success", "is_error": false, "duration_ms": took, "duration_api_ms": took,
		"result": text, "session_id": c.session, "request_id": uuid.NewString(), "usage": json.RawMessage(usage),
	})
}

// fail says it on stderr: there is no result event.
func (c *cursor) fail(_ string, _ int, text string) {
	_, _ = os.Stderr.WriteString(text + "\n")
	c.exitCode = 1
}

func (c *cursor) limit(int64) {} // it has no event for that

func (c *cursor) signalled(s syscall.Signal) int { return 128 + int(s) }
