package backend

import (
	"strings"
	"time"

	"piecework/internal/work"
)

// end makes the run's result of all that was told.
func (t *codexTold) end(end ending) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read()
	t.addUntold(t.record.rest())
	result := Result{Output: t.text, Metadata: t.metadata(), CostIncomplete: t.turn > 0 && !t.final && !t.toolsAtWork()}
	t.heard.unknown = lacksSession(t.req, end)
	switch {
	case end.stopped != nil:
		return result
	case t.failed != nil:
		result.Error = codexFailure(*t.failed, end.stderr)
	case !t.final:
		result.Error = died("codex", end)
	case t.req.MaxTurns > 0 && result.Metadata.NumTurns > t.req.MaxTurns: // it was faster than our check
		result.Error = tooManyTurns(t.req)
	case t.prices.overspent(t.req, t.record.uses) != nil:
		result.Error = t.prices.overspent(t.req, t.record.uses)
	case t.walled > 0 && t.walled == t.answers:
		result.Error = work.Fail(work.ClassInfra, "codex's sandbox does not work here, every command failed: "+t.wall+
			"; mend it, or set PIECEWORK_CODEX_SANDBOX=danger-full-access where the machine itself is one")
	case end.missed > 0:
		result.Error = lostAnswer("codex", end)
	case t.schema != nil:
		result.Error = checkOutput(t.schema, t.text)
		t.heard.misfit = result.Error != nil
	}
	result.Success = result.Error == nil
	return result
}

// toolsAtWork tells whether the model was waiting for its tools: then all that
// it has used is written down.
func (t *codexTold) toolsAtWork() bool {
	r := t.record
	return r.calls > 0 && r.before == r.calls && (r.answers < r.calls || len(t.calls) > 0)
}

func (t *codexTold) metadata() Metadata {
	m := Metadata{
		SessionID: t.req.SessionID, Model: t.req.Model, NumTurns: t.turns(), DurationMS: time.Since(t.began).Milliseconds(),
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
	m.TotalCostUSD, _ = t.prices.cost(t.record.uses)
	if len(t.record.uses) == 0 {
		m.Usage = total.since(former)
		m.TotalCostUSD = t.prices.costOfSum(use{m.Model, m.Usage})
	}
	return m
}

// codexFailure says what kind of failure the client tells of: it gives words
// only. It shows the body of a 400 as it came.
func codexFailure(words, stderr string) *work.Failure {
	var body struct {
		Error struct {
			Message string `json:"message"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	if decode([]byte(words), &body) != nil || body.Error.Message == "" {
		return failureOf("codex", words, stderr)
	}
	failure := failureOf("codex", strings.TrimSpace(body.Error.Message+" "+body.Error.Code), stderr)
	if failure.Class == work.ClassInfra {
		failure.Class = work.ClassInvalidRequest
	}
	return failure
}
