package backend

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// CheckCall refuses what the API refuses, too: a unit may be older than the rules.
func CheckCall(name string, c *work.Call) *work.Failure {
	if slices.Contains(profiles[name].endpoints, c.Endpoint) {
		return nil
	}
	return work.Fail(work.ClassInvalidRequest, fmt.Sprintf("the backend %s has no endpoint %q; it takes requests to %s",
		name, c.Endpoint, strings.Join(profiles[name].endpoints, ", ")))
}

// CallModel is the model that a call names; empty when it names none.
func CallModel(c *work.Call) string {
	var body struct {
		Model string `json:"model"`
	}
	_ = Decode(c.Body, &body) // the API says what is wrong with it
	return body.Model
}

// RecordCall writes what the call asks for, as far as its shape is known.
func RecordCall(c *work.Call, steps *transcript.Writer) {
	if text := CallText(c); text != "" {
		steps.Add(transcript.Step{Type: transcript.UserText, Text: text})
	}
}

// CallText is the last thing that a call says to the model.
func CallText(c *work.Call) string {
	var body struct {
		Messages []callMessage   `json:"messages"`
		Input    json.RawMessage `json:"input"`
	}
	_ = Decode(c.Body, &body)
	messages := body.Messages
	if len(messages) == 0 && json.Unmarshal(body.Input, &messages) != nil {
		return TextOf(body.Input)
	}
	for _, m := range slices.Backward(messages) {
		if m.Role != "user" {
			continue
		}
		if text := TextOf(m.Content); text != "" {
			return text
		}
	}
	return ""
}

type callMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// TextOf is a text, or the texts of a list of texts or parts.
func TextOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []json.RawMessage
	_ = json.Unmarshal(raw, &parts) // what has another shape says nothing here
	var texts []string
	for _, part := range parts {
		var p struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(part, &text) == nil {
			texts = append(texts, text)
		} else if json.Unmarshal(part, &p) == nil && p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}
