package backend

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"piecework/internal/work"
)

// end makes the run's result of all that was told.
func (t *geminiTold) end(end ending) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.said()
	t.think()
	// Between two calls of the model all that was used is known.
	known := t.result != nil || t.rounds == 0 && t.session == "" || len(t.open) > 0 && len(t.record.uses) >= t.rounds
	result := Result{Output: t.text, Metadata: t.metadata(), CostIncomplete: !known}
	t.heard.unknown = lacksSession(t.req, end)
	if t.result != nil && t.record.last != "" {
		result.Output = t.record.last // without what was cut off and said again
	}
	switch {
	case end.stopped != nil:
		return result
	case t.result == nil:
		result.Error = geminiStart(end)
	case t.result.Status != "success":
		result.Error = t.failure(end)
	case t.warned != "":
		result.Error = cutOff(t.warned)
	case t.req.MaxTurns > 0 && result.Metadata.NumTurns > t.req.MaxTurns: // it was faster than our check
		result.Error = tooManyTurns(t.req)
	case t.prices.overspent(t.req, t.uses()) != nil:
		result.Error = t.prices.overspent(t.req, t.uses())
	case end.missed > 0:
		result.Error = lostAnswer("gemini", end)
	case t.schema != nil:
		result.Output = unfenced(result.Output)
		result.Error = checkOutput(t.schema, result.Output)
		t.heard.misfit = result.Error != nil
	}
	result.Success = result.Error == nil
	return result
}

func (t *geminiTold) metadata() Metadata {
	m := Metadata{
		SessionID: cmp.Or(t.session, t.req.SessionID), Model: cmp.Or(t.model, t.req.Model), NumTurns: t.turns(),
		DurationMS: time.Since(t.began).Milliseconds(),
	}
	uses := t.uses()
	for _, used := range uses {
		m.Usage.InputTokens += used.InputTokens
		m.Usage.OutputTokens += used.OutputTokens
		m.Usage.CacheReadTokens += used.CacheReadTokens
	}
	m.TotalCostUSD, _ = t.prices.cost(uses)
	if r := t.result; r != nil && r.Stats.Total > 0 {
		if r.Stats.DurationMS > 0 {
			m.DurationMS = int64(r.Stats.DurationMS)
		}
		m.Usage = work.Usage{
			InputTokens: max(0, r.Stats.Input-r.Stats.Cached), CacheReadTokens: r.Stats.Cached,
			OutputTokens: max(r.Stats.Output, r.Stats.Total-r.Stats.Input), // thoughts too
		}
		if len(uses) == 0 {
			m.TotalCostUSD = t.prices.costOfSum(use{m.Model, m.Usage})
		}
	}
	return m
}

// The exit codes that the client has a meaning for. Those of an HTTP status are
// what one byte holds of it.
const (
	geminiNoAuth   = 41
	geminiBadInput = 42
	geminiNoConfig = 52
	geminiStatus   = 144 // and above: 400 and above, less 256
)

func exitCode(end ending) int {
	if end.state == nil {
		return 0
	}
	return end.state.ExitCode()
}

// geminiStart reads off the exit code why there is no result.
func geminiStart(end ending) *work.Failure {
	classes := map[int]work.Class{
		geminiNoAuth: work.ClassAuth, geminiBadInput: work.ClassInvalidRequest, geminiNoConfig: work.ClassInvalidRequest,
	}
	if class, told := classes[exitCode(end)]; told {
		return work.Fail(class, fmt.Sprintf("gemini did not start (exit status %d)", exitCode(end))+withStderr(end.stderr))
	}
	return died("gemini", end)
}

// failure says what kind of failure the result tells of. It gives words, and
// the status in its exit code; sometimes it shows the API's own answer.
func (t *geminiTold) failure(end ending) *work.Failure {
	words := cmp.Or(t.result.Error.Message, t.warned, "gemini failed")
	status := 0
	if code := exitCode(end); code >= geminiStatus {
		status = code + 256
	}
	if inner, ok := strings.CutPrefix(words, "[API Error: "); ok {
		var body struct {
			Error struct {
				Code    int    `json:"code"`
				Message string `json:"message"`
			} `json:"error"`
		}
		if json.NewDecoder(strings.NewReader(inner)).Decode(&body) == nil && body.Error.Message != "" {
			words, status = body.Error.Message, cmp.Or(body.Error.Code, status)
		} else {
			inner, advice, _ := strings.Cut(inner, "]\n")
			words = strings.TrimSuffix(inner, "]")
			if status == 0 && strings.Contains(advice, "try again later") {
				status = 429
			}
		}
	}
	f := failureOf("gemini", words, end.stderr)
	switch class := classOfStatus(status); {
	case t.result.Error.Type == "FatalTurnLimitedError":
		return tooManyTurns(t.req)
	case t.result.Error.Type == "FatalAuthenticationError":
		f.Class = work.ClassAuth
	case class == work.ClassRateLimit: // its words for it speak of plans and billing, always
		f.Class = class
		if wait, ok := waitIn(words); ok {
			f.ResetAt = time.Now().Add(wait).UTC()
		}
	case class != "" && (classOfWords(words) == "" || status >= 500):
		f.Class = class
	case class == "" && strings.Contains(end.stderr, "ModelNotFoundError"):
		f.Class = work.ClassInvalidRequest
	}
	if status != 0 {
		f.Message = fmt.Sprintf("%s (status %d)", words, status) + withStderr(end.stderr)
	}
	return f
}
