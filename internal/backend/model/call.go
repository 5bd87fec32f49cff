package model

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// runCall makes the one call that a unit is, and hands the answer over as it
// came. That the answer was cut or declined is the caller's to see: it is an
// answer all the same. A refusal is handed over as well, with its status.
func runCall(ctx context.Context, api *API, req *backend.Request, steps *transcript.Writer) *backend.Result {
	u := &unit{api: api, req: req, steps: steps, begun: time.Now()}
	u.model = backend.CallModel(req.Call)
	u.conversation.Model = u.model
	req.Payload = nil
	if failure := backend.CheckCall(api.Name, req.Call); failure != nil {
		return u.result(outcome{failure: failure})
	}
	backend.RecordCall(req.Call, steps)
	var got forwarded
	r := u.forward(ctx, &got)
	result := u.result(r)
	result.Metadata.HTTPStatus, result.Metadata.RequestID = got.status, work.Clean(got.requestID)
	return result
}

// forwarded is what came back on a call.
type forwarded struct {
	status    int
	requestID string
	body      []byte
}

// forward sends the call and waits for the whole answer.
func (u *unit) forward(ctx context.Context, got *forwarded) outcome {
	sent := time.Now()
	a := &Answer{steps: u.steps}
	idle := cmp.Or(u.req.IdleTimeout, work.DefaultIdle.Duration())
	watched, v := newWatchdog(ctx, cmp.Or(u.req.StartupTimeout, idle), idle)
	err := u.fetch(watched, v, got)
	cause := context.Cause(watched)
	if err != nil && cause != nil {
		err = cause
	}
	v.stopWatching()
	a.requestID = got.requestID
	if err == nil {
		a.answered, a.UsageFinal, a.batched = true, true, u.req.Answer != nil
		readAnswer(u.req.Call.Endpoint, got.body, a)
		a.finish()
	}
	u.waited += time.Since(sent)
	u.account(a, sent, cause != nil)
	r := outcome{text: string(got.body)}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		r.failure, r.stopped = backend.Interrupted(context.Cause(ctx)), true
	default:
		r.failure = u.failure(err, a)
	}
	return r
}

func (u *unit) fetch(ctx context.Context, v *watchdog, got *forwarded) error {
	if given := u.req.Answer; given != nil {
		*got = forwarded{given.Status, given.RequestID, given.Body}
		if given.Status/100 != 2 {
			return NewAPIError(given.Status, nil, given.Body)
		}
		return nil
	}
	res, err := u.api.Post(ctx, u.req.Call)
	if res == nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	got.requestID = requestID(res.Header)
	if res.StatusCode/100 != 2 {
		got.status = res.StatusCode
		got.body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // half of it says more than nothing
		return NewAPIError(res.StatusCode, res.Header, got.body)
	}
	if err != nil {
		return err
	}
	v.reset()
	body, err := io.ReadAll(io.LimitReader(watchedBody{res.Body, v}, backend.MaxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(body) > backend.MaxAnswer:
		return tooMuch("answer", backend.MaxAnswer)
	case !json.Valid(body):
		text, _ := work.Cut(string(body), 500)
		return errors.New("the answer is no JSON: " + text)
	}
	got.status, got.body = res.StatusCode, body
	return nil
}

// anyAnswer has the fields of all the shapes that are known.
type anyAnswer struct {
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

// readAnswer takes from an answer what the transcript and the database are to
// know.
func readAnswer(endpoint string, body []byte, a *Answer) {
	said := readUsage(endpoint, body, a)
	for _, c := range said.Choices {
		a.addTexts(cmp.Or(c.Message.ReasoningContent, c.Message.Reasoning), c.Message.Content)
	}
	for _, piece := range said.Content {
		a.addTexts(piece.Thinking, piece.Text)
	}
	for _, item := range said.Output {
		a.addTexts(backend.TextOf(item.Summary), backend.TextOf(item.Content))
	}
}

// readUsage takes from an answer what it has used.
func readUsage(endpoint string, body []byte, a *Answer) (said anyAnswer) {
	_ = backend.Decode(body, &said) // a shape of its own says nothing here
	a.Model, a.Cost = said.Model, said.Usage.Cost
	u := said.Usage
	switch endpoint {
	case work.EndpointMessages:
		a.Usage = work.Usage{InputTokens: u.Input, OutputTokens: u.Output, CacheReadTokens: u.CacheRead,
			CacheCreationTokens: u.CacheCreation}
	case work.EndpointResponses:
		a.Usage = UsageWithin(u.Input, u.InputDetails.Cached, u.Output)
	default:
		a.Usage = UsageWithin(u.Prompt, u.PromptParts.Cached, u.Completion)
	}
	return said
}

// addTexts adds whole texts; the answer's length was looked at before.
func (a *Answer) addTexts(thought, text string) {
	_ = a.AddText(transcript.Reasoning, thought)
	_ = a.AddText(transcript.Action, text)
}
