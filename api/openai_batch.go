package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// openaiEndpoints are what the lines of a batch may go to.
var openaiEndpoints = []string{work.EndpointChat, work.EndpointResponses, work.EndpointEmbeddings, jobs.EndpointUnits}

const (
	batchWindow      = 24 * time.Hour
	batchWindowName  = "24h"
	maxMetadata      = 16
	maxMetadataKey   = 64
	maxMetadataValue = 512
)

// openaiBatch is a batch as OpenAI's SDKs know it.
type openaiBatch struct {
	ID               string          `json:"id"`
	Object           string          `json:"object"`
	Endpoint         string          `json:"endpoint"`
	Errors           *openaiErrors   `json:"errors"`
	InputFileID      string          `json:"input_file_id"`
	CompletionWindow string          `json:"completion_window"`
	Status           string          `json:"status"`
	OutputFileID     *string         `json:"output_file_id"`
	ErrorFileID      *string         `json:"error_file_id"`
	CreatedAt        int64           `json:"created_at"`
	InProgressAt     *int64          `json:"in_progress_at"`
	ExpiresAt        *int64          `json:"expires_at"`
	FinalizingAt     *int64          `json:"finalizing_at"`
	CompletedAt      *int64          `json:"completed_at"`
	FailedAt         *int64          `json:"failed_at"`
	ExpiredAt        *int64          `json:"expired_at"`
	CancellingAt     *int64          `json:"cancelling_at"`
	CancelledAt      *int64          `json:"cancelled_at"`
	RequestCounts    openaiCounts    `json:"request_counts"`
	Usage            *openaiUsage    `json:"usage"`
	Metadata         json.RawMessage `json:"metadata"`
}

type openaiErrors struct {
	Object string             `json:"object"`
	Data   []openaiBatchError `json:"data"`
}

type openaiBatchError struct {
	Code    string  `json:"code"`
	Line    *int    `json:"line"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
}

type openaiCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

type openaiUsage struct {
	InputTokens  int64 `json:"input_tokens"`
	InputDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens  int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int64 `json:"total_tokens"`
}

// openaiStatuses are our statuses in OpenAI's words.
var openaiStatuses = map[work.BatchStatus]string{
	work.BatchEnumerating: "validating", work.BatchTesting: "in_progress", work.BatchAwaitingApproval: "in_progress",
	work.BatchInProgress: "in_progress", work.BatchFinalizing: "finalizing", work.BatchCancelling: "cancelling",
	work.BatchCompleted: "completed", work.BatchCompletedWithFailures: "completed", work.BatchFailed: "failed",
	work.BatchCancelled: "cancelled", work.BatchExpired: "expired",
}

func viewOpenAIBatch(b work.Batch) openaiBatch {
	var source jobs.OpenAISource
	_ = json.Unmarshal(b.Source, &source) // it was made here
	v := openaiBatch{
		ID: publicID("batch_", b.ID), Object: "batch", Endpoint: source.Endpoint, CompletionWindow: source.CompletionWindow,
		Status: openaiStatuses[b.Status], CreatedAt: b.CreatedAt.Unix(), InProgressAt: unixSeconds(b.EnumeratedAt),
		ExpiresAt: unixSeconds(b.ExpiresAt), CancellingAt: unixSeconds(b.CancelledAt), Metadata: b.Metadata,
	}
	if b.InputFile != nil {
		v.InputFileID = fileID(*b.InputFile, "")
	}
	if string(b.Metadata) == "{}" {
		v.Metadata = nil
	}
	if c := b.Counts; b.Status != work.BatchEnumerating { // until all lines are looked at, none counts
		v.RequestCounts = openaiCounts{Total: c.Total, Completed: c.Succeeded, Failed: c.Failed + c.Cancelled + c.Expired}
	}
	if !b.Status.Final() {
		return v
	}
	v.end(b)
	return v
}

// end is what there is to say of a batch that is over.
func (v *openaiBatch) end(b work.Batch) {
	at := unixSeconds(b.FinishedAt)
	switch b.Status {
	case work.BatchCompleted, work.BatchCompletedWithFailures:
		v.FinalizingAt, v.CompletedAt = at, at
	case work.BatchFailed:
		v.FailedAt, v.Errors = at, viewOpenAIErrors(b)
	case work.BatchExpired:
		v.FinalizingAt, v.ExpiredAt = at, at
	case work.BatchCancelled:
		v.CancelledAt = at
	}
	if v.RequestCounts.Completed > 0 {
		v.OutputFileID = new(fileID(b.ID, store.PartOutput))
	}
	if v.RequestCounts.Failed > 0 {
		v.ErrorFileID = new(fileID(b.ID, store.PartError))
	}
	if u := b.Counts.Usage; u != nil {
		used := &openaiUsage{InputTokens: u.InputTokens + u.CacheReadTokens + u.CacheCreationTokens, OutputTokens: u.OutputTokens}
		used.InputDetails.Cached, used.TotalTokens = u.CacheReadTokens, used.InputTokens+used.OutputTokens
		v.Usage = used
	}
}

func viewOpenAIErrors(b work.Batch) *openaiErrors {
	list := &openaiErrors{Object: "list", Data: []openaiBatchError{}}
	for _, p := range b.Problems {
		e := openaiBatchError{Code: cmp.Or(p.Code, "invalid_request"), Message: p.Detail, Param: paramOf(p.Pointer)}
		if p.Line > 0 {
			e.Line = &p.Line
		}
		list.Data = append(list.Data, e)
	}
	if len(list.Data) == 0 {
		list.Data = append(list.Data, openaiBatchError{Code: "invalid_request", Message: b.Why})
	}
	return list
}

type newOpenAIBatch struct {
	InputFileID        string             `json:"input_file_id"`
	Endpoint           string             `json:"endpoint"`
	CompletionWindow   string             `json:"completion_window"`
	Metadata           map[string]*string `json:"metadata"`
	OutputExpiresAfter *struct {
		Anchor  string `json:"anchor"`
		Seconds int    `json:"seconds"`
	} `json:"output_expires_after"`
}

func (n *newOpenAIBatch) check() error {
	switch {
	case n.InputFileID == "":
		return work.Invalidf("#/input_file_id", "is missing; upload the lines with POST /v1/files and give its id")
	case n.Endpoint == "":
		return work.Invalidf("#/endpoint", "is missing; it is one of %s", strings.Join(openaiEndpoints, ", "))
	case !slices.Contains(openaiEndpoints, n.Endpoint):
		return work.Invalidf("#/endpoint", "there is no %.100q here; it is one of %s", n.Endpoint, strings.Join(openaiEndpoints, ", "))
	case n.CompletionWindow != batchWindowName:
		return work.Invalidf("#/completion_window", "must be %s", batchWindowName)
	case len(n.Metadata) > maxMetadata:
		return work.Invalidf("#/metadata", "has more than %d pairs", maxMetadata)
	}
	for key, value := range n.Metadata {
		switch {
		case key == "" || len(key) > maxMetadataKey:
			return work.Invalidf("#/metadata", "the key %.64q: a key has 1 to %d bytes", key, maxMetadataKey)
		case value == nil || len(*value) > maxMetadataValue:
			return work.Invalidf("#/metadata/"+strictjson.Escape(key), "is a text of at most %d bytes", maxMetadataValue)
		}
	}
	if e := n.OutputExpiresAfter; e != nil {
		return checkExpiry("#/output_expires_after", e.Anchor, e.Seconds)
	}
	return nil
}

func (a *API) addOpenAIBatch(c echo.Context) error {
	ctx := c.Request().Context()
	var given newOpenAIBatch
	body, err := a.strictBody(c, &given)
	if err == nil {
		err = given.check()
	}
	var key string
	if err == nil {
		key, err = keyIn(c.Request().Header)
	}
	var input work.File
	if err == nil {
		input, err = a.inputFile(ctx, given.InputFileID)
	}
	if err != nil {
		return err
	}
	source := jobs.OpenAISource{Type: jobs.TypeOpenAI, Path: input.ID.String(), Endpoint: given.Endpoint,
		CompletionWindow: given.CompletionWindow}
	if given.OutputExpiresAfter != nil {
		source.OutputExpiresAfter = given.OutputExpiresAfter.Seconds
	}
	n := store.NewBatch{IdempotencyKey: key, Batch: work.Batch{
		ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: input.Name, Protocol: work.ProtocolOpenAI,
		InputFile: &input.ID, ExpiresAt: new(time.Now().Add(batchWindow)),
	}}
	n.Source, _ = json.Marshal(source) // texts and numbers always can be
	if len(given.Metadata) > 0 {
		n.Metadata, _ = json.Marshal(given.Metadata)
	}
	if key != "" {
		n.BodyHash = fingerprint(body)
	}
	b, _, err := a.AddBatch(ctx, n)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewOpenAIBatch(b))
}

func (a *API) inputFile(ctx context.Context, text string) (work.File, error) {
	id, part := parseFileID(text)
	f, err := a.Store.Files.Get(ctx, work.DefaultTenant, id)
	switch {
	case errors.Is(err, work.ErrNotFound) || err == nil && (part != "" || f.Purpose == "" || f.ExpiresAt != nil &&
		f.ExpiresAt.Before(time.Now())):
		return f, work.Invalidf("#/input_file_id", "there is no file %.100q; upload the lines with POST /v1/files", text)
	case err == nil && f.Purpose != purposeBatch:
		return f, work.Invalidf("#/input_file_id", "the file is for %s; upload it with the purpose %s", f.Purpose, purposeBatch)
	}
	return f, err
}

func (a *API) openaiBatch(c echo.Context) (work.Batch, error) {
	b, err := a.protocolBatch(c.Request().Context(), work.ProtocolOpenAI, ownID("batch_", c.Param("id")))
	if errors.Is(err, work.ErrNotFound) {
		return b, problem.New(http.StatusNotFound, fmt.Sprintf("No batch found with id '%s'.", c.Param("id")), problem.Field{Parameter: "id"})
	}
	return b, err
}

func (a *API) getOpenAIBatch(c echo.Context) error {
	b, err := a.openaiBatch(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewOpenAIBatch(b))
}

func (a *API) listOpenAIBatches(c echo.Context) error {
	limit, err := limitOf(c, 20, 100)
	if err != nil {
		return err
	}
	f := store.BatchFilter{Tenant: work.DefaultTenant, Protocol: work.ProtocolOpenAI, Limit: limit}
	if after := c.QueryParam("after"); after != "" {
		if f.After = ownID("batch_", after); f.After == uuid.Nil {
			return problem.Fields(http.StatusBadRequest, problem.Field{Parameter: "after", Detail: "is no id of a batch"})
		}
	}
	batches, next, err := a.Store.Batches.List(c.Request().Context(), f)
	if err != nil {
		return err
	}
	views := make([]openaiBatch, len(batches))
	for i, b := range batches {
		views[i] = viewOpenAIBatch(b)
	}
	return c.JSON(http.StatusOK, listOf(views, next != nil, func(b openaiBatch) string { return b.ID }))
}

// cancelOpenAIBatch answers for a batch that is over with the batch as it is.
func (a *API) cancelOpenAIBatch(c echo.Context) error {
	b, err := a.openaiBatch(c)
	if err == nil {
		b, err = a.Store.Batches.Cancel(c.Request().Context(), work.DefaultTenant, b.ID, "")
	}
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewOpenAIBatch(b))
}

// openaiResult is a line of an output or error file.
type openaiResult struct {
	ID       string          `json:"id"`
	CustomID string          `json:"custom_id"`
	Response *openaiResponse `json:"response"`
	Error    *openaiFailure  `json:"error"`
}

type openaiResponse struct {
	StatusCode int             `json:"status_code"`
	RequestID  string          `json:"request_id"`
	Body       json.RawMessage `json:"body"`
}

type openaiFailure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// partStates are the units that stand in a file.
var partStates = map[string][]work.State{
	store.PartOutput: {work.Succeeded},
	store.PartError:  {work.Failed, work.Cancelled, work.TimedOut},
}

// writeBatchFile writes the output or the error file of a batch as it is now.
func (a *API) writeBatchFile(ctx context.Context, b work.Batch, part string, w io.Writer) error {
	lines := newLines(w)
	return a.Store.Batches.Results(ctx, b.ID, partStates[part], func(r store.BatchResult) error {
		return lines.Encode(openaiResultOf(b, r))
	})
}

func openaiResultOf(b work.Batch, r store.BatchResult) openaiResult {
	line := openaiResult{ID: publicID("batch_req_", r.ID), CustomID: r.CustomID}
	output := ""
	if r.Output != nil {
		output = *r.Output
	}
	answered := &openaiResponse{StatusCode: cmp.Or(r.HTTPStatus, http.StatusOK), RequestID: cmp.Or(r.RequestID, r.ID.String())}
	switch {
	case r.State == work.Succeeded && len(r.Request) > 0:
		answered.Body, line.Response = rawOrText(output), answered
	case r.State == work.Succeeded:
		answered.Body, _ = json.Marshal(r.Unit) // what was read from the ledger can be written
		line.Response = answered
	case r.State == work.Cancelled:
		line.Error = &openaiFailure{"batch_cancelled", "This request was cancelled before it was completed."}
	case r.State == work.TimedOut && b.ExpiresAt != nil && r.FinishedAt != nil && !r.FinishedAt.Before(*b.ExpiresAt):
		line.Error = &openaiFailure{"batch_expired", "This request could not be executed before the completion window expired."}
	case r.State == work.TimedOut:
		line.Error = &openaiFailure{"request_timeout", failureText(r)}
	case r.HTTPStatus >= http.StatusBadRequest:
		answered.Body, line.Response = rawOrText(output), answered
	default:
		code := "server_error"
		if r.Error != nil {
			code = string(r.Error.Class)
		}
		line.Error = &openaiFailure{code, failureText(r)}
	}
	return line
}

func failureText(r store.BatchResult) string {
	if r.Error == nil {
		return "The request has failed."
	}
	return r.Error.Message
}
