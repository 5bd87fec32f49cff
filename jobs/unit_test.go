package jobs

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"piecework/internal/prompt"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

func TestTitleIsTheStartOfTheRenderedPrompt(t *testing.T) {
	t.Parallel()
	for prompt, want := range map[string]string{
		"Sum {a}":                "Sum 1 2",
		"  Sum\n\n of   it ":     "Sum of it",
		"Lacks {nope}":           "Lacks {nope}",
		strings.Repeat("ä", 300): strings.Repeat("ä", 100),
	} {
		if got := Title(&work.Spec{Prompt: prompt, Payload: []byte(`{"a":"1 2"}`), MissingKey: "fail"}); got != want {
			t.Errorf("%q: %q", prompt, got)
		}
	}
}

// A title is that of the whole rendered prompt, however little of it was looked at.
func TestTitleIsThatOfTheWhole(t *testing.T) {
	t.Parallel()
	whole := func(text string) string {
		text, _ = work.Cut(text, 100*titleBytes)
		text, _ = work.Cut(transcript.Redactor(nil)(text), 4*titleBytes)
		text, _ = work.Cut(strings.Join(strings.Fields(text), " "), titleBytes)
		return work.Clean(text)
	}
	parts := []string{"word", " ", "\n", "\t", "ä", "☃", "\u00a0", "\u2003", "\xff", "\xe2\x98", "\x00", "{a}", "{b.0}", "{nobody}", "{{",
		"}}", "M", "sk-ant-" + strings.Repeat("x1", 10), "://me:secret@host",
		strings.Repeat(" ", 300), strings.Repeat("ä", 90), strings.Repeat("long ", 50), strings.Repeat("endless", 100),
		"AKIA" + strings.Repeat("A1", 8), strings.Repeat("f", 32) + "-us1"}
	r := rand.New(rand.NewPCG(3, 9))
	some := func() string {
		var text strings.Builder
		for range r.IntN(40) {
			text.WriteString(parts[r.IntN(len(parts))])
		}
		return text.String()
	}
	for range 3000 {
		payload, err := json.Marshal(map[string]any{"a": some(), "b": []string{some()}})
		if err != nil {
			t.Fatal(err)
		}
		s := work.Spec{Prompt: some(), Payload: payload, MissingKey: []string{"fail", "note"}[r.IntN(2)]}
		text, err := prompt.Render(s.Prompt, s.Payload, prompt.Missing(s.MissingKey))
		if err != nil {
			text = s.Prompt
		}
		if got, want := Title(&s), whole(text); got != want {
			t.Fatalf("%q with %s: %q, want %q", s.Prompt, s.Payload, got, want)
		}
	}
}
