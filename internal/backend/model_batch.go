package backend

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

	"piecework/internal/work"
)

// batchShare is the part of the table's price that a call in a batch costs, its
// input, output and cache alike: https://platform.openai.com/docs/pricing
// (Batch), https://docs.claude.com/en/docs/about-claude/pricing (Batch processing).
const batchShare = 0.5

// clockSkew is how far a provider's clock may be behind ours.
const clockSkew = time.Minute

const (
	batchesPerPage = 100
	maxBatchPage   = 16 << 20 // bytes of a page, or of what is told of one batch
)

// makeLine makes a line of the first call of a request.
func makeLine(api *modelAPI, req *Request) (Line, *work.Failure) {
	if req.Call != nil {
		return makeCallLine(api.name, req.Call)
	}
	u := &modelUnit{api: api, req: req, model: cmp.Or(req.Model, api.model)}
	if failure := u.prepare(); failure != nil {
		return Line{}, failure
	}
	if failure := u.afford(); failure != nil {
		return Line{}, failure
	}
	body, err := api.body(&u.talk)
	if err != nil {
		return Line{}, work.Fail(work.ClassInvalidRequest, api.name+": "+err.Error())
	}
	return Line{Endpoint: api.endpoint, Model: u.model, Body: body}, nil
}

func makeCallLine(name string, c *work.Call) (Line, *work.Failure) {
	if failure := CheckCall(name, c); failure != nil {
		return Line{}, failure
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(c.Body, &fields); err != nil {
		return Line{}, work.Fail(work.ClassInvalidRequest, "the body of the request is no JSON object: "+err.Error())
	}
	delete(fields, "stream")
	delete(fields, "stream_options")
	body, err := compactJSON(fields)
	if err != nil {
		return Line{}, work.Fail(work.ClassInvalidRequest, "the body of the request: "+err.Error())
	}
	return Line{Endpoint: c.Endpoint, Model: CallModel(c), Body: body}, nil
}

// compactJSON is a value in one line, with < and > as they are.
func compactJSON(value any) ([]byte, error) {
	var into bytes.Buffer
	enc := json.NewEncoder(&into)
	enc.SetEscapeHTML(false)
	err := enc.Encode(value)
	return bytes.TrimSuffix(into.Bytes(), []byte("\n")), err
}

// answerCost is the price of an answer to a call, or to a prompt.
func answerCost(api *modelAPI, call *work.Call, model string, given Answer) *float64 {
	if given.Status/100 != 2 {
		return new(0.0)
	}
	endpoint := api.endpoint
	if call != nil {
		endpoint = call.Endpoint
	}
	u := &modelUnit{api: api, talk: talk{model: cmp.Or(model, api.model)}}
	a := &answer{answered: true, told: true, batched: true}
	hearUse(endpoint, given.Body, a)
	u.settle(a, time.Now(), false)
	if u.untrue != nil {
		return nil
	}
	return u.cost
}

// accept takes an answer that is there already for that of the call.
func (u *modelUnit) accept(given *Answer, a *answer) error {
	a.requestID = given.RequestID
	if given.Status/100 != 2 {
		return newAPIError(given.Status, nil, given.Body)
	}
	a.answered, a.batched = true, true
	err := u.api.read(given.Body, a)
	var failed struct {
		Error errorMark `json:"error"`
	}
	if _ = decode(given.Body, &failed); failed.Error {
		return newAPIError(given.Status, nil, given.Body)
	}
	return err
}

// lineFeed is a body that is made of lines one by one, while it is sent.
type lineFeed struct {
	lines     []Line
	wrap      func(Line) any
	separator string
	ready     []byte
}

func (f *lineFeed) Read(into []byte) (int, error) {
	if len(f.ready) == 0 {
		if len(f.lines) == 0 {
			return 0, io.EOF
		}
		wrapped, err := compactJSON(f.wrap(f.lines[0]))
		if err != nil {
			return 0, fmt.Errorf("line %s: %w", f.lines[0].ID, err)
		}
		f.lines, f.ready = f.lines[1:], wrapped
		if len(f.lines) > 0 {
			f.ready = append(f.ready, f.separator...)
		}
	}
	n := copy(into, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// batchPage asks for a page of batches, the newest first, after one that was seen.
func batchPage(name, after string) string {
	query := url.Values{"limit": {strconv.Itoa(batchesPerPage)}}
	if after != "" {
		query.Set(name, after)
	}
	return "?" + query.Encode()
}

// errNoID: what the provider made of it nobody knows.
var errNoID = errors.New("the provider took the batch and did not name it")

// isFailure tells whether an error is the provider's word that nothing was done.
func isFailure(err error) bool { return errors.As(err, new(*work.Failure)) }

// batchWay is how the batches of a provider are reached.
type batchWay struct{ name, base string }

// read reads what the provider says to a call that asks for JSON.
func (w batchWay) read(res *http.Response, err error, into any) error {
	if err := w.refused(res, err); err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBatchPage+1))
	if err == nil && len(body) > maxBatchPage {
		err = fmt.Errorf("more than %d MiB", maxBatchPage>>20)
	}
	if err == nil {
		err = decode(body, into)
	}
	if err != nil {
		return fmt.Errorf("read what %s says of its batches: %w", w.name, err)
	}
	return nil
}

// refused tells a refusal, after which nothing was done, from what leaves that
// open. It closes the answer when there is an error.
func (w batchWay) refused(res *http.Response, err error) error {
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
func (w batchWay) missing(res *http.Response) error {
	if res == nil {
		return nil
	}
	switch res.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		defer func() { _ = res.Body.Close() }()
		return work.Fail(work.ClassInvalidRequest, fmt.Sprintf(
			"the server at %s has no Batch API: leave out lane, or set it to live (%s: %s)", shownURL(w.base), w.name, readAPIError(res)))
	}
	return nil
}

// collection reads the answer to a call where all batches are.
func (w batchWay) collection(res *http.Response, err error, into any) error {
	if missing := w.missing(res); missing != nil {
		return missing
	}
	return w.read(res, err, into)
}

// eachLine hands over the lines of a file of results while it comes in.
func (w batchWay) eachLine(res *http.Response, err error, each func(line []byte) error) error {
	if err := w.refused(res, err); err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	from := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		line, size, err := readLine(from, maxAnswer)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the results of %s: %w", w.name, err)
		}
		if size > maxAnswer {
			return fmt.Errorf("read the results of %s: more than %d MiB in one line", w.name, maxAnswer>>20)
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
