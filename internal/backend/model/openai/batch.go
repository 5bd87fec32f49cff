package openai

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/openai/openai-go/v3/option"

	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/work"
)

// batchKey is the name under which a batch at OpenAI has our key.
const batchKey = "piecework"

// batch is what OpenAI tells of a batch.
type batch struct {
	ID         string            `json:"id"`
	Status     string            `json:"status"`
	CreatedAt  int64             `json:"created_at"` // Unix seconds
	InputFile  string            `json:"input_file_id"`
	OutputFile string            `json:"output_file_id"`
	ErrorFile  string            `json:"error_file_id"`
	Metadata   map[string]string `json:"metadata"`
	Errors     struct {
		Data []batchError `json:"data"`
	} `json:"errors"`
	Counts struct {
		Total     int `json:"total"`
		Completed int `json:"completed"`
		Failed    int `json:"failed"`
	} `json:"request_counts"`
}

type batchError struct {
	Code    string `json:"code"`
	Line    int    `json:"line"` // from 1; 0: none
	Message string `json:"message"`
}

// Line makes a line of a request.
func (o *Backend) Line(req backend.Request) (backend.Line, *work.Failure) {
	return o.api().Line(&req)
}

// AnswerCost tells what an answer has cost that no run takes.
func (o *Backend) AnswerCost(call *work.Call, name string, given backend.Answer) *float64 {
	return o.api().AnswerCost(call, name, given)
}

// SendBatch hands in lines: as a file, then as a batch of it.
func (o *Backend) SendBatch(ctx context.Context, key string, lines []backend.Line) (string, error) {
	way, err := o.api().Batches()
	if err != nil {
		return "", err
	}
	if len(lines) == 0 {
		return "", work.Fail(work.ClassInvalidRequest, "a batch has at least one line")
	}
	file, err := o.sendLines(ctx, way, lines)
	if err != nil {
		return "", err
	}
	var res *http.Response
	client := o.client()
	err = client.Post(ctx, "batches", map[string]any{
		"input_file_id": file, "endpoint": lines[0].Endpoint, "completion_window": "24h",
		"metadata": map[string]string{batchKey: key},
	}, &res)
	var made batch
	if err := way.ReadCollection(res, err, &made); err != nil {
		return "", err
	}
	if made.ID == "" {
		return "", model.ErrNoID
	}
	return made.ID, nil
}

func (o *Backend) sendLines(ctx context.Context, way model.BatchAPI, lines []backend.Line) (id string, err error) {
	feed := &model.LineReader{Lines: lines, Separator: "\n", Wrap: func(l backend.Line) any {
		return struct {
			ID     string          `json:"custom_id"`
			Method string          `json:"method"`
			URL    string          `json:"url"`
			Body   json.RawMessage `json:"body"`
		}{l.ID, http.MethodPost, l.Endpoint, l.Body}
	}}
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	_ = parts.WriteField("purpose", "batch") // a buffer takes everything
	_, _ = parts.CreateFormFile("file", "piecework.jsonl")
	before := form.String()
	form.Reset()
	_ = parts.Close()
	body := io.MultiReader(strings.NewReader(before), feed, &form)
	var res *http.Response
	client := o.client()
	err = client.Post(ctx, "files", nil, &res, option.WithRequestBody(parts.FormDataContentType(), body))
	var file struct {
		ID string `json:"id"`
	}
	if err := way.ReadCollection(res, err, &file); err != nil {
		return "", err
	}
	if file.ID == "" {
		return "", model.ErrNoID
	}
	return file.ID, nil
}

// KeepsKey: it is in the batch's metadata.
func (*Backend) KeepsKey() bool { return true }

// FindBatch goes by the key alone.
func (o *Backend) FindBatch(ctx context.Context, key string, _ int, since time.Time) ([]string, error) {
	way, err := o.api().Batches()
	if err != nil {
		return nil, err
	}
	client := o.client()
	var ids []string
	for after := ""; ; {
		var page struct {
			Data    []batch `json:"data"`
			HasMore bool    `json:"has_more"`
		}
		var res *http.Response
		err := client.Get(ctx, "batches"+model.BatchPage("after", after), nil, &res)
		if err := way.ReadCollection(res, err, &page); err != nil {
			return nil, err
		}
		late := 0
		for _, b := range page.Data {
			if b.CreatedAt < since.Add(-model.ClockSkew).Unix() {
				continue
			}
			if late++; b.Metadata[batchKey] == key {
				ids = append(ids, b.ID)
			}
		}
		if late == 0 || !page.HasMore { // the newest come first
			return ids, nil
		}
		after = page.Data[len(page.Data)-1].ID
	}
}

// LookAtBatch tells how far a batch is. Lines that a refusal names by number
// are looked up in the file that was sent.
func (o *Backend) LookAtBatch(ctx context.Context, id string) (backend.BatchNews, error) {
	way, err := o.api().Batches()
	if err != nil {
		return backend.BatchNews{}, err
	}
	b, err := o.batch(ctx, way, id)
	if err != nil {
		return backend.BatchNews{}, err
	}
	news := backend.BatchNews{Done: b.Counts.Completed + b.Counts.Failed, Total: b.Counts.Total}
	switch b.Status {
	case "completed", "expired", "cancelled":
		news.Ended = true
	case "failed":
		news.Ended, news.Refused = true, b.refusal()
		news.BadLines, err = o.badLines(ctx, way, b)
	}
	return news, err
}

func (o *Backend) batch(ctx context.Context, way model.BatchAPI, id string) (*batch, error) {
	var res *http.Response
	client := o.client()
	err := client.Get(ctx, "batches/"+url.PathEscape(id), nil, &res)
	b := &batch{}
	return b, way.Read(res, err, b)
}

// maxRefusals is how many of its errors a refusal shows.
const maxRefusals = 3

// refusal is why a batch was not taken, in the provider's words.
func (b *batch) refusal() *work.Failure {
	if len(b.Errors.Data) == 0 {
		return work.Fail(work.ClassInfra, "openai: the batch "+b.ID+" failed, and nobody says why")
	}
	var class work.Class
	var words []string
	for n, e := range b.Errors.Data {
		if e.Code == "token_limit_exceeded" { // too much is waiting already: it has room later
			class = work.ClassRateLimit
		}
		class = cmp.Or(class, model.ClassOfCode(e.Code))
		said := strings.TrimSpace(e.Code + ": " + e.Message)
		if e.Line > 0 {
			said = fmt.Sprintf("line %d: %s", e.Line, said)
		}
		if n < maxRefusals {
			words = append(words, said)
		}
	}
	if more := len(b.Errors.Data) - maxRefusals; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return work.Fail(cmp.Or(class, work.ClassInvalidRequest), "openai: the batch "+b.ID+" was refused: "+strings.Join(words, "; "))
}

// badLines finds the ids of the lines that a refusal names. A server that does
// not give the file back leaves them unknown.
func (o *Backend) badLines(ctx context.Context, way model.BatchAPI, b *batch) (ids []string, _ error) {
	bad := map[int]bool{}
	for _, e := range b.Errors.Data {
		if e.Line > 0 {
			bad[e.Line] = true
		}
	}
	if len(bad) == 0 || b.InputFile == "" {
		return nil, nil
	}
	number := 0
	err := o.eachLine(ctx, way, b.InputFile, func(line []byte) error {
		if number++; !bad[number] {
			return nil
		}
		var l batchLine
		_ = backend.Decode(line, &l) // we wrote it
		ids = append(ids, l.ID)
		return nil
	})
	if model.IsFailure(err) {
		return nil, nil
	}
	return ids, err
}

func (o *Backend) eachLine(ctx context.Context, way model.BatchAPI, file string, each func([]byte) error) error {
	var res *http.Response
	client := o.client()
	err := client.Get(ctx, "files/"+url.PathEscape(file)+"/content", nil, &res)
	return way.EachLine(res, err, each)
}

// BatchAnswers reads the answers of a batch, those that are errors last.
func (o *Backend) BatchAnswers(ctx context.Context, id string, each func(backend.BatchAnswer) error) error {
	way, err := o.api().Batches()
	if err != nil {
		return err
	}
	b, err := o.batch(ctx, way, id)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"completed", "expired", "cancelled", "failed"}, b.Status) {
		return fmt.Errorf("read the results of %s: the batch %s has not ended: it is %s", o.Name(), id, b.Status)
	}
	for _, file := range []string{b.OutputFile, b.ErrorFile} {
		if file == "" {
			continue
		}
		err := o.eachLine(ctx, way, file, func(line []byte) error {
			var l batchLine
			if err := backend.Decode(line, &l); err != nil {
				return fmt.Errorf("read the results of %s: %w", o.Name(), err)
			}
			return each(backend.BatchAnswer{ID: l.ID, Answer: l.answer()})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// CancelBatch asks to stop.
func (o *Backend) CancelBatch(ctx context.Context, id string) error {
	way, err := o.api().Batches()
	if err != nil {
		return err
	}
	var res *http.Response
	client := o.client()
	err = client.Post(ctx, "batches/"+url.PathEscape(id)+"/cancel", nil, &res)
	return way.Read(res, err, &batch{})
}

type batchLine struct {
	ID       string `json:"custom_id"`
	Response *struct {
		Status    int             `json:"status_code"`
		RequestID string          `json:"request_id"`
		Body      json.RawMessage `json:"body"`
	} `json:"response"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// answer is nil when the model was not asked: the batch expired or was
// cancelled before. An error without a response is told as an API would.
func (l *batchLine) answer() *backend.Answer {
	if r := l.Response; r != nil && r.Status > 0 {
		return &backend.Answer{Status: r.Status, RequestID: r.RequestID, Body: r.Body}
	}
	status, body := http.StatusInternalServerError, []byte(`{"error":{"message":"the line has neither an answer nor an error"}}`)
	if l.Error != nil {
		switch l.Error.Code {
		case "batch_expired", "batch_cancelled":
			return nil
		case "request_timeout":
			status = http.StatusRequestTimeout
		}
		body, _ = model.CompactJSON(map[string]any{"error": l.Error}) // two texts
	}
	return &backend.Answer{Status: status, Body: body}
}
