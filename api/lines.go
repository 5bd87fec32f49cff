package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"os"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/blob"
	"piecework/internal/source"
	"piecework/internal/work"
	"piecework/jobs"
)

// takeLines lets POST /batches read lines as well as one JSON body: then
// nothing of them is held in memory.
func (a *API) takeLines(ctx huma.Context, next func(huma.Context)) {
	c := humaecho.Unwrap(ctx)
	kind, _, _ := mime.ParseMediaType(c.Request().Header.Get("Content-Type"))
	switch kind {
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines":
	default:
		next(ctx)
		return
	}
	answer, err := a.submitLines(ctx.Context(), c.Request().Header, a.bodies.Patient(c))
	if err != nil {
		_, _ = io.CopyN(io.Discard, c.Request().Body, body.Drained) // who still sends does not look for an answer
		a.answerError(a.lineProblem(err), c)
		return
	}
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(a.bodies.Time))
	c.Response().Header().Set("Location", answer.Location)
	if answer.Replayed != "" {
		c.Response().Header().Set("Idempotent-Replayed", answer.Replayed)
	}
	if err := c.JSON(answer.Status, answer.Body); err != nil {
		a.Log.Debug("answer", "err", err)
	}
}

func (a *API) lineProblem(err error) error {
	switch {
	case errors.Is(err, source.ErrBroken):
		return problem.New(http.StatusBadRequest, err.Error())
	case errors.Is(err, os.ErrDeadlineExceeded):
		return problem.New(http.StatusRequestTimeout, fmt.Sprintf("nothing came for %s, or the lines took longer than %s", a.bodies.Time, body.UploadTime))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return problem.New(http.StatusBadRequest, "the body could not be read to its end: it is shorter than announced, or cut off")
	case errors.Is(err, blob.ErrTooLarge):
		return problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the units take more than %d bytes; send them as several batches", int64(jobs.MaxBatchBytes)))
	}
	return err
}

// submitLines reads a batch of lines. With an idempotency key the first body
// counts: it cannot be compared before it was read.
func (a *API) submitLines(ctx context.Context, header http.Header, body io.Reader) (*batchAnswer, error) {
	key, err := keyIn(header)
	if err != nil {
		return nil, err
	}
	if key != "" {
		if b, err := a.Store.Batches.Before(ctx, work.DefaultTenant, key, []byte(linesKey)); !errors.Is(err, work.ErrNotFound) {
			return answerBatch(b, nil, true), err
		}
	}
	next, stop := iter.Pull2(source.ReadLines(body, source.Place{}))
	defer stop()
	first, err, any := next()
	if err != nil {
		return nil, err
	}
	if !any {
		return nil, problem.New(http.StatusBadRequest, "there is no line in the body; send one unit a line")
	}
	first.Text = bytes.Clone(first.Text)
	options, given, before, err := a.lineOptions(first)
	if err != nil {
		return nil, err
	}
	n, err := a.NewBatch(&options)
	if err != nil {
		return nil, work.Within("#/1/batch", err)
	}
	if key != "" {
		n.IdempotencyKey, n.BodyHash = key, []byte(linesKey)
	}
	units := func(yield func(source.Line, error) bool) {
		if !given && !yield(first, nil) {
			return
		}
		for line, err, ok := next(); ok; line, err, ok = next() {
			line.Next.Line -= before
			if !yield(line, err) {
				return
			}
		}
	}
	return answerSubmitted(a.SubmitUnits(ctx, n, options, units, func(line int) string { return fmt.Sprintf("#/%d", line) }))
}

// linesKey stands for the body of lines, which is not compared.
const linesKey = "lines"

// lineOptions reads a first line that is about the whole batch. Whoever has put
// it before the lines of a file numbers it 0: then the file's keep their
// numbers, and before is how many lines do not count.
func (a *API) lineOptions(line source.Line) (o jobs.BatchOptions, given bool, before int, err error) {
	var head map[string]json.RawMessage
	if json.Unmarshal(line.Text, &head) != nil || head["batch"] == nil {
		return o, false, 0, nil
	}
	if string(head["line"]) == "0" {
		delete(head, "line")
		before = line.Next.Line
	}
	if len(head) > 1 {
		return o, true, 0, problem.New(http.StatusBadRequest, "line 1: beside batch there is nothing else in the line; units begin on the next")
	}
	if o, err = a.ReadBatchOptions(head["batch"]); err != nil {
		return o, true, 0, work.Within("#/1/batch", err)
	}
	return o, true, before, nil
}
