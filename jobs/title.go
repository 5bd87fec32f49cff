package jobs

import (
	"strings"

	"piecework/internal/prompt"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// titleBytes is how much of a prompt names a unit.
const titleBytes = 200

// Title is the start of the rendered prompt, or of the template when it cannot
// be rendered (the run will say why).
func Title(s *work.Spec) string {
	text, err := prompt.Render(s.Prompt, s.Payload, prompt.Missing(s.MissingKey))
	if err != nil {
		text = s.Prompt
	}
	return shortTitle(text)
}

// shortTitle is without secrets: lists, webhooks and logs tell titles.
func shortTitle(text string) string {
	text, _ = work.Cut(text, 100*titleBytes)
	text, _ = work.Cut(transcript.RedactStart(text, 4*titleBytes), 4*titleBytes)
	var short strings.Builder
	short.Grow(2 * titleBytes)
	for word := range strings.FieldsSeq(text) {
		if short.Len() > 0 {
			short.WriteByte(' ')
		}
		if short.WriteString(word); short.Len() > titleBytes {
			break // the rest is cut off
		}
	}
	text, _ = work.Cut(short.String(), titleBytes)
	return work.Clean(text)
}
