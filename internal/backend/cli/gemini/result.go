package gemini

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/work"
)

// Result makes the run's result of all that was told.
func (t *parser) Result(end cli.Ending) backend.Result {
	t.said()
	t.think()
	// Between two calls of the model all that was used is known.
	known := t.result != nil || t.rounds == 0 && t.session == "" || len(t.open) > 0 && len(t.record.uses) >= t.rounds
	result := backend.Result{Output: t.text, Metadata: t.metadata(), CostIncomplete: !known}
	t.Findings.SessionUnknown = cli.SessionMissing(t.Req, end)
	if t.result != nil && t.record.last != "" {
		result.Output = t.record.last // without what was cut off and said again
	}
	switch {
	case end.Stopped != nil:
		return result
	case t.result == nil:
		result.Error = startFailure(end)
	case t.result.Status != "success":
		result.Error = t.failure(end)
	case t.warned != "":
		result.Error = cutOff(t.warned)
	case t.Req.MaxTurns > 0 && result.Metadata.NumTurns > t.Req.MaxTurns: // it was faster than our check
		result.Error = backend.TooManyTurns(t.Req)
	case t.Prices.Overspent(t.Req, t.uses()) != nil:
		result.Error = t.Prices.Overspent(t.Req, t.uses())
	case end.Missed > 0:
		result.Error = cli.LostAnswer("gemini", end)
	case t.Schema != nil:
		result.Output = backend.Unfence(result.Output)
		result.Error = t.CheckSchema(result.Output)
	}
	result.Success = result.Error == nil
	return result
}

func (t *parser) metadata() backend.Metadata {
	m := backend.Metadata{
		SessionID: cmp.Or(t.session, t.Req.SessionID), Model: cmp.Or(t.model, t.Req.Model), NumTurns: t.turns(),
		DurationMS: time.Since(t.Began).Milliseconds(),
	}
	uses := t.uses()
	for _, used := range uses {
		m.Usage.InputTokens += used.InputTokens
		m.Usage.OutputTokens += used.OutputTokens
		m.Usage.CacheReadTokens += used.CacheReadTokens
	}
	m.TotalCostUSD, _ = t.Prices.Cost(uses)
	if r := t.result; r != nil && r.Stats.Total > 0 {
		if r.Stats.DurationMS > 0 {
			m.DurationMS = int64(r.Stats.DurationMS)
		}
		m.Usage = work.Usage{
			InputTokens: max(0, r.Stats.Input-r.Stats.Cached), CacheReadTokens: r.Stats.Cached,
			OutputTokens: max(r.Stats.Output, r.Stats.Total-r.Stats.Input), // thoughts too
		}
		if len(uses) == 0 {
			m.TotalCostUSD = t.Prices.CostOfSum(backend.Use{Model: m.Model, Usage: m.Usage})
		}
	}
	return m
}

// The exit codes that the client has a meaning for. Those of an HTTP status are
// what one byte holds of it.
const (
	exitNoAuth   = 41
	exitBadInput = 42
	exitNoConfig = 52
	exitStatus   = 144 // and above: 400 and above, less 256
)

func exitCode(end cli.Ending) int {
	if end.State == nil {
		return 0
	}
	return end.State.ExitCode()
}

// startFailure reads off the exit code why there is no result.
func startFailure(end cli.Ending) *work.Failure {
	classes := map[int]work.Class{
		exitNoAuth: work.ClassAuth, exitBadInput: work.ClassInvalidRequest, exitNoConfig: work.ClassInvalidRequest,
	}
	if class, told := classes[exitCode(end)]; told {
		return work.Fail(class, fmt.Sprintf("gemini did not start (exit status %d)", exitCode(end))+cli.WithStderr(end.Stderr))
	}
	return cli.NoResult("gemini", end)
}

// failure says what kind of failure the result tells of. It gives words, and
// the status in its exit code; sometimes it shows the API's own answer.
func (t *parser) failure(end cli.Ending) *work.Failure {
	words := cmp.Or(t.result.Error.Message, t.warned, "gemini failed")
	status := 0
	if code := exitCode(end); code >= exitStatus {
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
	f := cli.FailureOf("gemini", words, end.Stderr)
	switch class := backend.ClassOfStatus(status); {
	case t.result.Error.Type == "FatalTurnLimitedError":
		return backend.TooManyTurns(t.Req)
	case t.result.Error.Type == "FatalAuthenticationError":
		f.Class = work.ClassAuth
	case class == work.ClassRateLimit: // its words for it speak of plans and billing, always
		f.Class = class
		if wait, ok := cli.RetryDelay(words); ok {
			f.ResetAt = time.Now().Add(wait).UTC()
		}
	case class != "" && (backend.ClassOfText(words) == "" || status >= 500):
		f.Class = class
	case class == "" && strings.Contains(end.Stderr, "ModelNotFoundError"):
		f.Class = work.ClassInvalidRequest
	}
	if status != 0 {
		f.Message = fmt.Sprintf("%s (status %d)", words, status) + cli.WithStderr(end.Stderr)
	}
	return f
}
