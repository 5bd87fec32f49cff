package opencode

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// parser is what one opencode process has told so far.
type parser struct {
	cli.Output

	saveSession func(session string)

	session string
	took    bool          // the client is at work on it: the session has the prompt
	text    string        // the newest of the model's
	turns   int           // that are over
	reason  string        // why the last one is
	cuts    int           // of the last ones, in a row, that ended before their end
	busy    bool          // a turn is going on, whose cost is not known
	cost    float64       // of the turns whose price it knows
	untrue  *float64      // what a turn is said to have cost and cannot have
	uses    []backend.Use // of the others
	usage   work.Usage
	denied  bool // the newest answer of a tool is that it is not allowed
	failed  *apiError
	retry   *status
}

func newParser(out cli.Output) *parser {
	return &parser{Output: out, saveSession: func(string) {}}
}

type event struct {
	cli.EventType
	SessionID string   `json:"sessionID"`
	Part      part     `json:"part"`
	Error     apiError `json:"error"`
	Status    status   `json:"status"`
}

type part struct {
	Text   string `json:"text"`
	CallID string `json:"callID"`
	Tool   string `json:"tool"`
	State  struct {
		Status   string          `json:"status"`
		Input    json.RawMessage `json:"input"`
		Output   string          `json:"output"`
		Error    string          `json:"error"`
		Metadata struct {
			Exit *int `json:"exit"`
		} `json:"metadata"`
	} `json:"state"`
	Reason string  `json:"reason"`
	Cost   float64 `json:"cost"`
	Tokens struct {
		Input     int64 `json:"input"`
		Output    int64 `json:"output"`
		Reasoning int64 `json:"reasoning"`
		Cache     struct {
			Read  int64 `json:"read"`
			Write int64 `json:"write"`
		} `json:"cache"`
	} `json:"tokens"`
}

type apiError struct {
	Name string `json:"name"`
	Data struct {
		Message    string            `json:"message"`
		StatusCode int               `json:"statusCode"`
		Headers    map[string]string `json:"responseHeaders"`
	} `json:"data"`
}

// status is what a session is doing, by our plugin.
type status struct {
	Type    string  `json:"type"` // busy, idle, retry
	Attempt int     `json:"attempt"`
	Message string  `json:"message"`
	Next    float64 `json:"next"` // when it will try again, in milliseconds since 1970
}

// Event takes one event.
func (t *parser) Event(e event, line []byte) {
	t.session = cmp.Or(e.SessionID, t.session)
	if t.session != "" && e.Type != "error" && !t.took {
		t.took = true
		t.saveSession(t.session)
	}
	switch e.Type {
	case "ready": // our plugin's word that the client has started
	case "status":
		t.status(e.Status)
	case "step_start":
		t.busy, t.Final, t.failed, t.retry = true, false, nil, nil
	case "text":
		t.text = e.Part.Text
		t.Missed = 0
		t.Steps.Extend(transcript.Content{Type: transcript.Text, Text: t.text})
	case "reasoning":
		t.Steps.Add(transcript.Step{Type: transcript.Reasoning, Text: e.Part.Text})
	case "tool_use":
		t.tool(e.Part)
	case "step_finish":
		t.finish(e.Part)
	case "error":
		t.failed, t.Final, t.busy = &e.Error, true, false
	default:
		cli.AddEvent(t.Steps, e.Type, line)
	}
}

func (t *parser) status(s status) {
	if s.Type != "idle" {
		t.busy = s.Type == "busy"
	}
	if s.Type != "retry" {
		return
	}
	t.retry, t.Final = &s, false
	t.Steps.Add(transcript.Step{Type: transcript.SystemText, IsError: true,
		Text: fmt.Sprintf("the model's API failed (attempt %d): %s", s.Attempt, s.Message)})
}

// tool adds a call and its answer: the client tells of both when the tool has
// ended.
func (t *parser) tool(p part) {
	t.Steps.Extend(transcript.Content{Type: transcript.ToolCall, ID: p.CallID, Name: p.Tool, Args: string(p.State.Input)})
	text, isError := p.State.Output, p.State.Status == "error"
	denied := isError && deniedPattern.MatchString(p.State.Error)
	if isError {
		text = p.State.Error
	}
	if exit := p.State.Metadata.Exit; exit != nil && *exit != 0 {
		text = strings.TrimSuffix(text, "\n") + fmt.Sprintf("\n(exit code %d)", *exit)
		isError = true
	}
	t.Steps.Add(transcript.Step{
		Type: transcript.ToolResult, CallID: p.CallID, Text: strings.TrimPrefix(text, "\n"), IsError: isError, Denied: denied,
	})
	t.denied = denied
}

// deniedPattern matches what the client says of a call that it did not allow:
// it has no other sign for it.
var deniedPattern = regexp.MustCompile(`^The user (rejected permission|has specified a rule which prevents you)`)

func (t *parser) finish(p part) {
	t.turns++
	t.busy, t.reason = false, p.Reason
	used := work.Usage{
		InputTokens: p.Tokens.Input, OutputTokens: p.Tokens.Output + p.Tokens.Reasoning,
		CacheReadTokens: p.Tokens.Cache.Read, CacheCreationTokens: p.Tokens.Cache.Write,
	}
	if !work.PlausibleCost(p.Cost) {
		t.untrue = new(p.Cost)
	}
	if t.cost += p.Cost; p.Cost == 0 && used != (work.Usage{}) {
		_, model, _ := strings.Cut(t.Req.Model, "/")
		t.uses = append(t.uses, backend.Use{Model: model, Usage: used})
	}
	t.usage = t.usage.And(used)
	switch p.Reason {
	case "unknown", "other":
		t.cuts++
	case "tool-calls":
		t.cuts = 0
	default:
		t.cuts, t.Final = 0, true
	}
}

const (
	// The client tries for ever; a unit's own retries wait better.
	maxRetries = 3
	maxWait    = 30 * time.Second
	// It also asks again for ever, and at once, when an answer was cut off.
	maxCuts = 3
)

// Check stops a run that is at a limit: the client keeps none.
func (t *parser) Check() *work.Failure {
	switch {
	case t.retry != nil && (t.retry.Attempt >= maxRetries || time.Until(t.retry.next()) > maxWait):
		return t.retry.failure()
	case t.cuts >= maxCuts:
		return work.Fail(work.ClassInfra, fmt.Sprintf("the model's last %d answers ended before their end", t.cuts))
	}
	if f := t.overBudget(); f != nil {
		return f
	}
	if t.Req.MaxTurns > 0 && t.turns >= t.Req.MaxTurns && t.reason == "tool-calls" {
		return backend.TooManyTurns(t.Req)
	}
	return nil
}

// spent is what the turns have cost. A model whose price the client does not
// know costs nothing in its eyes: then ours counts. Nil: nobody knows. A cost of a
// turn that cannot be true is the answer: whoever keeps it leaves it out, and says so.
func (t *parser) spent() *float64 {
	if t.untrue != nil {
		return t.untrue
	}
	cost, _ := t.Prices.Cost(t.uses)
	if t.cost > 0 {
		return new(t.cost + backend.USD(cost))
	}
	return cost
}

// unpriced tells whether a turn has used tokens whose price nobody knows.
func (t *parser) unpriced() bool {
	cost, _ := t.Prices.Cost(t.uses)
	return len(t.uses) > 0 && cost == nil
}

func (t *parser) overBudget() *work.Failure {
	if cost := t.spent(); t.Req.MaxCostUSD != nil && backend.USD(cost) > *t.Req.MaxCostUSD {
		return backend.OverBudget(t.Req, *cost)
	}
	return nil
}
