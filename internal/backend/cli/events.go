package cli

import (
	"encoding/json"
	"strings"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// maxEvent bounds an event that is kept as it came.
const maxEvent = 2 << 10

func AddSystem(steps *transcript.Writer, text string) {
	text, _ = work.Cut(steps.Redact(text), maxEvent) // a secret cut in half would not be known
	steps.Add(transcript.Step{Type: transcript.SystemText, Text: text})
}

// AddEvent puts an event that is no conversation into the transcript, without
// the ids that every event has.
func AddEvent(steps *transcript.Writer, name string, line []byte) {
	var fields map[string]json.RawMessage
	if backend.Decode(line, &fields) != nil {
		AddSystem(steps, string(line))
		return
	}
	for _, known := range []string{"type", "subtype", "session_id", "uuid"} {
		delete(fields, known)
	}
	rest, _ := json.Marshal(fields)
	AddSystem(steps, name+" "+string(rest))
}

// OutputText reads a call's output, which is a string or a list of parts.
func OutputText(raw json.RawMessage) string {
	var text string
	if backend.Decode(raw, &text) == nil && text != "" {
		return text
	}
	var parts []struct{ Type, Text string }
	_ = backend.Decode(raw, &parts)
	var texts []string
	for _, part := range parts {
		if part.Text == "" {
			part.Text = "[" + strings.TrimPrefix(part.Type, "input_") + "]"
		}
		texts = append(texts, part.Text)
	}
	return strings.Join(texts, "\n")
}
