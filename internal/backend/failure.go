package backend

import (
	"cmp"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

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
	{work.ClassContextTooLong, regexp.MustCompile(`(?i)prompt is too long|exceed.{0,20}context|context (window|length)|exceeds the maximum number of tokens`)},
	{work.ClassAuth, regexp.MustCompile(`(?i)not logged in|/login\b|invalid (x-)?api.key|api.key (is )?(not valid|missing)|failed to authenticate|oauth token|incorrect api.key|missing environment variable|authentication required`)},
	{work.ClassRateLimit, regexp.MustCompile(`(?i)(usage|session|weekly|5-hour|rate).limit|limit reached|hit your limit|overloaded|at capacity|too many requests|resource.{0,20}exhausted`)},
	{work.ClassRefusal, regexp.MustCompile(`(?i)content.?(filter|policy)|usage policy|safety settings`)},
	{work.ClassInvalidRequest, regexp.MustCompile(`(?i)model.{0,80}(does not exist|not found|not supported)|max_output_tokens|output token (maximum|limit)`)},
	{work.ClassInfra, regexp.MustCompile(`(?i)stream disconnected|connection (was )?(reset|closed|lost)|ECONNRESET|socket hang up`)},
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

// classOf sorts a failure of which there are words only: a status may be among
// them. "" is a failure that they do not tell.
func classOf(words string) work.Class {
	status := 0
	if found := statusIn.FindStringSubmatch(words); found != nil {
		status, _ = strconv.Atoi(found[1])
	}
	if class := classOfWords(words); class != "" && status < 500 {
		return class
	}
	return classOfStatus(status)
}

var statusIn = regexp.MustCompile(`(?i)\b(?:status|error):? (\d{3})\b`)

// failureOf makes a failure of an agent's words, or of its stderr alone. What
// they do not tell is likely to pass.
func failureOf(agent, words, stderr string) *work.Failure {
	class := classOf(cmp.Or(words, stderr))
	failure := work.Fail(cmp.Or(class, work.ClassInfra), cmp.Or(words, agent+" failed")+withStderr(stderr))
	if wait, ok := waitIn(cmp.Or(words, stderr)); ok && class == work.ClassRateLimit {
		failure.ResetAt = time.Now().Add(wait).UTC()
	}
	failure.WholeAccount = class == work.ClassRateLimit && ofAccount(cmp.Or(words, stderr))
	return failure
}

// ofAccount tells whether a rate limit is one of the whole account: the window
// of a subscription. Other limits are the model's.
func ofAccount(words string) bool {
	return window.MatchString(words) && !ofModel.MatchString(words)
}

var (
	window  = regexp.MustCompile(`(?i)(usage|session|weekly|5-hour).limit|hit your limit`)
	ofModel = regexp.MustCompile(`(?i)\b(model|opus|sonnet|haiku|gpt|gemini|codex-mini)\b`)
)

// refusedToStart matches what agents say of flags they cannot take; the same
// flags will not do better a second time.
var refusedToStart = regexp.MustCompile(`(?m)^[Ee]rror: |cannot be used with root|^No prompt provided`)

// waitIn reads "try again in 1m12s", "try again in 2 hours 5 minutes" and
// "retry after 30s".
func waitIn(words string) (time.Duration, bool) {
	found := again.FindStringSubmatch(words)
	if found == nil {
		return 0, false
	}
	var wait time.Duration
	for _, part := range span.FindAllStringSubmatch(found[1], -1) {
		number, _ := strconv.ParseFloat(part[1], 64)
		wait += time.Duration(number * float64(spans[strings.ToLower(part[2])]))
	}
	return wait, true
}

var (
	again = regexp.MustCompile(`(?i)(?:try again in|retry (?:in|after)) ((?:[\d.]+\s*(?:ms|days?|hours?|minutes?|seconds?|[smhd])\b?[\s,]*(?:and\s+)?)+)`)
	span  = regexp.MustCompile(`(?i)(\d+(?:\.\d+)?)\s*(ms|d|h|m|s)`)
	spans = map[string]time.Duration{
		"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}
)
