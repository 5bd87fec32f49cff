package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/api/query"
	"piecework/internal/blob"
	"piecework/internal/work"
	"piecework/store"
)

type fileAnswer struct {
	Location string `header:"Location"`
	Body     work.File
}

type requestKey struct{}

// keepRequest hands the request itself to a handler that reads or writes bytes.
func keepRequest(ctx huma.Context, next func(huma.Context)) {
	next(huma.WithContext(ctx, context.WithValue(ctx.Context(), requestKey{}, humaecho.Unwrap(ctx))))
}

func requestOf(ctx context.Context) echo.Context { return ctx.Value(requestKey{}).(echo.Context) }

// upload keeps one file. Its bytes go from the caller to the file store as
// they come; the row is made when they are all there.
func (a *API) upload(ctx context.Context, _ *struct{}) (*fileAnswer, error) {
	c := requestOf(ctx)
	sent := a.bodies.Patient(c)
	f, err := a.receive(ctx, c.Request(), sent, intake{
		maxBytes: a.FilePolicy.MaxBytes, refuses: func(name string) string { return a.FilePolicy.Refuses(name, 0) },
		done: func(*work.File) error { return nil },
	})
	if err != nil {
		_, _ = io.CopyN(io.Discard, sent, body.Drained) // who still sends does not look for an answer
		if errors.Is(err, blob.ErrTooLarge) {
			return nil, problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the file is larger than %d bytes, the server's --max-file-bytes (PIECEWORK_MAX_FILE_BYTES); what a batch is to be made of may have %d when it is sent to /v1/files", a.FilePolicy.MaxBytes, maxBatchFile))
		}
		return nil, a.uploadProblem(err, a.FilePolicy.MaxBytes)
	}
	// A body that came slowly must not have used up the time for the answer.
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(a.bodies.Time))
	return &fileAnswer{Location: "/files/" + f.ID.String(), Body: f}, nil
}

// intake is what the form of an upload may bring.
type intake struct {
	maxBytes int64
	refuses  func(name string) string // why a file of that name may not come, or nothing
	// field takes what else is in the form; nil: there is only the file.
	field func(name, value string) error
	// done looks at all of it before the bytes become a file.
	done func(*work.File) error
}

// maxField bounds a field of a form, in bytes.
const maxField = 4096

// receive keeps the file of a form. Its other fields may come before it and
// after it.
func (a *API) receive(ctx context.Context, r *http.Request, sent io.Reader, in intake) (work.File, error) {
	f := work.File{ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant}
	form, err := multipartForm(r, sent)
	if err != nil {
		return f, err
	}
	begun := false
	err = a.readParts(ctx, form, &f, &begun, in)
	if err == nil && !begun {
		err = work.Invalidf("#/file", "there is no file in the form; send one in the field file")
	}
	if err == nil {
		err = in.done(&f)
	}
	if err == nil {
		f, err = a.Store.Files.Add(ctx, f)
	}
	if err != nil && begun {
		a.RemoveBlob(ctx, f.ID)
	}
	return f, err
}

func (a *API) readParts(ctx context.Context, form *multipart.Reader, f *work.File, begun *bool, in intake) error {
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if in.field != nil && part.FormName() != "file" {
			value, err := io.ReadAll(io.LimitReader(part, maxField))
			if err == nil {
				err = in.field(part.FormName(), string(value))
			}
			if err != nil {
				return err
			}
			continue
		}
		if *begun {
			return work.Invalidf("#/file", "there is more than one part in the form; send each file in a request of its own")
		}
		var wrong string
		if f.Name, wrong = partName(part); wrong == "" {
			wrong = in.refuses(f.Name)
		}
		if wrong != "" {
			return work.Invalidf("#/file", "%s", wrong)
		}
		if err := a.Store.Files.ExpectBlobs(ctx, []uuid.UUID{f.ID}); err != nil {
			return err
		}
		*begun = true
		if err := a.keep(ctx, part, f, in.maxBytes); err != nil {
			return err
		}
	}
}

// multipartForm reads the parts of a form one after the other.
func multipartForm(r *http.Request, sent io.Reader) (*multipart.Reader, error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return nil, problem.New(http.StatusUnsupportedMediaType,
			"send the file as multipart/form-data in the field file, such as curl -F file=@report.pdf does")
	}
	return multipart.NewReader(sent, params["boundary"]), nil
}

// partName is the name of the file in a part, or what is wrong with the part.
// The name is read as it was written: Part.FileName knows only the slashes of
// the system it runs on.
func partName(part *multipart.Part) (name, wrong string) {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	switch {
	case err != nil:
		return "", "the part's Content-Disposition cannot be read"
	case params["name"] != "file":
		return "", fmt.Sprintf("there is no field %.100q; the form has one, file", work.Clean(params["name"]))
	}
	return work.FileName(params["filename"])
}

// keep stores the bytes of a part.
func (a *API) keep(ctx context.Context, part *multipart.Part, f *work.File, maxBytes int64) error {
	content := bufio.NewReader(part)
	head, err := content.Peek(blob.SniffBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	f.MediaType = blob.MediaType(part.Header.Get("Content-Type"), f.Name, head)
	stored, err := a.Files.Put(ctx, f.ID, content, maxBytes)
	if err != nil {
		return err
	}
	f.Size, f.SHA256 = stored.Size, stored.SHA256
	return nil
}

// uploadProblem tells what was wrong with the bytes that came.
func (a *API) uploadProblem(err error, maxBytes int64) error {
	var away *work.Unavailable
	switch {
	case errors.As(err, &away):
		a.Log.Warn("an upload failed", "err", away)
		return err
	case errors.Is(err, blob.ErrTooLarge):
		return problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf("the file is larger than %d bytes", maxBytes))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return problem.New(http.StatusRequestTimeout, fmt.Sprintf("nothing came for %s, or the file took longer than %s", a.bodies.Time, body.UploadTime))
	case errors.Is(err, io.ErrUnexpectedEOF), strings.HasPrefix(err.Error(), "multipart:"), strings.HasPrefix(err.Error(), "malformed MIME"):
		return problem.New(http.StatusBadRequest, "the form could not be read to its end: it is cut off, or not in the form of multipart/form-data")
	}
	return err
}

type listFilesInput struct {
	Run   string `query:"run" doc:"Files that this run left behind"`
	After string `query:"after" doc:"The next of the page before"`
	Limit int    `query:"limit" default:"50" minimum:"1" maximum:"500"`
}

type fileList struct {
	Body struct {
		Items []work.File `json:"items" nullable:"false"`
		Next  *uuid.UUID  `json:"next" doc:"Give it as after to get the next page; null on the last"`
	} `nameHint:"FileList"`
}

func (a *API) listFiles(ctx context.Context, in *listFilesInput) (*fileList, error) {
	f := store.FileFilter{Tenant: work.DefaultTenant, Limit: in.Limit}
	var err error
	if f.After, err = query.After(in.After); err != nil {
		return nil, err
	}
	if in.Run != "" {
		if f.Run, err = uuid.Parse(in.Run); err != nil {
			return nil, problem.Parameter("run", "must be a run's id")
		}
	}
	files, next, err := a.Store.Files.List(ctx, f)
	if err != nil {
		return nil, err
	}
	var list fileList
	list.Body.Items, list.Body.Next = append([]work.File{}, files...), next
	return &list, nil
}

type fileView struct{ Body work.File }

func (a *API) getFile(ctx context.Context, in *query.ByID) (*fileView, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	f, err := a.Store.Files.Get(ctx, work.DefaultTenant, id)
	return &fileView{f}, err
}

// getContent sends the bytes of a file, or the ranges of it that were asked
// for. A browser saves them and never shows them as a page of this server.
func (a *API) getContent(ctx context.Context, in *query.ByID) (*huma.StreamResponse, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	f, err := a.Store.Files.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	content, err := a.Files.Open(ctx, f.ID)
	if errors.Is(err, blob.ErrMissing) {
		a.Log.Error("a file's bytes are not where they should be: do all parts use the same file store?",
			"file", f.ID, "store", a.Files.Name(), "err", err)
		return nil, problem.New(http.StatusServiceUnavailable,
			"the file's bytes are not in this server's file store; give API and worker processes the same PIECEWORK_FILES")
	}
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer func() { _ = content.Close() }()
		c := humaecho.Unwrap(hc)
		h := c.Response().Header()
		h.Set("Content-Type", servedType(f.MediaType))
		h.Set("Content-Disposition", disposition(filepath.Base(f.Name)))
		h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
		h.Set("ETag", `"`+f.SHA256+`"`)
		h.Set("Cache-Control", "private, no-cache")
		w := patientWriter{c.Response(), a.bodies.Time}
		http.ServeContent(w, c.Request(), "", f.CreatedAt, content)
	}}, nil
}

// patientWriter writes for as long as the reader takes something.
type patientWriter struct {
	*echo.Response
	idle time.Duration
}

func (w patientWriter) Write(p []byte) (int, error) {
	_ = http.NewResponseController(w.Response).SetWriteDeadline(time.Now().Add(w.idle))
	return w.Response.Write(p)
}

// servedType keeps from a browser what it would run.
func servedType(kind string) string {
	base, _, _ := mime.ParseMediaType(kind)
	for _, active := range []string{"html", "xml", "svg", "javascript", "ecmascript"} {
		if strings.Contains(base, active) {
			return "application/octet-stream"
		}
	}
	return kind
}

// disposition names a download, once in ASCII for old programs and once in
// full (RFC 6266).
func disposition(name string) string {
	plain := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`"\%`, r) {
			return '_'
		}
		return r
	}, name)
	header := `attachment; filename="` + plain + `"`
	if plain != name {
		header += "; filename*=UTF-8''" + percentEncoded(name)
	}
	return header
}

func percentEncoded(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		if b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || strings.IndexByte("-._~!#$&+^`|", b) >= 0 {
			out.WriteByte(b)
			continue
		}
		fmt.Fprintf(&out, "%%%02X", b)
	}
	return out.String()
}

func (a *API) deleteFile(ctx context.Context, in *query.ByID) (*struct{}, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := a.Store.Files.Delete(ctx, work.DefaultTenant, id); err != nil {
		return nil, err
	}
	a.RemoveBlob(ctx, id)
	return &struct{}{}, nil
}
