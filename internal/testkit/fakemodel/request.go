package fakemodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The APIs a request may come by.
const (
	Messages   = "messages"
	Chat       = "chat"
	Responses  = "responses"
	Embeddings = "embeddings"
)

// Request is one request for an answer as the server saw it, by whichever API.
type Request struct {
	API       string
	At        time.Time
	Model     string
	System    string // the texts of all system blocks
	Messages  []Message
	Tools     []Tool
	Stream    bool
	MaxTokens int
	Headers   http.Header
	Body      json.RawMessage

	Script string // the name in the prompt's [[script:NAME]]; empty: the common script
	Index  int    // assistant messages since the prompt
	// Side: a call the client makes for itself, such as for a title; it is
	// answered without a script.
	Side bool
}

// Message is one message of a request; a plain string becomes one text block.
type Message struct {
	Role    string
	Content []Block
}

// Block is one content block.
type Block struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Of a tool_use.
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
	// Of a tool_result.
	ToolUseID string `json:"tool_use_id"`
	Content   Blocks `json:"content"`
	IsError   bool   `json:"is_error"`
	// Of an image or a document.
	Source json.RawMessage `json:"source"`
}

// Tool is a tool the client offers.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// Prompt is the text that the conversation is about: what the message that
// Index counts from says, without the client's own reminders.
func (r Request) Prompt() string {
	at := promptAt(r.Messages)
	if at < 0 {
		return ""
	}
	said := slices.DeleteFunc(slices.Clone(r.Messages[at].Content), isReminder)
	return Blocks(said).Text()
}

// Text joins the text blocks of a message.
func (m Message) Text() string { return Blocks(m.Content).Text() }

// Blocks is content: a string or a list of blocks on the wire.
type Blocks []Block

// UnmarshalJSON reads a string or a list of blocks.
func (b *Blocks) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*b = Blocks{{Type: "text", Text: text}}
		return nil
	}
	var list []Block
	if err := json.Unmarshal(data, &list); err != nil {
		// A document's content may be an object; it is kept in Body.
		*b = nil
		return nil
	}
	*b = list
	return nil
}

// Text joins the text blocks.
func (b Blocks) Text() string {
	var texts []string
	for _, block := range b {
		if block.Type == "text" {
			texts = append(texts, block.Text)
		}
	}
	return strings.Join(texts, "\n")
}

func parseRequest(body []byte, headers http.Header) (Request, error) {
	var wire struct {
		Model     string `json:"model"`
		System    Blocks `json:"system"`
		Messages  []wireMessage
		Tools     []Tool `json:"tools"`
		Stream    bool   `json:"stream"`
		MaxTokens int    `json:"max_tokens"`
	}
	if err := json.Unmarshal(body, &wire); err != nil {
		return Request{}, fmt.Errorf("reading the body: %w", err)
	}
	if wire.Model == "" {
		return Request{}, errors.New("model: Field required")
	}
	if len(wire.Messages) == 0 {
		return Request{}, errors.New("messages: Field required")
	}
	r := Request{
		API: Messages, At: time.Now(), Model: wire.Model, System: wire.System.Text(), Tools: wire.Tools, Stream: wire.Stream,
		MaxTokens: wire.MaxTokens, Headers: headers.Clone(), Body: body,
	}
	for _, m := range wire.Messages {
		r.Messages = append(r.Messages, Message{Role: m.Role, Content: m.Content})
	}
	r.Side = isSide(r)
	r.Script, r.Index = position(r.Messages)
	return r, nil
}

type wireMessage struct {
	Role    string `json:"role"`
	Content Blocks `json:"content"`
}

var mark = regexp.MustCompile(`\[\[script:([A-Za-z0-9_.-]+)\]\]`)

func position(messages []Message) (name string, index int) {
	at := promptAt(messages)
	if at < 0 {
		return "", 0
	}
	if found := mark.FindStringSubmatch(messages[at].Text()); found != nil {
		name = found[1]
	}
	for _, m := range messages[at:] {
		if m.Role == "assistant" {
			index++
		}
	}
	return name, index
}

// promptAt finds the prompt: the last user message with a mark, else the last
// plain one; -1 when there is none.
func promptAt(messages []Message) int {
	plain := -1
	for at := len(messages) - 1; at >= 0; at-- {
		m := messages[at]
		if m.Role != "user" {
			continue
		}
		if mark.MatchString(m.Text()) {
			return at
		}
		if plain < 0 && isPlain(m) {
			plain = at
		}
	}
	return plain
}

// isPlain tells a person's message from tool results and from the reminders
// that Claude Code writes itself.
func isPlain(m Message) bool {
	said := false
	for _, block := range m.Content {
		if block.Type == "tool_result" {
			return false
		}
		said = said || !isReminder(block)
	}
	return said
}

func isReminder(b Block) bool {
	return b.Type == "text" && strings.HasPrefix(strings.TrimSpace(b.Text), "<system-reminder>")
}

var titling = regexp.MustCompile(`(?i)generate an? (concise|short|succinct|brief)[^.]*\b(title|name)\b`)

// isSide knows Claude Code's own small calls: probes ask for one token, and a
// title is asked for without tools under a system prompt that says so.
func isSide(r Request) bool {
	return r.MaxTokens == 1 || len(r.Tools) == 0 && titling.MatchString(r.System)
}
