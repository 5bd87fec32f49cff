package cli

import (
	"testing"
	"time"

	"piecework/internal/work"
)

func TestWaitIn(t *testing.T) {
	for words, want := range map[string]time.Duration{
		"Please try again in 3s.":                 3 * time.Second,
		"try again in 1m12s":                      72 * time.Second,
		"Try again in 20ms":                       20 * time.Millisecond,
		"try again in 6.5 seconds":                6500 * time.Millisecond,
		"or try again in 2 days 3 hours 1 minute": 51*time.Hour + time.Minute,
		"try again later":                         0,
	} {
		if got, ok := RetryDelay(words); got != want || ok != (want > 0) {
			t.Errorf("%q: %v, %v", words, got, ok)
		}
	}
}

func TestClassOfWords(t *testing.T) {
	for words, want := range map[string]work.Class{
		"exceeded retry limit, last status: 429 Too Many Requests":          work.ClassRateLimit,
		"unexpected status 401 Unauthorized: no":                            work.ClassAuth,
		"unexpected status 402 Payment Required: pay":                       work.ClassBilling,
		"unexpected status 503 Service Unavailable: rate limit":             work.ClassInfra,
		"Quota exceeded. Check your plan and billing details.":              work.ClassBilling,
		"Codex ran out of room in the model's context window.":              work.ClassContextTooLong,
		"Missing environment variable: `OPENAI_API_KEY`.":                   work.ClassAuth,
		"The model gpt-9 does not exist":                                    work.ClassInvalidRequest,
		"Selected model is at capacity.":                                    work.ClassRateLimit,
		"stream disconnected before completion":                             work.ClassInfra,
		"Authentication required. Please run 'agent login' or set the key.": work.ClassAuth,
	} {
		if got := ClassOf(words); got != want {
			t.Errorf("%q: %q, want %q", words, got, want)
		}
	}
}

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
		f := FailureOf("agent", words, "")
		if f.Class != work.ClassRateLimit || f.WholeAccount != account {
			t.Errorf("%q: class %s, of the account: %v", words, f.Class, f.WholeAccount)
		}
	}
}
