package fakecli

import "syscall"

// opencode speaks as `opencode run --format json` does, with the lines that our
// plugin adds.
type opencode struct {
	*agent
	inTurn, called bool
}

func (*opencode) version() string { return "9.9.9" }

func (o *opencode) event(kind string, part map[string]any) map[string]any {
	return map[string]any{"type": kind, "timestamp": 1795253260142, "sessionID": o.session, "part": part}
}

// catalogue is what the real one shows of models and their prices.
const catalogue = "fake/free\n{\"cost\":{\"input\":0,\"output\":0}}\nfake/priced\n{\"cost\":{\"input\":1,\"output\":2}}"

func (o *opencode) begin() {
	o.keep(o.prompt)
	writeJSON(map[string]any{"type": "ready"})
	writeJSON(map[string]any{"type": "status", "sessionID": o.session, "status": map[string]any{"type": "busy"}})
}

// turn begins one, unless the last still goes on.
func (o *opencode) turn() {
	if o.inTurn && o.called {
		o.finish("tool-calls", 0)
	}
	if !o.inTurn {
		writeJSON(o.event("step_start", map[string]any{"type": "step-start"}))
	}
	o.inTurn = true
}

func (o *opencode) finish(reason string, cost float64) {
	o.inTurn, o.called = false, false
	writeJSON(o.event("step_finish", map[string]any{
		"type": "step-finish", "reason": reason, "cost": cost, "tokens": map[string]any{
			"total": 110, "input": 100, "output": 10, "reasoning": 0, "cache": map[string]any{"read": 0, "write": 0},
		},
	}))
}

func (o *opencode) said(text string) any {
	o.turn()
	return o.event("text", map[string]any{"type": "text", "text": text})
}

// call says nothing: a call is told of when it has its answer.
func (o *opencode) call(call) {
	if !o.called {
		o.turn()
	}
}

func (o *opencode) answer(of call, text string, denied bool) {
	state := map[string]any{"status": "completed", "input": of.input, "output": text, "metadata": map[string]any{"exit": 0}}
	if denied {
		state = map[string]any{"status": "error", "input": of.input, "error": "The user rejected permission to use this specific tool call."}
	}
	writeJSON(o.event("tool_use", map[string]any{"type": "tool", "tool": of.name, "callID": of.id, "state": state}))
	if o.called = true; len(o.open) == 1 {
		o.finish("tool-calls", 0)
	}
}

func (o *opencode) end(text string) {
	writeJSON(o.said(text))
	o.finish("stop", o.cost)
}

func (o *opencode) fail(_ string, status int, text string) {
	data := map[string]any{"message": text, "isRetryable": false}
	if status != 0 {
		data["statusCode"] = status
	}
	writeJSON(map[string]any{"type": "error", "sessionID": o.session, "error": map[string]any{"name": "APIError", "data": data}})
	o.exitCode = 1
}

func (o *opencode) limit(resets int64) {
	writeJSON(map[string]any{"type": "status", "sessionID": o.session, "status": map[string]any{
		"type": "retry", "attempt": 1, "message": "Too Many Requests", "next": resets * 1000,
	}})
}

func (o *opencode) signalled(s syscall.Signal) int {
	if s == syscall.SIGINT {
		return unheard
	}
	return -1
}
