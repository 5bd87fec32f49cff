package anthropic

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

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/work"
)

const batchesPath = "v1/messages/batches"

// batch is what Anthropic tells of a batch.
type batch struct {
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

func (b batch) total() int {
	return b.Counts.Processing + b.Counts.Succeeded + b.Counts.Errored + b.Counts.Canceled + b.Counts.Expired
}

// Line makes a line of a request.
func (a *Backend) Line(req backend.Request) (backend.Line, *work.Failure) {
	line, failure := a.api().Line(&req)
	if failure == nil && line.Endpoint != work.EndpointMessages {
		return backend.Line{}, work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
			"Anthropic's batches take requests to %s only, not to %s: leave out lane, or set it to live", work.EndpointMessages, line.Endpoint))
	}
	return line, failure
}

// AnswerCost tells what an answer has cost that no run takes.
func (a *Backend) AnswerCost(call *work.Call, name string, given backend.Answer) *float64 {
	return a.api().AnswerCost(call, name, given)
}

// SendBatch hands in lines. Anthropic keeps no key.
func (a *Backend) SendBatch(ctx context.Context, _ string, lines []backend.Line) (string, error) {
	way, err := a.api().Batches()
	if err != nil {
		return "", err
	}
	feed := &model.LineReader{Lines: lines, Separator: ",", Wrap: func(l backend.Line) any {
		return struct {
			ID     string          `json:"custom_id"`
			Params json.RawMessage `json:"params"`
		}{l.ID, l.Body}
	}}
	body := io.MultiReader(strings.NewReader(`{"requests":[`), feed, strings.NewReader("]}"))
	var res *http.Response
	client := a.client()
	err = client.Post(ctx, batchesPath, body, &res)
	var made batch
	if err := way.ReadCollection(res, err, &made); err != nil {
		return "", err
	}
	if made.ID == "" {
		return "", model.ErrNoID
	}
	return made.ID, nil
}

// KeepsKey is false: its batches have nothing of ours but their lines.
func (*Backend) KeepsKey() bool { return false }

// FindBatch goes by when a batch was made and how many lines it has.
func (a *Backend) FindBatch(ctx context.Context, _ string, lines int, since time.Time) ([]string, error) {
	way, err := a.api().Batches()
	if err != nil {
		return nil, err
	}
	client := a.client()
	var found []batch
	for after := ""; ; {
		var page struct {
			Data    []batch `json:"data"`
			HasMore bool    `json:"has_more"`
			LastID  string  `json:"last_id"`
		}
		var res *http.Response
		err := client.Get(ctx, batchesPath+model.BatchPage("after_id", after), nil, &res)
		if err := way.ReadCollection(res, err, &page); err != nil {
			return nil, err
		}
		late := 0
		for _, b := range page.Data {
			if b.CreatedAt.Before(since.Add(-model.ClockSkew)) {
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
	slices.SortStableFunc(found, func(x, y batch) int {
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
func (a *Backend) LookAtBatch(ctx context.Context, id string) (backend.BatchNews, error) {
	way, err := a.api().Batches()
	if err != nil {
		return backend.BatchNews{}, err
	}
	var res *http.Response
	client := a.client()
	err = client.Get(ctx, batchesPath+"/"+url.PathEscape(id), nil, &res)
	var b batch
	if err := way.Read(res, err, &b); err != nil {
		return backend.BatchNews{}, err
	}
	return backend.BatchNews{Ended: b.Status == "ended", Done: b.total() - b.Counts.Processing, Total: b.total()}, nil
}

// BatchAnswers reads the answers of a batch.
func (a *Backend) BatchAnswers(ctx context.Context, id string, each func(backend.BatchAnswer) error) error {
	way, err := a.api().Batches()
	if err != nil {
		return err
	}
	var res *http.Response
	client := a.client()
	err = client.Get(ctx, batchesPath+"/"+url.PathEscape(id)+"/results", nil, &res)
	return way.EachLine(res, err, func(line []byte) error {
		var l batchLine
		if err := backend.Decode(line, &l); err != nil {
			return fmt.Errorf("read the results of %s: %w", a.Name(), err)
		}
		return each(backend.BatchAnswer{ID: l.ID, Answer: l.answer()})
	})
}

// CancelBatch asks to stop.
func (a *Backend) CancelBatch(ctx context.Context, id string) error {
	way, err := a.api().Batches()
	if err != nil {
		return err
	}
	var res *http.Response
	client := a.client()
	err = client.Post(ctx, batchesPath+"/"+url.PathEscape(id)+"/cancel", nil, &res)
	return way.Read(res, err, &batch{})
}

type batchLine struct {
	ID     string `json:"custom_id"`
	Result struct {
		Type    string          `json:"type"`
		Message json.RawMessage `json:"message"`
		Error   json.RawMessage `json:"error"`
	} `json:"result"`
}

// answer is nil when the model was not asked: canceled, expired.
func (l *batchLine) answer() *backend.Answer {
	switch l.Result.Type {
	case "succeeded":
		return &backend.Answer{Status: http.StatusOK, Body: l.Result.Message}
	case "errored":
		var said struct {
			Error     model.ErrorFields `json:"error"`
			RequestID string            `json:"request_id"`
		}
		_ = backend.Decode(l.Result.Error, &said)
		status := cmp.Or(statuses[said.Error.Type], http.StatusInternalServerError)
		return &backend.Answer{Status: status, RequestID: said.RequestID, Body: l.Result.Error}
	}
	return nil
}

// statuses are the statuses that errors have over HTTP.
var statuses = map[string]int{
	"invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
	"not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504,
	"overloaded_error": 529,
}
