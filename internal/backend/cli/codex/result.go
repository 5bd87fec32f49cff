package codex

import (
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/work"
)

// Result makes the run's result of all that was told.
func (t *parser) Result(end cli.Ending) backend.Result {
	t.read()
	t.addUnreported(t.record.rest())
	result := backend.Result{Output: t.text, Metadata: t.metadata(), CostIncomplete: t.turn > 0 && !t.Final && !t.toolsAtWork()}
	t.Findings.SessionUnknown = cli.SessionMissing(t.Req, end)
	switch {
	case end.Stopped != nil:
		return result
	case t.failed != nil:
		result.Error = apiFailure(*t.failed, end.Stderr)
	case !t.Final:
		result.Error = cli.NoResult("codex", end)
	case t.Req.MaxTurns > 0 && result.Metadata.NumTurns > t.Req.MaxTurns: // it was faster than our check
		result.Error = backend.TooManyTurns(t.Req)
	case t.Prices.Overspent(t.Req, t.record.uses) != nil:
		result.Error = t.Prices.Overspent(t.Req, t.record.uses)
	case t.walled > 0 && t.walled == t.answers:
		result.Error = work.Fail(work.ClassInfra, "codex's sandbox does not work here, every command failed: "+t.wall+
			"; mend it, or set PIECEWORK_CODEX_SANDBOX=danger-full-access where the machine itself is one")
	case end.Missed > 0:
		result.Error = cli.LostAnswer("codex", end)
	case t.Schema != nil:
		result.Error = t.CheckSchema(t.text)
	}
	result.Success = result.Error == nil
	return result
}

// toolsAtWork tells whether the model was waiting for its tools: then all that
// it has used is written down.
func (t *parser) toolsAtWork() bool {
	r := t.record
	return r.calls > 0 && r.before == r.calls && (r.answers < r.calls || len(t.calls) > 0)
}

func (t *parser) metadata() backend.Metadata {
	m := backend.Metadata{
		SessionID: t.Req.SessionID, Model: t.Req.Model, NumTurns: t.turns(), DurationMS: time.Since(t.Began).Milliseconds(),
	}
	if t.thread != "" {
		m.SessionID = t.thread
	}
	if t.record.model != "" {
		m.Model = t.record.model
	}
	total, former := t.record.total, t.record.former
	if t.usage != nil {
		total = *t.usage
	}
	for _, u := range t.record.uses {
		m.Usage = m.Usage.And(u.Usage)
	}
	m.TotalCostUSD, _ = t.Prices.Cost(t.record.uses)
	if len(t.record.uses) == 0 {
		m.Usage = total.since(former)
		m.TotalCostUSD = t.Prices.CostOfSum(backend.Use{Model: m.Model, Usage: m.Usage})
	}
	return m
}

// apiFailure says what kind of failure the client tells of: it gives words
// only. It shows the body of a 400 as it came.
func apiFailure(words, stderr string) *work.Failure {
	var body struct {
		Error struct {
			Message string `json:"message"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	if backend.Decode([]byte(words), &body) != nil || body.Error.Message == "" {
		return cli.FailureOf("codex", words, stderr)
	}
	failure := cli.FailureOf("codex", strings.TrimSpace(body.Error.Message+" "+body.Error.Code), stderr)
	if failure.Class == work.ClassInfra {
		failure.Class = work.ClassInvalidRequest
	}
	return failure
}
