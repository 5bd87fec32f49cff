package cli

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

const (
	stderrLines = 10
	stderrBytes = 2 << 10
)

// WithStderr returns the last lines of stderr as an addition to a message.
func WithStderr(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := strings.Join(lines[max(0, len(lines)-stderrLines):], "\n")
	if last == "" {
		return ""
	}
	if len(last) > stderrBytes {
		last = "…" + last[len(last)-stderrBytes:]
	}
	return "\nstderr: " + last
}

// answerInFileHint is what to do about an agent that says too much. The same work
// would be as long again, and cost as much.
const answerInFileHint = "; have the agent write what is long into a file, and answer with the file's name"

// LostAnswer is the failure of a run whose answer may have been in a line that was
// too long to be taken; nil when there was none.
func LostAnswer(agent string, end Ending) *work.Failure {
	if end.Missed == 0 {
		return nil
	}
	return work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
		"the answer of %s is lost: a line of its output has %d bytes, and %d (%d MiB) is the most that is read%s",
		agent, end.Missed, MaxLine, MaxLine>>20, answerInFileHint)+WithStderr(end.Stderr))
}

// NoResult says what it means that an agent ended without its final result.
func NoResult(agent string, end Ending) *work.Failure {
	if f := LostAnswer(agent, end); f != nil {
		return f
	}
	how := "in an unknown way"
	if end.State != nil {
		how = end.State.String()
		if !end.State.Exited() {
			return work.Fail(work.ClassCrash, agent+" was ended by a signal ("+how+") before it gave a result"+WithStderr(end.Stderr))
		}
	}
	if !end.Silent || end.State == nil || end.State.Success() {
		return work.Fail(work.ClassCrash, agent+" ended ("+how+") without a result"+WithStderr(end.Stderr))
	}
	class := backend.ClassOfText(end.Stderr)
	if class == "" {
		class = work.ClassInfra
		if refusedToStart.MatchString(end.Stderr) {
			class = work.ClassInvalidRequest
		}
	}
	return work.Fail(class, agent+" did not start ("+how+")"+WithStderr(end.Stderr))
}

// ClassOf sorts a failure of which there are words only: a status may be among
// them. "" is a failure that they do not tell.
func ClassOf(words string) work.Class {
	status := 0
	if found := statusIn.FindStringSubmatch(words); found != nil {
		status, _ = strconv.Atoi(found[1])
	}
	if class := backend.ClassOfText(words); class != "" && status < 500 {
		return class
	}
	return backend.ClassOfStatus(status)
}

var statusIn = regexp.MustCompile(`(?i)\b(?:status|error):? (\d{3})\b`)

// FailureOf makes a failure of an agent's words, or of its stderr alone. What
// they do not tell is likely to pass.
func FailureOf(agent, words, stderr string) *work.Failure {
	class := ClassOf(cmp.Or(words, stderr))
	failure := work.Fail(cmp.Or(class, work.ClassInfra), cmp.Or(words, agent+" failed")+WithStderr(stderr))
	if wait, ok := RetryDelay(cmp.Or(words, stderr)); ok && class == work.ClassRateLimit {
		failure.ResetAt = time.Now().Add(wait).UTC()
	}
	failure.WholeAccount = class == work.ClassRateLimit && WholeAccount(cmp.Or(words, stderr))
	return failure
}

// WholeAccount tells whether a rate limit is one of the whole account: the window
// of a subscription. Other limits are the model's.
func WholeAccount(words string) bool {
	return window.MatchString(words) && !ofModel.MatchString(words)
}

var (
	window  = regexp.MustCompile(`(?i)(usage|session|weekly|5-hour).limit|hit your limit`)
	ofModel = regexp.MustCompile(`(?i)\b(model|opus|sonnet|haiku|gpt|gemini|codex-mini)\b`)
)

// refusedToStart matches what agents say of flags they cannot take; the same
// flags will not do better a second time.
var refusedToStart = regexp.MustCompile(`(?m)^[Ee]rror: |cannot be used with root|^No prompt provided`)

// RetryDelay reads "try again in 1m12s", "try again in 2 hours 5 minutes" and
// "retry after 30s".
func RetryDelay(words string) (time.Duration, bool) {
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
	again = regexp.MustCompile(`(?i)(?:try again in|retry (?:in|after)) ` +
		`((?:[\d.]+\s*(?:ms|days?|hours?|minutes?|seconds?|[smhd])\b?[\s,]*(?:and\s+)?)+)`)
	span  = regexp.MustCompile(`(?i)(\d+(?:\.\d+)?)\s*(ms|d|h|m|s)`)
	spans = map[string]time.Duration{
		"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}
)
