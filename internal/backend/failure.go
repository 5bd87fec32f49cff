package backend

import (
	"net/http"
	"regexp"

	"piecework/internal/work"
)

// classOfStatus sorts an HTTP status of a model API, "" when it says nothing.
func classOfStatus(status int) work.Class {
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
	{work.ClassContextTooLong, regexp.MustCompile(`(?i)prompt is too long|exceed.{0,20}context|context window`)},
	{work.ClassAuth, regexp.MustCompile(`(?i)not logged in|/login\b|invalid (x-)?api.key|failed to authenticate|oauth token`)},
	{work.ClassRateLimit, regexp.MustCompile(`(?i)(usage|session|weekly|5-hour|rate).limit|limit reached|hit your limit|overloaded`)},
}

// classOfWords sorts a failure by what an agent says of it.
func classOfWords(words string) work.Class {
	for _, t := range telling {
		if t.words.MatchString(words) {
			return t.class
		}
	}
	return ""
}

// refusedToStart matches what agents say of flags they cannot take; the same
// flags will not do better a second time.
var refusedToStart = regexp.MustCompile(`(?m)^[Ee]rror: |cannot be used with root`)
