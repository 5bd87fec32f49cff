package model

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// batchShare is the part of the table's price that a call in a batch costs, its
// input, output and cache alike: https://platform.openai.com/docs/pricing
// (Batch), https://docs.claude.com/en/docs/about-claude/pricing (Batch processing).
const batchShare = 0.5

// ClockSkew is how far a provider's clock may be behind ours.
const ClockSkew = time.Minute

const (
	batchesPerPage = 100
	maxBatchPage   = 16 << 20 // bytes of a page, or of what is told of one batch
)

// Line makes a line of the first call of a request.
func (a *API) Line(req *backend.Request) (backend.Line, *work.Failure) {
	if err := a.check(); err != nil {
		return backend.Line{}, work.Fail(work.ClassAuth, err.Error())
	}
	if req.Call != nil {
		return makeCallLine(a.Name, req.Call)
	}
	u := &unit{api: a, req: req, model: cmp.Or(req.Model, a.model())}
	if failure := u.prepare(); failure != nil {
		return backend.Line{}, failure
	}
	if failure := u.afford(); failure != nil {
		return backend.Line{}, failure
	}
	body, err := a.Body(&u.conversation)
	if err != nil {
		return backend.Line{}, work.Fail(work.ClassInvalidRequest, a.Name+": "+err.Error())
	}
	return backend.Line{Endpoint: a.Endpoint, Model: u.model, Body: body}, nil
}

func makeCallLine(name string, c *work.Call) (backend.Line, *work.Failure) {
	if failure := backend.CheckCall(name, c); failure != nil {
		return backend.Line{}, failure
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(c.Body, &fields); err != nil {
		return backend.Line{}, work.Fail(work.ClassInvalidRequest, "the body of the request is no JSON object: "+err.Error())
	}
	delete(fields, "stream")
	delete(fields, "stream_options")
	body, err := CompactJSON(fields)
	if err != nil {
		return backend.Line{}, work.Fail(work.ClassInvalidRequest, "the body of the request: "+err.Error())
	}
	return backend.Line{Endpoint: c.Endpoint, Model: backend.CallModel(c), Body: body}, nil
}

// CompactJSON is a value in one line, with < and > as they are.
func CompactJSON(value any) ([]byte, error) {
	var into bytes.Buffer
	enc := json.NewEncoder(&into)
	enc.SetEscapeHTML(false)
	err := enc.Encode(value)
	return bytes.TrimSuffix(into.Bytes(), []byte("\n")), err
}

// AnswerCost is the price of an answer to a call, or to a prompt.
func (a *API) AnswerCost(call *work.Call, model string, given backend.Answer) *float64 {
	if given.Status/100 != 2 {
		return new(0.0)
	}
	endpoint := a.Endpoint
	if call != nil {
		endpoint = call.Endpoint
	}
	u := &unit{api: a, conversation: Conversation{Model: cmp.Or(model, a.model())}}
	answer := &Answer{answered: true, UsageFinal: true, batched: true}
	readUsage(endpoint, given.Body, answer)
	u.account(answer, time.Now(), false)
	if u.untrue != nil {
		return nil
	}
	return u.cost
}

// accept takes an answer that is there already for that of the call.
func (u *unit) accept(given *backend.Answer, a *Answer) error {
	a.requestID = given.RequestID
	if given.Status/100 != 2 {
		return NewAPIError(given.Status, nil, given.Body)
	}
	a.answered, a.batched = true, true
	err := u.api.ReadBody(given.Body, a)
	var failed struct {
		Error errorMark `json:"error"`
	}
	if _ = backend.Decode(given.Body, &failed); failed.Error {
		return NewAPIError(given.Status, nil, given.Body)
	}
	return err
}

// LineReader is a body that is made of lines one by one, while it is sent.
type LineReader struct {
	Lines     []backend.Line
	Wrap      func(backend.Line) any
	Separator string
	ready     []byte
}

func (f *LineReader) Read(into []byte) (int, error) {
	if len(f.ready) == 0 {
		if len(f.Lines) == 0 {
			return 0, io.EOF
		}
		wrapped, err := CompactJSON(f.Wrap(f.Lines[0]))
		if err != nil {
			return 0, fmt.Errorf("line %s: %w", f.Lines[0].ID, err)
		}
		f.Lines, f.ready = f.Lines[1:], wrapped
		if len(f.Lines) > 0 {
			f.ready = append(f.ready, f.Separator...)
		}
	}
	n := copy(into, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// BatchPage asks for a page of batches, the newest first, after one that was seen.
func BatchPage(name, after string) string {
	query := url.Values{"limit": {strconv.Itoa(batchesPerPage)}}
	if after != "" {
		query.Set(name, after)
	}
	return "?" + query.Encode()
}

// ErrNoID: what the provider made of it nobody knows.
var ErrNoID = errors.New("the provider took the batch and did not name it")

// IsFailure tells whether an error is the provider's word that nothing was done.
func IsFailure(err error) bool { return errors.As(err, new(*work.Failure)) }

// BatchAPI is how the batches of a provider are reached.
type BatchAPI struct{ name, url string }

// Batches are the provider's batches; the error says what is missing to use them.
func (a *API) Batches() (BatchAPI, error) {
	if err := a.check(); err != nil {
		return BatchAPI{}, work.Fail(work.ClassAuth, err.Error())
	}
	return BatchAPI{a.Name, a.url()}, nil
}

// Read reads what the provider says to a call that asks for JSON.
func (w BatchAPI) Read(res *http.Response, err error, into any) error {
	if err := w.refused(res, err); err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBatchPage+1))
	if err == nil && len(body) > maxBatchPage {
		err = fmt.Errorf("more than %d MiB", maxBatchPage>>20)
	}
	if err == nil {
		err = backend.Decode(body, into)
	}
	if err != nil {
		return fmt.Errorf("read what %s says of its batches: %w", w.name, err)
	}
	return nil
}

// refused tells a refusal, after which nothing was done, from what leaves that
// open. It closes the answer when there is an error.
func (w BatchAPI) refused(res *http.Response, err error) error {
	if res == nil {
		return fmt.Errorf("reach the batches of %s: %w", w.name, err)
	}
	if res.StatusCode/100 == 2 {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	said := readAPIError(res)
	if res.StatusCode/100 == 5 {
		return fmt.Errorf("reach the batches of %s: %w", w.name, said)
	}
	return said.failure(w.name, requestID(res.Header))
}

// missing says of an answer to a call where all batches are that the server has
// none.
func (w BatchAPI) missing(res *http.Response) error {
	if res == nil {
		return nil
	}
	switch res.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		defer func() { _ = res.Body.Close() }()
		return work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
			"the server at %s has no Batch API: leave out lane, or set it to live (%s: %s)", backend.RedactURL(w.url), w.name, readAPIError(res)))
	}
	return nil
}

// ReadCollection reads the answer to a call where all batches are.
func (w BatchAPI) ReadCollection(res *http.Response, err error, into any) error {
	if missing := w.missing(res); missing != nil {
		return missing
	}
	return w.Read(res, err, into)
}

// EachLine hands over the lines of a file of results while it comes in.
func (w BatchAPI) EachLine(res *http.Response, err error, each func(line []byte) error) error {
	if err := w.refused(res, err); err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	from := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		line, size, err := backend.ReadLine(from, backend.MaxAnswer)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the results of %s: %w", w.name, err)
		}
		if size > backend.MaxAnswer {
			return fmt.Errorf("read the results of %s: more than %d MiB in one line", w.name, backend.MaxAnswer>>20)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := each(line); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}
