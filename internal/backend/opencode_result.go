package backend

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"piecework/internal/work"
)

// end makes the run's result of all that was told.
func (t *openCodeTold) end(end ending) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	result := Result{Output: t.text, Metadata: t.metadata(), CostIncomplete: t.busy || t.unpriced()}
	t.heard.unknown = lacksSession(t.req, end)
	switch {
	case end.stopped != nil:
		return result
	case t.failed != nil:
		result.Error = t.failed.failure(end.stderr)
	case t.reason == "length":
		result.Error = work.Fail(work.ClassInvalidRequest, "the answer reached the limit on its length and was cut off")
	case !t.final && t.denied && (end.state == nil || end.state.Success()): // it ends there, without a word
		result.Error = work.Fail(work.ClassToolDenied, "opencode ended because a tool that it called is not allowed"+withStderr(end.stderr))
	case !t.final:
		result.Error = died("opencode", end)
	case t.req.MaxTurns > 0 && t.turns > t.req.MaxTurns: // it was faster than our check
		result.Error = tooManyTurns(t.req)
	case t.overBudget() != nil:
		result.Error = t.overBudget()
	case end.missed > 0:
		result.Error = lostAnswer("opencode", end)
	case t.schema != nil:
		result.Output = unfenced(t.text)
		result.Error = checkOutput(t.schema, result.Output)
		t.heard.misfit = result.Error != nil
	}
	result.Success = result.Error == nil
	return result
}

func (t *openCodeTold) metadata() Metadata {
	m := Metadata{
		SessionID: cmp.Or(t.session, t.req.SessionID), Model: t.req.Model, NumTurns: t.turns,
		DurationMS: time.Since(t.began).Milliseconds(), Usage: t.usage, TotalCostUSD: t.spent(),
	}
	return m
}

func (s *openCodeStatus) next() time.Time { return time.UnixMilli(int64(s.Next)) }

// failure says what keeps the client waiting, of which it gives words alone.
// It waits for long only if the server has said for how long.
func (s *openCodeStatus) failure() *work.Failure {
	f := failureOf("opencode", s.Message, "")
	if until := s.next(); time.Until(until) > openCodePatience {
		f.Class, f.ResetAt = work.ClassRateLimit, until.UTC()
	}
	return f
}

// openCodeNames are errors that the client has a name for.
var openCodeNames = map[string]work.Class{
	"ProviderAuthError": work.ClassAuth, "ContextOverflowError": work.ClassContextTooLong,
	"ContentFilterError": work.ClassRefusal, "MessageOutputLengthError": work.ClassInvalidRequest,
	"ProviderModelNotFoundError": work.ClassInvalidRequest,
}

// failure says what kind of failure an error is: by its name, by the status of
// the model's API, by its words.
func (e *openCodeError) failure(stderr string) *work.Failure {
	words := cmp.Or(e.Data.Message, e.Name, "opencode failed")
	if e.Data.StatusCode != 0 {
		words = fmt.Sprintf("%s (status %d)", words, e.Data.StatusCode)
	}
	f := failureOf("opencode", words, stderr)
	if class, named := openCodeNames[e.Name]; named {
		f.Class = class
	}
	if seconds, err := strconv.Atoi(e.Data.Headers["retry-after"]); err == nil && f.Class == work.ClassRateLimit {
		f.ResetAt = time.Now().Add(time.Duration(seconds) * time.Second).UTC()
	}
	return f
}
