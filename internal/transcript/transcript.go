// Package transcript is what an agent did, as a flat list of steps. Backends
// write it, the store keeps it, the API and the pages show it. It knows
// nothing of where a transcript lives.
//
//	transcript.go  Step and its kinds
//	writer.go      Writer: numbers, cuts, cleans and redacts steps as they come
//	denial.go      which tool calls were denied, and which of these succeeded later
//	redact.go      secrets out
//	kinds.go       the kinds of secrets that are known by their looks
//	codec.go       steps to gzip and back, to JSON lines and to text
//	scan.go        gzip to steps, one after the other, also without their texts
package transcript

import "time"

// The kinds of a step.
const (
	Action     = "action"      // what the agent said and which tools it called
	ToolResult = "tool_result" // what a tool answered
	UserText   = "user_text"   // words put in the user's mouth during the run
	SystemText = "system_text" // words of the harness, not of a model
	Reasoning  = "reasoning"   // thinking, where the backend shows it
)

// The kinds of an action's content.
const (
	Text     = "text"
	ToolCall = "tool_call"
)

// Limits on what one step may hold, in bytes of text.
const (
	MaxResult = 50 << 10 // a tool result, and any other text of a step
	MaxArgs   = 2 << 10  // a tool call's arguments
	// MaxAction is how much text and arguments one action holds before what
	// follows begins another: a step is stored again each time it changes.
	MaxAction = 256 << 10
)

// Step is one entry of a transcript. A step with the number of an earlier one
// replaces it: an action grows while its message is still being written.
type Step struct {
	Number int `json:"number"` // from 1, without gaps
	// Rev counts the changes of the transcript, from 1: this step is what the
	// change of that number made of it. 0: written by a version that did not count.
	Rev     int       `json:"rev,omitempty"`
	Time    time.Time `json:"time"`
	Type    string    `json:"type" enum:"action,tool_result,user_text,system_text,reasoning"`
	Content []Content `json:"content,omitempty"` // of an action
	CallID  string    `json:"call_id,omitempty"` // of a tool result: the call it answers
	Name    string    `json:"name,omitempty"`    // of a tool result: the tool
	Text    string    `json:"text,omitempty"`    // of everything but an action
	IsError bool      `json:"is_error,omitempty"`
	Denied  bool      `json:"denied,omitempty"` // of a tool result: the tool was not allowed to run
	// Parent is the tool call whose sub-agent took this step.
	Parent string `json:"parent,omitempty"`
}

// Content is one part of an action.
type Content struct {
	Type string `json:"type" enum:"text,tool_call"`
	Text string `json:"text,omitempty"`
	ID   string `json:"id,omitempty"`
	Name string `json:"name,omitempty"`
	Args string `json:"args,omitempty"` // JSON as text
}
