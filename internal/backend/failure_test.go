package backend

import (
	"testing"

	"piecework/internal/work"
)

// A limit is the model's, unless the words are those of a subscription's window.
func TestWhoseLimit(t *testing.T) {
	t.Parallel()
	for words, account := range map[string]bool{
		"Claude AI usage limit reached|1767225600":                             true,
		"You've hit your usage limit. Try again in 2 hours 5 minutes.":         true,
		"5-hour limit reached ∙ resets 3pm":                                    true,
		"Opus weekly limit reached ∙ resets Monday":                            false,
		"You've hit your limit for this model":                                 false,
		"429 Too Many Requests":                                                false,
		"Rate limit reached for gpt-5 in organization org-1 on tokens per min": false,
	} {
		f := failureOf("agent", words, "")
		if f.Class != work.ClassRateLimit || f.WholeAccount != account {
			t.Errorf("%q: class %s, of the account: %v", words, f.Class, f.WholeAccount)
		}
	}
}
