package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/blob"
	"piecework/internal/work"
	"piecework/store"
)

const (
	// maxBatchFile bounds the input of a batch, in bytes.
	maxBatchFile = 200 << 20
	purposeBatch = "batch"
	purposeUser  = "user_data"

	leastExpiry = 3600
	mostExpiry  = 30 * 24 * 3600
)

// openaiFile is a file as OpenAI's SDKs know it.
type openaiFile struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"`
	ExpiresAt *int64 `json:"expires_at"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"`
	Status    string `json:"status"`
	Details   any    `json:"status_details"`
}

// fileSuffix ends the ids of files that are read from a batch.
var fileSuffix = map[string]string{"": "", store.PartOutput: "-output", store.PartError: "-error"}

func fileID(id uuid.UUID, part string) string { return publicID("file-", id) + fileSuffix[part] }

func parseFileID(text string) (id uuid.UUID, part string) {
	for _, part := range []string{store.PartOutput, store.PartError} {
		if rest, ok := strings.CutSuffix(text, fileSuffix[part]); ok {
			return ownID("file-", rest), part
		}
	}
	return ownID("file-", text), ""
}

func viewPurposeFile(f store.PurposeFile) openaiFile {
	view := openaiFile{
		ID: fileID(f.ID, f.Part), Object: "file", Bytes: f.Size, CreatedAt: f.CreatedAt.Unix(), ExpiresAt: unixSeconds(f.ExpiresAt),
		Filename: f.Name, Purpose: f.Purpose, Status: "processed",
	}
	if f.Part != "" {
		view.Filename = publicID("batch_", f.ID) + fileSuffix[f.Part] + ".jsonl"
	}
	return view
}

func (a *API) addPurposeFile(c echo.Context) error {
	ctx, sent := c.Request().Context(), a.bodies.Patient(c)
	var given struct{ purpose, anchor, seconds string }
	f, err := a.receive(ctx, c.Request(), sent, intake{
		maxBytes: maxBatchFile,
		refuses:  func(string) string { return "" },
		field: func(name, value string) error {
			switch name {
			case "purpose":
				given.purpose = value
			case "expires_after[anchor]":
				given.anchor = value
			case "expires_after[seconds]":
				given.seconds = value
			default:
				return work.Invalidf("#/"+work.Clean(name), "the form has the fields file, purpose and expires_after, and no others")
			}
			return nil
		},
		done: func(f *work.File) error {
			switch given.purpose {
			case purposeBatch:
			case purposeUser:
				if wrong := a.FilePolicy.Refuses(f.Name, f.Size); wrong != "" {
					return work.Invalidf("#/file", "%s", wrong)
				}
			case "":
				return work.Invalidf("#/purpose", "is missing; say %s or %s", purposeBatch, purposeUser)
			default:
				return work.Invalidf("#/purpose", "files are kept for %s and %s, not for %.100q", purposeBatch, purposeUser, given.purpose)
			}
			f.Purpose = given.purpose
			if given.anchor == "" && given.seconds == "" {
				return nil
			}
			seconds, err := strconv.Atoi(given.seconds)
			if err != nil {
				return work.Invalidf("#/expires_after/seconds", "must be a whole number")
			}
			f.ExpiresAt = new(time.Now().Add(time.Duration(seconds) * time.Second))
			return checkExpiry("#/expires_after", given.anchor, seconds)
		},
	})
	if err != nil {
		_, _ = io.CopyN(io.Discard, sent, body.Drained) // who still sends does not look for an answer
		return a.uploadProblem(err, maxBatchFile)
	}
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(a.bodies.Time))
	return c.JSON(http.StatusOK, viewPurposeFile(store.PurposeFile{File: f}))
}

func checkExpiry(pointer, anchor string, seconds int) error {
	switch {
	case anchor != "created_at":
		return work.Invalidf(pointer+"/anchor", "must be created_at")
	case seconds < leastExpiry || seconds > mostExpiry:
		return work.Invalidf(pointer+"/seconds", "must lie between %d and %d", leastExpiry, mostExpiry)
	}
	return nil
}

// noFile says that there is no such file, as OpenAI does.
func noFile(id string) error {
	return problem.New(http.StatusNotFound, "No such File object: "+id, problem.Field{Parameter: "id"})
}

func (a *API) purposeFile(c echo.Context) (f store.PurposeFile, err error) {
	id, part := parseFileID(c.Param("id"))
	switch {
	case id == uuid.Nil:
		err = work.ErrNotFound
	case part != "":
		f, err = a.Store.Files.OfBatch(c.Request().Context(), work.DefaultTenant, id, part)
	default:
		f.File, err = a.Store.Files.Get(c.Request().Context(), work.DefaultTenant, id)
		f.Sized = true
		if err == nil && (f.Purpose != purposeBatch && f.Purpose != purposeUser || f.ExpiresAt != nil && f.ExpiresAt.Before(time.Now())) {
			err = work.ErrNotFound
		}
	}
	if errors.Is(err, work.ErrNotFound) {
		err = noFile(c.Param("id"))
	}
	return f, err
}

func (a *API) listPurposeFiles(c echo.Context) error {
	const most = 10_000
	limit, err := limitOf(c, most, most)
	if err != nil {
		return err
	}
	f := store.PurposeFilter{Tenant: work.DefaultTenant, Purpose: c.QueryParam("purpose"), Limit: limit}
	switch c.QueryParam("order") {
	case "", "desc":
	case "asc":
		f.Oldest = true
	default:
		return problem.Fields(http.StatusBadRequest, problem.Field{Parameter: "order", Detail: "must be asc or desc"})
	}
	if after := c.QueryParam("after"); after != "" {
		if f.After, f.AfterPart = parseFileID(after); f.After == uuid.Nil {
			return noFile(after)
		}
	}
	files, more, err := a.Store.Files.ListByPurpose(c.Request().Context(), f)
	if err != nil {
		return err
	}
	views := make([]openaiFile, len(files))
	for i := range files {
		if err := a.measure(c.Request().Context(), &files[i]); err != nil {
			return err
		}
		views[i] = viewPurposeFile(files[i])
	}
	return c.JSON(http.StatusOK, listOf(views, more, func(f openaiFile) string { return f.ID }))
}

// listOf is a page as both of them write it, but for the word that OpenAI adds.
func listOf[T any](items []T, more bool, id func(T) string) map[string]any {
	page := map[string]any{"object": "list", "data": items, "has_more": more, "first_id": nil, "last_id": nil}
	if len(items) > 0 {
		page["first_id"], page["last_id"] = id(items[0]), id(items[len(items)-1])
	}
	return page
}

func (a *API) getPurposeFile(c echo.Context) error {
	f, err := a.purposeFile(c)
	if err == nil {
		err = a.measure(c.Request().Context(), &f)
	}
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, viewPurposeFile(f))
}

// measure finds out how long a file of a batch is, by writing both to nowhere,
// once: when the batch is over they do not change any more.
func (a *API) measure(ctx context.Context, f *store.PurposeFile) error {
	if f.Part == "" || f.Sized || !f.Over {
		return nil
	}
	b, err := a.Store.Batches.Get(ctx, work.DefaultTenant, f.ID)
	if err != nil {
		return err
	}
	sizes := map[string]int64{}
	for _, part := range []string{store.PartOutput, store.PartError} {
		var size counter
		if err := a.writeBatchFile(ctx, b, part, &size); err != nil {
			return err
		}
		sizes[part] = int64(size)
	}
	f.Size = sizes[f.Part]
	return a.Store.Files.SetBatchSizes(ctx, f.ID, f.Round, sizes[store.PartOutput], sizes[store.PartError])
}

// counter counts what is written.
type counter int64

func (n *counter) Write(p []byte) (int, error) {
	*n += counter(len(p))
	return len(p), nil
}

func (a *API) getPurposeContent(c echo.Context) error {
	ctx := c.Request().Context()
	f, err := a.purposeFile(c)
	if err != nil {
		return err
	}
	if f.Part == "" {
		return a.sendUpload(c, f.File)
	}
	b, err := a.Store.Batches.Get(ctx, work.DefaultTenant, f.ID)
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(viewPurposeFile(f).Filename))
	return a.sendWhole(c, func(w io.Writer) error { return a.writeBatchFile(ctx, b, f.Part, w) })
}

// sendWhole sends what write writes. What goes wrong on the way breaks the
// connection: half of it must not look like the whole.
func (a *API) sendWhole(c echo.Context, write func(io.Writer) error) error {
	err := write(patientWriter{c.Response(), a.bodies.Time})
	if err == nil || !c.Response().Committed {
		return err
	}
	a.Log.Warn("an answer was broken off", "path", c.Request().URL.Path, "err", err, "request_id", problem.RequestID(c))
	panic(http.ErrAbortHandler)
}

func (a *API) sendUpload(c echo.Context, f work.File) error {
	content, err := a.Files.Open(c.Request().Context(), f.ID)
	if errors.Is(err, blob.ErrMissing) {
		return problem.New(http.StatusServiceUnavailable,
			"the file's bytes are not in this server's file store; give API and worker processes the same PIECEWORK_FILES")
	}
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	h := c.Response().Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(f.Name))
	http.ServeContent(patientWriter{c.Response(), a.bodies.Time}, c.Request(), "", f.CreatedAt, content)
	return nil
}

func (a *API) deletePurposeFile(c echo.Context) error {
	ctx := c.Request().Context()
	f, err := a.purposeFile(c)
	switch {
	case err != nil:
	case f.Part != "":
		err = a.Store.Files.DeleteOfBatch(ctx, work.DefaultTenant, f.ID, f.Part)
	default:
		if err = a.Store.Files.Delete(ctx, work.DefaultTenant, f.ID); err == nil {
			a.RemoveBlob(ctx, f.ID)
		}
	}
	if err != nil {
		return fmt.Errorf("delete file: %w", err)
	}
	return c.JSON(http.StatusOK, map[string]any{"id": c.Param("id"), "object": "file", "deleted": true})
}
