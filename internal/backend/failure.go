package backend

import (
	"fmt"
	"net/http"
	"regexp"

	"piecework/internal/work"
)

// Silence is an error: nothing came for too long.
type Silence struct{ What string }

func (h Silence) Error() string { return h.What }

// TooManyTurns is the failure of a run that has had all its turns.
func TooManyTurns(req Request) *work.Failure {
	return work.Fail(work.ClassMaxTurns, fmt.Sprintf("max_turns (%d) was reached", req.MaxTurns))
}

// ClassOfStatus sorts an HTTP status of a model API, "" when it says nothing.
func ClassOfStatus(status int) work.Class {
	switch {
	case status == http.StatusTooManyRequests || status == 529: // 529: the provider is overloaded
		return work.ClassRateLimit
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return work.ClassAuth
	case status == http.StatusPaymentRequired:
		return work.ClassBilling
	case status == http.StatusRequestEntityTooLarge:
		return work.ClassContextTooLong
	case status == http.StatusRequestTimeout || status == http.StatusConflict:
		return work.ClassInfra
	case status >= 400 && status < 500:
		return work.ClassInvalidRequest
	case status >= 500:
		return work.ClassInfra
	}
	return ""
}

var telling = []struct {
	class work.Class
	words *regexp.Regexp
}{
	{work.ClassBilling, regexp.MustCompile(`(?i)credit balance|billing|insufficient (funds|credit|quota)`)},
	{work.ClassContextTooLong, regexp.MustCompile(`(?i)prompt is too long|exceed.{0,20}context|context (window|length)|` +
		`exceeds the maximum number of tokens`)},
	{work.ClassAuth, regexp.MustCompile(`(?i)not logged in|/login\b|invalid (x-)?api.key|api.key (is )?(not valid|missing)|` +
		`failed to authenticate|oauth token|incorrect api.key|missing environment variable|authentication required`)},
	{work.ClassRateLimit, regexp.MustCompile(`(?i)(usage|session|weekly|5-hour|rate).limit|limit reached|` +
		`hit your limit|overloaded|at capacity|too many requests|resource.{0,20}exhausted`)},
	{work.ClassRefusal, regexp.MustCompile(`(?i)content.?(filter|policy)|usage policy|safety settings`)},
	{work.ClassInvalidRequest, regexp.MustCompile(`(?i)model.{0,80}(does not exist|not found|not supported)|` +
		`max_output_tokens|output token (maximum|limit)`)},
	{work.ClassInfra, regexp.MustCompile(`(?i)stream disconnected|connection (was )?(reset|closed|lost)|ECONNRESET|socket hang up`)},
}

// ClassOfText sorts a failure by what an agent says of it.
func ClassOfText(words string) work.Class {
	for _, t := range telling {
		if t.words.MatchString(words) {
			return t.class
		}
	}
	return ""
}
