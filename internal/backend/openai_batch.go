package backend

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

	"piecework/internal/work"
)

// batchKey is the name under which a batch at OpenAI has our key.
const batchKey = "piecework"

// openaiBatch is what OpenAI tells of a batch.
type openaiBatch struct {
	ID         string            `json:"id"`
	Status     string            `json:"status"`
	CreatedAt  int64             `json:"created_at"` // Unix seconds
	InputFile  string            `json:"input_file_id"`
	OutputFile string            `json:"output_file_id"`
	ErrorFile  string            `json:"error_file_id"`
	Metadata   map[string]string `json:"metadata"`
	Errors     struct {
		Data []openaiBatchError `json:"data"`
	} `json:"errors"`
	Counts struct {
		Total     int `json:"total"`
		Completed int `json:"completed"`
		Failed    int `json:"failed"`
	} `json:"request_counts"`
}

type openaiBatchError struct {
	Code    string `json:"code"`
	Line    int    `json:"line"` // from 1; 0: none
	Message string `json:"message"`
}

// Line makes a line of a request.
func (o *OpenAI) Line(req Request) (Line, *work.Failure) {
	if err := o.configured(); err != nil {
		return Line{}, work.Fail(work.ClassAuth, err.Error())
	}
	return makeLine(o.api(), &req)
}

// AnswerCost tells what an answer has cost that no run takes.
func (o *OpenAI) AnswerCost(call *work.Call, name string, given Answer) *float64 {
	return answerCost(o.api(), call, name, given)
}

// SendBatch hands in lines: as a file, then as a batch of it.
func (o *OpenAI) SendBatch(ctx context.Context, key string, lines []Line) (string, error) {
	way, err := o.way()
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
	var made openaiBatch
	if err := way.collection(res, err, &made); err != nil {
		return "", err
	}
	if made.ID == "" {
		return "", errNoID
	}
	return made.ID, nil
}

func (o *OpenAI) sendLines(ctx context.Context, way batchWay, lines []Line) (id string, err error) {
	feed := &lineFeed{lines: lines, separator: "\n", wrap: func(l Line) any {
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
	if err := way.collection(res, err, &file); err != nil {
		return "", err
	}
	if file.ID == "" {
		return "", errNoID
	}
	return file.ID, nil
}

// KeepsKey: it is in the batch's metadata.
func (*OpenAI) KeepsKey() bool { return true }

// FindBatch goes by the key alone.
func (o *OpenAI) FindBatch(ctx context.Context, key string, _ int, since time.Time) ([]string, error) {
	way, err := o.way()
	if err != nil {
		return nil, err
	}
	client := o.client()
	var ids []string
	for after := ""; ; {
		var page struct {
			Data    []openaiBatch `json:"data"`
			HasMore bool          `json:"has_more"`
		}
		var res *http.Response
		err := client.Get(ctx, "batches"+batchPage("after", after), nil, &res)
		if err := way.collection(res, err, &page); err != nil {
			return nil, err
		}
		late := 0
		for _, b := range page.Data {
			if b.CreatedAt < since.Add(-clockSkew).Unix() {
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
func (o *OpenAI) LookAtBatch(ctx context.Context, id string) (BatchNews, error) {
	way, err := o.way()
	if err != nil {
		return BatchNews{}, err
	}
	b, err := o.batch(ctx, way, id)
	if err != nil {
		return BatchNews{}, err
	}
	news := BatchNews{Done: b.Counts.Completed + b.Counts.Failed, Total: b.Counts.Total}
	switch b.Status {
	case "completed", "expired", "cancelled":
		news.Ended = true
	case "failed":
		news.Ended, news.Refused = true, b.refusal()
		news.BadLines, err = o.badLines(ctx, way, b)
	}
	return news, err
}

func (o *OpenAI) batch(ctx context.Context, way batchWay, id string) (*openaiBatch, error) {
	var res *http.Response
	client := o.client()
	err := client.Get(ctx, "batches/"+url.PathEscape(id), nil, &res)
	b := &openaiBatch{}
	return b, way.read(res, err, b)
}

// maxRefusals is how many of its errors a refusal shows.
const maxRefusals = 3

// refusal is why a batch was not taken, in the provider's words.
func (b *openaiBatch) refusal() *work.Failure {
	if len(b.Errors.Data) == 0 {
		return work.Fail(work.ClassInfra, "openai: the batch "+b.ID+" failed, and nobody says why")
	}
	var class work.Class
	var words []string
	for n, e := range b.Errors.Data {
		if e.Code == "token_limit_exceeded" { // too much is waiting already: it has room later
			class = work.ClassRateLimit
		}
		class = cmp.Or(class, classOfCode(e.Code))
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
func (o *OpenAI) badLines(ctx context.Context, way batchWay, b *openaiBatch) (ids []string, _ error) {
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
		var l openaiBatchLine
		_ = decode(line, &l) // we wrote it
		ids = append(ids, l.ID)
		return nil
	})
	if isFailure(err) {
		return nil, nil
	}
	return ids, err
}

func (o *OpenAI) eachLine(ctx context.Context, way batchWay, file string, each func([]byte) error) error {
	var res *http.Response
	client := o.client()
	err := client.Get(ctx, "files/"+url.PathEscape(file)+"/content", nil, &res)
	return way.eachLine(res, err, each)
}

// BatchAnswers reads the answers of a batch, those that are errors last.
func (o *OpenAI) BatchAnswers(ctx context.Context, id string, each func(BatchAnswer) error) error {
	way, err := o.way()
	if err != nil {
		return err
	}
	b, err := o.batch(ctx, way, id)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"completed", "expired", "cancelled", "failed"}, b.Status) {
		return fmt.Errorf("read the results of %s: the batch %s has not ended: it is %s", way.name, id, b.Status)
	}
	for _, file := range []string{b.OutputFile, b.ErrorFile} {
		if file == "" {
			continue
		}
		err := o.eachLine(ctx, way, file, func(line []byte) error {
			var l openaiBatchLine
			if err := decode(line, &l); err != nil {
				return fmt.Errorf("read the results of %s: %w", way.name, err)
			}
			return each(BatchAnswer{ID: l.ID, Answer: l.answer()})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// CancelBatch asks to stop.
func (o *OpenAI) CancelBatch(ctx context.Context, id string) error {
	way, err := o.way()
	if err != nil {
		return err
	}
	var res *http.Response
	client := o.client()
	err = client.Post(ctx, "batches/"+url.PathEscape(id)+"/cancel", nil, &res)
	return way.read(res, err, &openaiBatch{})
}

func (o *OpenAI) way() (batchWay, error) {
	if err := o.configured(); err != nil {
		return batchWay{}, work.Fail(work.ClassAuth, err.Error())
	}
	return batchWay{o.Name(), o.base()}, nil
}

type openaiBatchLine struct {
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
func (l *openaiBatchLine) answer() *Answer {
	if r := l.Response; r != nil && r.Status > 0 {
		return &Answer{Status: r.Status, RequestID: r.RequestID, Body: r.Body}
	}
	status, body := http.StatusInternalServerError, []byte(`{"error":{"message":"the line has neither an answer nor an error"}}`)
	if l.Error != nil {
		switch l.Error.Code {
		case "batch_expired", "batch_cancelled":
			return nil
		case "request_timeout":
			status = http.StatusRequestTimeout
		}
		body, _ = compactJSON(map[string]any{"error": l.Error}) // two texts
	}
	return &Answer{Status: status, Body: body}
}
