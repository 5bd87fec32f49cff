package fakecli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"syscall"
)

// codex speaks as `codex exec --json` does.
type codex struct {
	*agent
	items        map[string]string // tool call → its item
	count        int
	former, uses int  // calls of the model, before this process and in it
	asking       bool // the model has called tools, and none has answered
}

func (*codex) version() string { return "codex-cli 9.9.9" }

func (c *codex) begin() {
	if c.count == 0 {
		c.keepPrompt()
		writeJSON(map[string]any{"type": "thread.started", "thread_id": c.session})
		c.item("item.completed", map[string]any{"id": c.next(), "type": "error", "message": "Model metadata for `fake-model` not found."})
	}
	writeJSON(map[string]any{"type": "turn.started"})
}

func (c *codex) next() string {
	c.count++
	return fmt.Sprintf("item_%d", c.count-1)
}

func (c *codex) item(kind string, item map[string]any) {
	writeJSON(map[string]any{"type": kind, "item": item})
}

func (c *codex) said(text string) any {
	return map[string]any{"type": "item.completed", "item": map[string]any{"id": c.next(), "type": "agent_message", "text": text}}
}

// tool is the item of a call: a command is one, everything else belongs to
// some server.
func (c *codex) tool(of call) map[string]any {
	var input struct{ Command string }
	if of.name == "Bash" && json.Unmarshal(of.input, &input) == nil {
		return map[string]any{
			"id": c.items[of.id], "type": "command_execution", "command": input.Command,
			"aggregated_output": "", "exit_code": nil, "status": "in_progress",
		}
	}
	return map[string]any{
		"id": c.items[of.id], "type": "mcp_tool_call", "server": "fake", "tool": of.name, "arguments": of.input,
		"result": nil, "error": nil, "status": "in_progress",
	}
}

func (c *codex) call(of call) {
	if c.items == nil {
		c.items = map[string]string{}
	}
	c.items[of.id] = c.next()
	c.item("item.started", c.tool(of))
	c.asking = true
	c.keep(entry("response_item", map[string]any{"type": "function_call", "call_id": of.id, "name": of.name, "arguments": string(of.input)}))
}

func (c *codex) answer(of call, text string, denied bool) {
	if c.asking {
		c.keepUse()
	}
	item := c.tool(of)
	item["status"] = "completed"
	kind := map[any]string{"command_execution": "CommandExecution", "mcp_tool_call": "McpToolCall"}[item["type"]]
	c.keep(entry("event_msg", map[string]any{"type": "item_completed", "item": map[string]any{"type": kind, "id": of.id}}),
		entry("response_item", map[string]any{"type": "function_call_output", "call_id": of.id, "output": text}))
	if item["type"] == "command_execution" {
		item["aggregated_output"], item["exit_code"] = text, 0
	} else {
		item["result"] = map[string]any{"content": []map[string]any{{"type": "text", "text": text}}}
	}
	if denied {
		item["status"] = "declined"
	}
	c.item("item.completed", item)
}

func (c *codex) end(text string) {
	c.keepUse()
	writeJSON(c.said(text))
	writeJSON(map[string]any{"type": "turn.completed", "usage": used(c.former + c.turns)})
}

func (c *codex) fail(_ string, status int, text string) {
	if status != 0 {
		text = fmt.Sprintf("unexpected status %d %s: %s", status, http.StatusText(status), text)
	}
	writeJSON(map[string]any{"type": "error", "message": "Reconnecting... 1/1 (" + text + ")"})
	writeJSON(map[string]any{"type": "error", "message": text})
	writeJSON(map[string]any{"type": "turn.failed", "error": map[string]any{"message": text}})
	c.exitCode = 1
}

func (c *codex) limit(int64) {} // it has no event for that

func (c *codex) signalled(s syscall.Signal) int {
	if s == syscall.SIGINT {
		return 1
	}
	return -1
}
