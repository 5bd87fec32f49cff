package backend

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"piecework/internal/work"
)

const anthropicBatches = "v1/messages/batches"

// anthropicBatch is what Anthropic tells of a batch.
type anthropicBatch struct {
	ID        string    `json:"id"`
	Status    string    `json:"processing_status"`
	CreatedAt time.Time `json:"created_at"`
	Counts    struct {
		Processing int `json:"processing"`
		Succeeded  int `json:"succeeded"`
		Errored    int `json:"errored"`
		Canceled   int `json:"canceled"`
		Expired    int `json:"expired"`
	} `json:"request_counts"`
}

func (b anthropicBatch) total() int {
	return b.Counts.Processing + b.Counts.Succeeded + b.Counts.Errored + b.Counts.Canceled + b.Counts.Expired
}

// Line makes a line of a request.
func (a *Anthropic) Line(req Request) (Line, *work.Failure) {
	if err := a.configured(); err != nil {
		return Line{}, work.Fail(work.ClassAuth, err.Error())
	}
	line, failure := makeLine(a.api(), &req)
	if failure == nil && line.Endpoint != work.EndpointMessages {
		return Line{}, work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
			"Anthropic's batches take requests to %s only, not to %s: leave out lane, or set it to live", work.EndpointMessages, line.Endpoint))
	}
	return line, failure
}

// AnswerCost tells what an answer has cost that no run takes.
func (a *Anthropic) AnswerCost(call *work.Call, name string, given Answer) *float64 {
	return answerCost(a.api(), call, name, given)
}

// SendBatch hands in lines. Anthropic keeps no key.
func (a *Anthropic) SendBatch(ctx context.Context, _ string, lines []Line) (string, error) {
	way, err := a.way()
	if err != nil {
		return "", err
	}
	feed := &lineFeed{lines: lines, separator: ",", wrap: func(l Line) any {
		return struct {
			ID     string          `json:"custom_id"`
			Params json.RawMessage `json:"params"`
		}{l.ID, l.Body}
	}}
	body := io.MultiReader(strings.NewReader(`{"requests":[`), feed, strings.NewReader("]}"))
	var res *http.Response
	client := a.client()
	err = client.Post(ctx, anthropicBatches, body, &res)
	var made anthropicBatch
	if err := way.collection(res, err, &made); err != nil {
		return "", err
	}
	if made.ID == "" {
		return "", errNoID
	}
	return made.ID, nil
}

// KeepsKey is false: its batches have nothing of ours but their lines.
func (*Anthropic) KeepsKey() bool { return false }

// FindBatch goes by when a batch was made and how many lines it has.
func (a *Anthropic) FindBatch(ctx context.Context, _ string, lines int, since time.Time) ([]string, error) {
	way, err := a.way()
	if err != nil {
		return nil, err
	}
	client := a.client()
	var found []anthropicBatch
	for after := ""; ; {
		var page struct {
			Data    []anthropicBatch `json:"data"`
			HasMore bool             `json:"has_more"`
			LastID  string           `json:"last_id"`
		}
		var res *http.Response
		err := client.Get(ctx, anthropicBatches+batchPage("after_id", after), nil, &res)
		if err := way.collection(res, err, &page); err != nil {
			return nil, err
		}
		late := 0
		for _, b := range page.Data {
			if b.CreatedAt.Before(since.Add(-clockSkew)) {
				continue
			}
			if late++; b.total() == lines {
				found = append(found, b)
			}
		}
		if late == 0 || !page.HasMore || page.LastID == "" { // the newest come first
			break
		}
		after = page.LastID
	}
	slices.SortStableFunc(found, func(x, y anthropicBatch) int {
		return cmp.Compare(x.CreatedAt.Sub(since).Abs(), y.CreatedAt.Sub(since).Abs())
	})
	ids := make([]string, len(found))
	for n, b := range found {
		ids[n] = b.ID
	}
	return ids, nil
}

// LookAtBatch tells how far a batch is. Anthropic counts at the end only, and
// refuses no batch later than at once.
func (a *Anthropic) LookAtBatch(ctx context.Context, id string) (BatchNews, error) {
	way, err := a.way()
	if err != nil {
		return BatchNews{}, err
	}
	var res *http.Response
	client := a.client()
	err = client.Get(ctx, anthropicBatches+"/"+url.PathEscape(id), nil, &res)
	var b anthropicBatch
	if err := way.read(res, err, &b); err != nil {
		return BatchNews{}, err
	}
	return BatchNews{Ended: b.Status == "ended", Done: b.total() - b.Counts.Processing, Total: b.total()}, nil
}

// BatchAnswers reads the answers of a batch.
func (a *Anthropic) BatchAnswers(ctx context.Context, id string, each func(BatchAnswer) error) error {
	way, err := a.way()
	if err != nil {
		return err
	}
	var res *http.Response
	client := a.client()
	err = client.Get(ctx, anthropicBatches+"/"+url.PathEscape(id)+"/results", nil, &res)
	return way.eachLine(res, err, func(line []byte) error {
		var l anthropicBatchLine
		if err := decode(line, &l); err != nil {
			return fmt.Errorf("read the results of %s: %w", way.name, err)
		}
		return each(BatchAnswer{ID: l.ID, Answer: l.answer()})
	})
}

// CancelBatch asks to stop.
func (a *Anthropic) CancelBatch(ctx context.Context, id string) error {
	way, err := a.way()
	if err != nil {
		return err
	}
	var res *http.Response
	client := a.client()
	err = client.Post(ctx, anthropicBatches+"/"+url.PathEscape(id)+"/cancel", nil, &res)
	return way.read(res, err, &anthropicBatch{})
}

func (a *Anthropic) way() (batchWay, error) {
	if err := a.configured(); err != nil {
		return batchWay{}, work.Fail(work.ClassAuth, err.Error())
	}
	return batchWay{a.Name(), a.base()}, nil
}

type anthropicBatchLine struct {
	ID     string `json:"custom_id"`
	Result struct {
		Type    string          `json:"type"`
		Message json.RawMessage `json:"message"`
		Error   json.RawMessage `json:"error"`
	} `json:"result"`
}

// answer is nil when the model was not asked: canceled, expired.
func (l *anthropicBatchLine) answer() *Answer {
	switch l.Result.Type {
	case "succeeded":
		return &Answer{Status: http.StatusOK, Body: l.Result.Message}
	case "errored":
		var said struct {
			Error     errorFields `json:"error"`
			RequestID string      `json:"request_id"`
		}
		_ = decode(l.Result.Error, &said)
		status := cmp.Or(anthropicStatuses[said.Error.Type], http.StatusInternalServerError)
		return &Answer{Status: status, RequestID: said.RequestID, Body: l.Result.Error}
	}
	return nil
}

// anthropicStatuses are the statuses that errors have over HTTP.
var anthropicStatuses = map[string]int{
	"invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
	"not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504,
	"overloaded_error": 529,
}
