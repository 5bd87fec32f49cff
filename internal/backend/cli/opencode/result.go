package opencode

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/work"
)

// Result makes the run's result of all that was told.
func (t *parser) Result(end cli.Ending) backend.Result {
	result := backend.Result{Output: t.text, Metadata: t.metadata(), CostIncomplete: t.busy || t.unpriced()}
	t.Findings.SessionUnknown = cli.SessionMissing(t.Req, end)
	switch {
	case end.Stopped != nil:
		return result
	case t.failed != nil:
		result.Error = t.failed.failure(end.Stderr)
	case t.reason == "length":
		result.Error = work.Fail(work.ClassInvalidRequest, "the answer reached the limit on its length and was cut off")
	case !t.Final && t.denied && (end.State == nil || end.State.Success()): // it ends there, without a word
		result.Error = work.Fail(work.ClassToolDenied, "opencode ended because a tool that it called is not allowed"+cli.WithStderr(end.Stderr))
	case !t.Final:
		result.Error = cli.NoResult("opencode", end)
	case t.Req.MaxTurns > 0 && t.turns > t.Req.MaxTurns: // it was faster than our check
		result.Error = backend.TooManyTurns(t.Req)
	case t.overBudget() != nil:
		result.Error = t.overBudget()
	case end.Missed > 0:
		result.Error = cli.LostAnswer("opencode", end)
	case t.Schema != nil:
		result.Output = backend.Unfence(t.text)
		result.Error = t.CheckSchema(result.Output)
	}
	result.Success = result.Error == nil
	return result
}

func (t *parser) metadata() backend.Metadata {
	m := backend.Metadata{
		SessionID: cmp.Or(t.session, t.Req.SessionID), Model: t.Req.Model, NumTurns: t.turns,
		DurationMS: time.Since(t.Began).Milliseconds(), Usage: t.usage, TotalCostUSD: t.spent(),
	}
	return m
}

func (s *status) next() time.Time { return time.UnixMilli(int64(s.Next)) }

// failure says what keeps the client waiting, of which it gives words alone.
// It waits for long only if the server has said for how long.
func (s *status) failure() *work.Failure {
	f := cli.FailureOf("opencode", s.Message, "")
	if until := s.next(); time.Until(until) > maxWait {
		f.Class, f.ResetAt = work.ClassRateLimit, until.UTC()
	}
	return f
}

// errorClasses are errors that the client has a name for.
var errorClasses = map[string]work.Class{
	"ProviderAuthError": work.ClassAuth, "ContextOverflowError": work.ClassContextTooLong,
	"ContentFilterError": work.ClassRefusal, "MessageOutputLengthError": work.ClassInvalidRequest,
	"ProviderModelNotFoundError": work.ClassInvalidRequest,
}

// failure says what kind of failure an error is: by its name, by the status of
// the model's API, by its words.
func (e *apiError) failure(stderr string) *work.Failure {
	words := cmp.Or(e.Data.Message, e.Name, "opencode failed")
	if e.Data.StatusCode != 0 {
		words = fmt.Sprintf("%s (status %d)", words, e.Data.StatusCode)
	}
	f := cli.FailureOf("opencode", words, stderr)
	if class, named := errorClasses[e.Name]; named {
		f.Class = class
	}
	if seconds, err := strconv.Atoi(e.Data.Headers["retry-after"]); err == nil && f.Class == work.ClassRateLimit {
		f.ResetAt = time.Now().Add(time.Duration(seconds) * time.Second).UTC()
	}
	return f
}
