package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/blob"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

const (
	// maxMessageBatch bounds the body of a new batch, in bytes.
	maxMessageBatch    = 256 << 20
	maxMessageRequests = 100_000
	// purposeMessages marks the file in which the requests wait until units are
	// made of them.
	purposeMessages = "message_batch"
)

var messageCustomID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// messageBatch is a batch as Anthropic's SDKs know it.
type messageBatch struct {
	ID                string        `json:"id"`
	Type              string        `json:"type"`
	ProcessingStatus  string        `json:"processing_status"`
	RequestCounts     messageCounts `json:"request_counts"`
	EndedAt           *time.Time    `json:"ended_at"`
	CreatedAt         time.Time     `json:"created_at"`
	ExpiresAt         *time.Time    `json:"expires_at"`
	ArchivedAt        *time.Time    `json:"archived_at"`
	CancelInitiatedAt *time.Time    `json:"cancel_initiated_at"`
	ResultsURL        *string       `json:"results_url"`
}

type messageCounts struct {
	Processing int `json:"processing"`
	Succeeded  int `json:"succeeded"`
	Errored    int `json:"errored"`
	Canceled   int `json:"canceled"`
	Expired    int `json:"expired"`
}

func viewMessageBatch(c echo.Context, b work.Batch) messageBatch {
	var source jobs.AnthropicSource
	_ = json.Unmarshal(b.Source, &source) // it was made here
	v := messageBatch{
		ID: publicID("msgbatch_", b.ID), Type: "message_batch", ProcessingStatus: "in_progress", CreatedAt: b.CreatedAt.UTC(),
		ExpiresAt: b.ExpiresAt, CancelInitiatedAt: b.CancelledAt, RequestCounts: messageCounts{Processing: source.Requests},
	}
	switch {
	case b.Status.Final():
		n := b.Counts
		v.ProcessingStatus, v.EndedAt = "ended", b.FinishedAt
		v.RequestCounts = messageCounts{Succeeded: n.Succeeded, Errored: n.Failed, Canceled: n.Cancelled, Expired: n.Expired}
		v.ResultsURL = new(c.Scheme() + "://" + c.Request().Host + "/v1/messages/batches/" + v.ID + "/results")
	case b.CancelledAt != nil:
		v.ProcessingStatus = "canceling"
	}
	return v
}

// addMessageBatch looks at every request while the body comes, and keeps them
// in a file: the body may be large, and is never in memory as a whole.
func (a *API) addMessageBatch(c echo.Context) error {
	ctx := c.Request().Context()
	sent := a.bodies.Patient(c)
	if problem := body.CheckHeaders(c.Request().Header); problem != nil {
		return problem
	}
	f := work.File{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, MediaType: "application/jsonl", Purpose: purposeMessages}
	id := uuid.Must(uuid.NewV7())
	f.Name = publicID("msgbatch_", id) + ".jsonl"
	if err := a.Store.Files.ExpectBlobs(ctx, []uuid.UUID{f.ID}); err != nil {
		return err
	}
	n := store.NewBatch{Batch: work.Batch{
		ID: id, Tenant: work.DefaultTenant, Title: f.Name, Protocol: work.ProtocolAnthropic, InputFile: &f.ID,
		ExpiresAt: new(time.Now().Add(batchWindow)),
	}}
	f.ExpiresAt = n.ExpiresAt
	count, err := a.keepRequests(ctx, sent, &f)
	if err == nil {
		_, err = a.Store.Files.Add(ctx, f)
	}
	if err != nil {
		a.RemoveBlob(ctx, f.ID)
		_, _ = io.CopyN(io.Discard, sent, body.Drained) // who still sends does not look for an answer
		return messageProblem(a.uploadProblem(err, maxMessageBatch))
	}
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(a.bodies.Time))
	n.Source, _ = json.Marshal(jobs.AnthropicSource{Type: jobs.TypeAnthropic, Path: f.ID.String(), Requests: count})
	b, _, err := a.AddBatch(ctx, n)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewMessageBatch(c, b))
}

func messageProblem(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return problem.New(http.StatusRequestTimeout, "the body did not arrive in time")
	}
	return err
}

// keepRequests stores the requests of a body as lines, and counts them.
func (a *API) keepRequests(ctx context.Context, sent io.Reader, f *work.File) (count int, err error) {
	from, to := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read := make(chan error, 1)
	go func() {
		n, err := copyRequests(io.LimitReader(sent, maxMessageBatch+1), to)
		count = n
		read <- err
		_ = to.CloseWithError(err)
	}()
	stored, err := a.Files.Put(ctx, f.ID, from, maxMessageBatch)
	_ = from.CloseWithError(io.ErrClosedPipe) // who reads the body must not wait for a store that has failed
	if wrong := <-read; wrong != nil && !errors.Is(wrong, io.ErrClosedPipe) {
		err = wrong
	}
	f.Size, f.SHA256 = stored.Size, stored.SHA256
	return count, err
}

// copyRequests reads {"requests":[…]} and writes each request as a line.
func copyRequests(sent io.Reader, to io.Writer) (count int, err error) {
	bounded := &bounded{body: sent, left: maxMessageBatch}
	dec := jsontext.NewDecoder(bounded)
	defer func() {
		var syntax *jsontext.SyntacticError
		switch {
		case bounded.left < 0:
			err = blob.ErrTooLarge
		case errors.As(err, &syntax):
			err = body.NotJSON(strictjson.SyntaxError(err))
		case errors.Is(err, io.EOF):
			err = body.Bad("", "the body ends before the requests do")
		}
	}()
	token, err := dec.ReadToken()
	if err != nil {
		return 0, err
	}
	if token.Kind() != '{' {
		return 0, body.Bad("", "the body must be an object with the field requests")
	}
	found := false
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return count, err
		}
		if field := name.String(); field != "requests" {
			return count, body.Bad("/"+strictjson.Escape(work.Clean(field)), strictjson.UnknownField(field))
		}
		found = true
		if count, err = copyList(dec, to); err != nil {
			return count, err
		}
	}
	if _, err := dec.ReadToken(); err != nil { // the end of the object
		return count, err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return count, body.Bad("", "there is more than one JSON value in the body")
	}
	if !found || count == 0 {
		return count, body.Bad("/requests", "there is no request; send at least one")
	}
	return count, nil
}

func copyList(dec *jsontext.Decoder, to io.Writer) (count int, err error) {
	token, err := dec.ReadToken()
	if err != nil {
		return 0, err
	}
	if token.Kind() != '[' {
		return 0, body.Bad("/requests", "must be an array")
	}
	seen := map[string]bool{}
	for dec.PeekKind() != ']' {
		value, err := dec.ReadValue()
		if err != nil {
			return count, err
		}
		at := fmt.Sprintf("/requests/%d", count)
		line, err := messageLine(value, at, seen)
		if err != nil {
			return count, err
		}
		if count++; count > maxMessageRequests {
			return count, body.Bad("/requests", fmt.Sprintf("there are more than %d requests; make several batches of them", maxMessageRequests))
		}
		if _, err := to.Write(append(line, '\n')); err != nil {
			return count, err
		}
	}
	_, err = dec.ReadToken()
	return count, err
}

// messageLine is a request on one line.
func messageLine(value jsontext.Value, at string, seen map[string]bool) ([]byte, error) {
	if problem := body.CheckJSON(value); problem != nil {
		return nil, body.Bad(at, problem.Detail)
	}
	var r jobs.MessageRequest
	if err := strictJSON(value, &r); err != nil {
		return nil, body.Bad(at, problem.Of(err).Detail)
	}
	switch {
	case !messageCustomID.MatchString(r.CustomID):
		return nil, body.Bad(at+"/custom_id", "must have 1 to 64 letters, digits, hyphens and underscores, and nothing else")
	case seen[r.CustomID]:
		return nil, body.Bad(at+"/custom_id", fmt.Sprintf("%q comes twice; each request needs a custom_id of its own", r.CustomID))
	case len(r.Params) == 0 || r.Params[0] != '{':
		return nil, body.Bad(at+"/params", "must be an object: the body of POST /v1/messages")
	}
	seen[r.CustomID] = true
	line := value.Clone()
	return line, line.Compact()
}

// bounded reads no more than is left, and then tells so by being below zero.
type bounded struct {
	body io.Reader
	left int64
}

func (w *bounded) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	if w.left -= int64(n); w.left < 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func (a *API) messageBatch(c echo.Context) (work.Batch, error) {
	b, err := a.protocolBatch(c.Request().Context(), work.ProtocolAnthropic, ownID("msgbatch_", c.Param("id")))
	if errors.Is(err, work.ErrNotFound) {
		return b, problem.New(http.StatusNotFound, fmt.Sprintf("Message Batch %s not found.", work.Clean(c.Param("id"))))
	}
	return b, err
}

func (a *API) getMessageBatch(c echo.Context) error {
	b, err := a.messageBatch(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewMessageBatch(c, b))
}

func (a *API) listMessageBatches(c echo.Context) error {
	limit, err := limitOf(c, 20, 1000)
	if err != nil {
		return err
	}
	f := store.BatchFilter{Tenant: work.DefaultTenant, Protocol: work.ProtocolAnthropic, Limit: limit}
	for name, into := range map[string]*uuid.UUID{"after_id": &f.After, "before_id": &f.Before} {
		text := c.QueryParam(name)
		if *into = ownID("msgbatch_", text); text != "" && *into == uuid.Nil {
			return problem.Fields(http.StatusBadRequest, problem.Field{Parameter: name, Detail: "is no id of a batch"})
		}
	}
	if f.After != uuid.Nil && f.Before != uuid.Nil {
		return problem.Fields(http.StatusBadRequest, problem.Field{Parameter: "before_id", Detail: "give it or after_id, not both"})
	}
	batches, next, err := a.Store.Batches.List(c.Request().Context(), f)
	if err != nil {
		return err
	}
	views := make([]messageBatch, len(batches))
	for i, b := range batches {
		views[i] = viewMessageBatch(c, b)
	}
	page := listOf(views, next != nil, func(b messageBatch) string { return b.ID })
	delete(page, "object")
	return c.JSON(http.StatusOK, page)
}

func (a *API) cancelMessageBatch(c echo.Context) error {
	b, err := a.messageBatch(c)
	if err == nil {
		b, err = a.Store.Batches.Cancel(c.Request().Context(), work.DefaultTenant, b.ID, "")
	}
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewMessageBatch(c, b))
}

func (a *API) deleteMessageBatch(c echo.Context) error {
	ctx := c.Request().Context()
	b, err := a.messageBatch(c)
	if err != nil {
		return err
	}
	if !b.Status.Final() {
		return problem.New(http.StatusBadRequest, "the batch has not ended; cancel it first, or wait")
	}
	if err := a.Store.Batches.Delete(ctx, work.DefaultTenant, b.ID); err != nil {
		return err
	}
	a.purgeBatches(ctx)
	return c.JSON(http.StatusOK, map[string]string{"id": c.Param("id"), "type": "message_batch_deleted"})
}

type messageResult struct {
	CustomID string        `json:"custom_id"`
	Result   messageAnswer `json:"result"`
}

type messageAnswer struct {
	Type    string          `json:"type"`
	Message json.RawMessage `json:"message,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

func (a *API) getMessageResults(c echo.Context) error {
	ctx := c.Request().Context()
	b, err := a.messageBatch(c)
	if err != nil {
		return err
	}
	if !b.Status.Final() {
		return problem.New(http.StatusBadRequest, "the batch has not ended: there are no results yet; look at processing_status")
	}
	c.Response().Header().Set("Content-Type", "application/x-jsonl")
	return a.sendWhole(c, func(w io.Writer) error {
		lines := newLines(w)
		return a.Store.Batches.Results(ctx, b.ID, work.FinalStates, func(r store.BatchResult) error {
			return lines.Encode(messageResult{CustomID: r.CustomID, Result: messageAnswerOf(r)})
		})
	})
}

func messageAnswerOf(r store.BatchResult) messageAnswer {
	switch r.State {
	case work.Succeeded:
		return messageAnswer{Type: "succeeded", Message: rawOrText(*r.Output)}
	case work.Cancelled:
		return messageAnswer{Type: "canceled"}
	case work.TimedOut:
		return messageAnswer{Type: "expired"}
	}
	if r.Output != nil && r.HTTPStatus >= http.StatusBadRequest {
		var theirs struct {
			Type string `json:"type"`
		}
		if json.Unmarshal([]byte(*r.Output), &theirs) == nil && theirs.Type == "error" {
			return messageAnswer{Type: "errored", Error: json.RawMessage(*r.Output)}
		}
	}
	kind := "api_error"
	if r.Error != nil && r.Error.Class == work.ClassInvalidRequest {
		kind = "invalid_request_error"
	}
	ours, _ := json.Marshal(map[string]any{"type": "error", "request_id": r.ID, "error": map[string]string{"type": kind, "message": failureText(r)}})
	return messageAnswer{Type: "errored", Error: ours}
}
