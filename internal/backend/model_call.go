package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"piecework/internal/transcript"
	"piecework/internal/work"
)

// runCall makes the one call that a unit is, and hands the answer over as it
// came. That the answer was cut or declined is the caller's to see: it is an
// answer all the same. A refusal is handed over as well, with its status.
func runCall(ctx context.Context, api *modelAPI, req *Request, steps *transcript.Writer) *Result {
	u := &modelUnit{api: api, req: req, steps: steps, begun: time.Now()}
	u.model = CallModel(req.Call)
	u.talk.model = u.model
	req.Payload = nil
	if failure := CheckCall(api.name, req.Call); failure != nil {
		return u.result(reply{failure: failure})
	}
	RecordCall(req.Call, steps)
	var got passed
	r := u.pass(ctx, &got)
	result := u.result(r)
	result.Metadata.HTTPStatus, result.Metadata.RequestID = got.status, work.Clean(got.requestID)
	return result
}

// CheckCall refuses what the door refuses, too: a unit may be older than the
// rules.
func CheckCall(name string, c *work.Call) *work.Failure {
	if slices.Contains(endpoints[name], c.Endpoint) {
		return nil
	}
	return work.Fail(work.ClassInvalidRequest, fmt.Sprintf("the backend %s has no endpoint %q; it takes requests to %s",
		name, c.Endpoint, strings.Join(endpoints[name], ", ")))
}

// passed is what came back on a call.
type passed struct {
	status    int
	requestID string
	body      []byte
}

// pass sends the call and waits for the whole answer.
func (u *modelUnit) pass(ctx context.Context, got *passed) reply {
	sent := time.Now()
	a := &answer{steps: u.steps}
	idle := cmp.Or(u.req.IdleTimeout, work.DefaultIdle.Duration())
	watched, v := keepVigil(ctx, cmp.Or(u.req.StartupTimeout, idle), idle)
	err := u.take(watched, v, got)
	cause := context.Cause(watched)
	if err != nil && cause != nil {
		err = cause
	}
	v.end()
	a.requestID = got.requestID
	if err == nil {
		a.answered, a.told, a.batched = true, true, u.req.Answer != nil
		hearCall(u.req.Call.Endpoint, got.body, a)
		a.finish()
	}
	u.waited += time.Since(sent)
	u.settle(a, sent, cause != nil)
	r := reply{text: string(got.body)}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		r.failure, r.stopped = interrupted(context.Cause(ctx)), true
	default:
		r.failure = u.failure(err, a)
	}
	return r
}

func (u *modelUnit) take(ctx context.Context, v *vigil, got *passed) error {
	if given := u.req.Answer; given != nil {
		*got = passed{given.Status, given.RequestID, given.Body}
		if given.Status/100 != 2 {
			return newAPIError(given.Status, nil, given.Body)
		}
		return nil
	}
	res, err := u.api.post(ctx, u.req.Call)
	if res == nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	got.requestID = requestID(res.Header)
	if res.StatusCode/100 != 2 {
		got.status = res.StatusCode
		got.body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // half of it says more than nothing
		return newAPIError(res.StatusCode, res.Header, got.body)
	}
	if err != nil {
		return err
	}
	v.alive()
	body, err := io.ReadAll(io.LimitReader(heartbeat{res.Body, v}, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(body) > maxAnswer:
		return tooMuch("answer", maxAnswer)
	case !json.Valid(body):
		text, _ := work.Cut(string(body), 500)
		return errors.New("the answer is no JSON: " + text)
	}
	got.status, got.body = res.StatusCode, body
	return nil
}

// CallModel is the model that a call names; empty when it names none.
func CallModel(c *work.Call) string {
	var body struct {
		Model string `json:"model"`
	}
	_ = decode(c.Body, &body) // the API says what is wrong with it
	return body.Model
}

// RecordCall writes what the call asks for, as far as its shape is known.
func RecordCall(c *work.Call, steps *transcript.Writer) {
	if text := CallText(c); text != "" {
		steps.Add(transcript.Step{Type: transcript.UserText, Text: text})
	}
}

// CallText is the last thing that a call says to the model.
func CallText(c *work.Call) string {
	var body struct {
		Messages []callMessage   `json:"messages"`
		Input    json.RawMessage `json:"input"`
	}
	_ = decode(c.Body, &body)
	messages := body.Messages
	if len(messages) == 0 && json.Unmarshal(body.Input, &messages) != nil {
		return callTextOf(body.Input)
	}
	for _, m := range slices.Backward(messages) {
		if m.Role != "user" {
			continue
		}
		if text := callTextOf(m.Content); text != "" {
			return text
		}
	}
	return ""
}

type callMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// callTextOf is a text, or the texts of a list of texts or parts.
func callTextOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var parts []json.RawMessage
	_ = json.Unmarshal(raw, &parts) // what has another shape says nothing here
	var texts []string
	for _, part := range parts {
		var p struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(part, &text) == nil {
			texts = append(texts, text)
		} else if json.Unmarshal(part, &p) == nil && p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// callAnswer has the fields of all the shapes that are known.
type callAnswer struct {
	Model   string `json:"model"`
	Choices []struct {
		Message struct {
			Content          string `json:"content"`
			Reasoning        string `json:"reasoning"`
			ReasoningContent string `json:"reasoning_content"`
		} `json:"message"`
	} `json:"choices"`
	Content []struct {
		Text     string `json:"text"`
		Thinking string `json:"thinking"`
	} `json:"content"`
	Output []struct {
		Content json.RawMessage `json:"content"`
		Summary json.RawMessage `json:"summary"`
	} `json:"output"`
	Usage struct {
		Input         int64       `json:"input_tokens"`
		Output        int64       `json:"output_tokens"`
		CacheRead     int64       `json:"cache_read_input_tokens"`
		CacheCreation int64       `json:"cache_creation_input_tokens"`
		Prompt        int64       `json:"prompt_tokens"`
		Completion    int64       `json:"completion_tokens"`
		PromptParts   cachedParts `json:"prompt_tokens_details"`
		InputDetails  cachedParts `json:"input_tokens_details"`
		Cost          *float64    `json:"cost"`
	} `json:"usage"`
}

type cachedParts struct {
	Cached int64 `json:"cached_tokens"`
}

// hearCall takes from an answer what the transcript and the ledger want to
// know.
func hearCall(endpoint string, body []byte, a *answer) {
	said := hearUse(endpoint, body, a)
	for _, c := range said.Choices {
		a.says(cmp.Or(c.Message.ReasoningContent, c.Message.Reasoning), c.Message.Content)
	}
	for _, piece := range said.Content {
		a.says(piece.Thinking, piece.Text)
	}
	for _, item := range said.Output {
		a.says(callTextOf(item.Summary), callTextOf(item.Content))
	}
}

// hearUse takes from an answer what it has used.
func hearUse(endpoint string, body []byte, a *answer) (said callAnswer) {
	_ = decode(body, &said) // a shape of its own says nothing here
	a.model, a.cost = said.Model, said.Usage.Cost
	u := said.Usage
	switch endpoint {
	case work.EndpointMessages:
		a.usage = work.Usage{InputTokens: u.Input, OutputTokens: u.Output, CacheReadTokens: u.CacheRead, CacheCreationTokens: u.CacheCreation}
	case work.EndpointResponses:
		a.usage = usageWithin(u.Input, u.InputDetails.Cached, u.Output)
	default:
		a.usage = usageWithin(u.Prompt, u.PromptParts.Cached, u.Completion)
	}
	return said
}

// says adds whole texts; the answer's length was looked at before.
func (a *answer) says(thought, text string) {
	_ = a.hears(transcript.Reasoning, thought)
	_ = a.hears(transcript.Action, text)
}
