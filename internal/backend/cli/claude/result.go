package claude

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/work"
)

// resultEvent is the client's result of a run.
type resultEvent struct {
	Subtype          string            `json:"subtype"`
	IsError          bool              `json:"is_error"`
	Result           string            `json:"result"`
	Errors           []json.RawMessage `json:"errors"`
	StructuredOutput json.RawMessage   `json:"structured_output"`
	NumTurns         int               `json:"num_turns"`
	TotalCostUSD     *float64          `json:"total_cost_usd"` // of the session, not of the run
	DurationMS       float64           `json:"duration_ms"`
	DurationAPIMS    float64           `json:"duration_api_ms"`
	StopReason       string            `json:"stop_reason"`
	TerminalReason   string            `json:"terminal_reason"`
	APIErrorStatus   int               `json:"api_error_status"`
	Denials          []struct {
		ID    string          `json:"tool_use_id"`
		Name  string          `json:"tool_name"`
		Input json.RawMessage `json:"tool_input"`
	} `json:"permission_denials"`
	Usage struct {
		Input         int64 `json:"input_tokens"`
		Output        int64 `json:"output_tokens"`
		CacheRead     int64 `json:"cache_read_input_tokens"`
		CacheCreation int64 `json:"cache_creation_input_tokens"`
	} `json:"usage"`
}

func readResult(line []byte) *resultEvent {
	var r resultEvent
	_ = backend.Decode(line, &r)
	return &r
}

func (r *resultEvent) failed() bool { return r.IsError || strings.HasPrefix(r.Subtype, "error") }

// words is what the client says of a failure.
func (r *resultEvent) words() string {
	words := []string{}
	for _, raw := range r.Errors {
		text := string(raw)
		_ = json.Unmarshal(raw, &text)
		words = append(words, text)
	}
	if r.Result != "" {
		words = append(words, r.Result)
	}
	return strings.Join(words, "; ")
}

// Result makes the run's result of all that was told.
func (t *parser) Result(end cli.Ending) backend.Result {
	result := backend.Result{Output: t.text.String(), Metadata: t.metadata()}
	r := t.result
	if r == nil {
		result.CostIncomplete = t.begun
		if end.Stopped == nil {
			result.Error = t.noResult(end)
		}
		return result
	}
	switch {
	case r.failed():
		t.Findings.SessionUnknown = strings.Contains(r.words(), "No conversation found")
		result.Error = t.failure(r, end.Stderr)
	case r.StopReason == "refusal" && r.Result == "":
		result.Error = work.Fail(work.ClassRefusal, "the model declined to answer")
	case t.tasks.open() != "":
		result.Output = r.Result
		result.Error = work.Fail(work.ClassIncomplete, "claude ended its turn before the work was done: there was still "+t.tasks.open())
		t.Findings.Unfinished = true
	case t.Schema != nil:
		result.Output = cmp.Or(string(r.StructuredOutput), backend.Unfence(r.Result)) // models also answer in text
		result.Error = t.CheckSchema(result.Output)
	default:
		result.Output = r.Result
	}
	result.Success = result.Error == nil
	return result
}

func (t *parser) metadata() backend.Metadata {
	m := backend.Metadata{SessionID: t.Req.SessionID, Model: t.Req.Model}
	if t.session != "" {
		m.SessionID = t.session
	}
	if t.model != "" {
		m.Model = t.model
	}
	r := t.result
	if r == nil {
		return m
	}
	m.NumTurns, m.DurationMS, m.DurationAPIMS = r.NumTurns, int64(r.DurationMS), int64(r.DurationAPIMS)
	m.Usage = work.Usage{
		InputTokens: r.Usage.Input, OutputTokens: r.Usage.Output,
		CacheReadTokens: r.Usage.CacheRead, CacheCreationTokens: r.Usage.CacheCreation,
	}
	if r.TotalCostUSD != nil {
		m.SessionTotalUSD, m.SessionResumed = r.TotalCostUSD, t.Req.Resume
		cost := *r.TotalCostUSD
		if cost >= t.Req.SessionCostUSD { // otherwise the client began to count anew
			// Rounded, because the difference of two sums of floats has noise in it.
			cost = math.Round((cost-t.Req.SessionCostUSD)*1e9) / 1e9
		}
		m.TotalCostUSD = &cost
	}
	return m
}

// failure says what kind of failure a result tells of.
func (t *parser) failure(r *resultEvent, stderr string) *work.Failure {
	class, words := t.classify(r), r.words()
	switch class {
	case work.ClassMaxTurns:
		words = fmt.Sprintf("max_turns (%d) was reached", t.Req.MaxTurns)
	case work.ClassMaxCost:
		words = "max_cost_usd was reached: " + words
	}
	if words == "" {
		words = "claude failed and did not say why (" + r.Subtype + ")"
	}
	failure := work.Fail(class, words+cli.WithStderr(stderr))
	if class == work.ClassRateLimit {
		failure.ResetAt, failure.WholeAccount = t.resetTime(words), cli.WholeAccount(words)
	}
	return failure
}

func (t *parser) classify(r *resultEvent) work.Class {
	switch {
	case r.Subtype == "error_max_turns":
		return work.ClassMaxTurns
	case strings.HasPrefix(r.Subtype, "error_max_budget"):
		return work.ClassMaxCost
	case strings.Contains(r.Subtype, "structured_output"):
		return work.ClassSchemaInvalid
	case r.StopReason == "refusal":
		return work.ClassRefusal
	case r.TerminalReason == "prompt_too_long":
		return work.ClassContextTooLong
	}
	if class := backend.ClassOfText(r.words()); class != "" && r.APIErrorStatus < 500 {
		return class
	}
	if class := backend.ClassOfStatus(r.APIErrorStatus); class != "" {
		return class
	}
	if !t.resetAt.IsZero() {
		return work.ClassRateLimit
	}
	return work.ClassInfra
}

var epoch = regexp.MustCompile(`\|(\d{10})\b`)

// resetTime is when the limit ends, by event or by the older "limit
// reached|1763712000" in the text.
func (t *parser) resetTime(words string) time.Time {
	if m := epoch.FindStringSubmatch(words); m != nil && t.resetAt.IsZero() {
		seconds, _ := strconv.ParseInt(m[1], 10, 64)
		return time.Unix(seconds, 0).UTC()
	}
	return t.resetAt
}

// noResult says what it means that the client ended without a result.
func (t *parser) noResult(end cli.Ending) *work.Failure {
	t.Findings.SessionTaken = end.Silent && strings.Contains(end.Stderr, "is already in use")
	return cli.NoResult("claude", end)
}
