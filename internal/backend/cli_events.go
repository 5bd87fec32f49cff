package backend

import (
	"encoding/json"
	"errors"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// decode reads JSON and forgives a field of another type than expected: the
// clients change between patch versions.
func decode(data []byte, into any) error {
	err := json.Unmarshal(data, into)
	if errors.As(err, new(*json.UnmarshalTypeError)) {
		return nil
	}
	return err
}

// maxEvent bounds an event that is kept as it came.
const maxEvent = 2 << 10

func addSystem(steps *transcript.Writer, text string) {
	text, _ = work.Cut(steps.Redact(text), maxEvent) // a secret cut in half would not be known
	steps.Add(transcript.Step{Type: transcript.SystemText, Text: text})
}

// addEvent puts an event that is no conversation into the transcript, without
// the ids that every event has.
func addEvent(steps *transcript.Writer, name string, line []byte) {
	var fields map[string]json.RawMessage
	if decode(line, &fields) != nil {
		addSystem(steps, string(line))
		return
	}
	for _, known := range []string{"type", "subtype", "session_id", "uuid"} {
		delete(fields, known)
	}
	rest, _ := json.Marshal(fields)
	addSystem(steps, name+" "+string(rest))
}
