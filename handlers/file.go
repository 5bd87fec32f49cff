package handlers

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/roots"
	"piecework/internal/work"
	"piecework/store"
)

// files finds what a unit names, and brings what was uploaded into dir.
func (w *Worker) files(ctx context.Context, c *store.Claimed, dir string) ([]backend.File, *work.Failure) {
	uploads, err := w.uploads(ctx, c)
	if err != nil {
		return nil, work.Fail(work.ClassInfra, "look up the unit's files: "+err.Error())
	}
	var files []backend.File
	taken := map[string]bool{}
	for _, ref := range c.Attachments() {
		var file backend.File
		var failure *work.Failure
		if id, ok := work.UploadedFile(ref); ok {
			file, failure = w.fetch(ctx, id, uploads, dir, taken)
		} else {
			file, failure = w.inRoot(ref, taken)
		}
		if failure != nil {
			closeFiles(files)
			return nil, failure
		}
		files = append(files, file)
	}
	return files, nil
}

// closeFiles closes what was opened for a run.
func closeFiles(files []backend.File) {
	for _, f := range files {
		if f.Opened != nil {
			_ = f.Opened.Close()
		}
	}
}

func (w *Worker) uploads(ctx context.Context, c *store.Claimed) (files map[uuid.UUID]work.File, err error) {
	ids := c.Uploads()
	if len(ids) == 0 {
		return nil, nil
	}
	err = w.untilAnswered(ctx, func() (err error) {
		files, err = w.Store.Files.ByID(ctx, c.Tenant, ids)
		return err
	})
	return files, err
}

func (w *Worker) inRoot(ref string, taken map[string]bool) (file backend.File, failure *work.Failure) {
	opened, path, err := w.Roots.Open(ref)
	if err != nil {
		return file, work.Fail(work.ClassInvalidRequest, fmt.Sprintf("file %q: %v", ref, err))
	}
	info, err := opened.Stat()
	if err != nil {
		_ = opened.Close()
		return file, work.Fail(work.ClassInvalidRequest, fmt.Sprintf("file %q: %v", ref, reason(err)))
	}
	if wrong := w.FilePolicy.Refuses(path, info.Size()); wrong != "" {
		_ = opened.Close()
		return file, work.Fail(work.ClassInvalidRequest, fmt.Sprintf("file %q: %s", ref, wrong))
	}
	return backend.File{
		Name: unique(filepath.Base(path), taken), Path: path, Opened: opened, Size: info.Size(), MediaType: mime.TypeByExtension(filepath.Ext(path)),
	}, nil
}

// unique is a name that no other file of the unit has.
func unique(name string, taken map[string]bool) string {
	ext := filepath.Ext(name)
	stem, free := strings.TrimSuffix(name, ext), name
	for n := 2; taken[free]; n++ {
		free = fmt.Sprintf("%s-%d%s", stem, n, ext)
	}
	taken[free] = true
	return free
}

// safeName is an uploaded file's name as a name on disk: no directory, no
// option of a command, nothing hidden, and room for a number.
func safeName(name string) string {
	const most = 200
	name = filepath.Base(strings.ReplaceAll(work.Clean(name), `\`, "/"))
	if strings.HasPrefix(name, "-") || strings.HasPrefix(name, ".") || name == "/" {
		name = "_" + strings.Trim(name, "/")
	}
	if ext := filepath.Ext(name); len(name) > most && len(ext) < 20 {
		stem, _ := work.Cut(name, most-len(ext))
		return stem + ext
	}
	name, _ = work.Cut(name, most)
	return name
}

// fetch brings an uploaded file into dir and looks that it is what was
// uploaded.
func (w *Worker) fetch(ctx context.Context, id uuid.UUID, uploads map[uuid.UUID]work.File, dir string, taken map[string]bool) (file backend.File, failure *work.Failure) {
	f, ok := uploads[id]
	if !ok {
		return file, work.Fail(work.ClassInvalidRequest, fmt.Sprintf("the uploaded file %s was deleted; upload it again and submit a new unit", id))
	}
	name := unique(safeName(f.Name), taken)
	if err := w.bring(ctx, f, dir, name); err != nil {
		reason := err.Error()
		if errors.Is(err, blob.ErrMissing) {
			reason += "; give API and worker processes the same PIECEWORK_FILES"
		}
		return file, work.Fail(work.ClassInfra, fmt.Sprintf("the uploaded file %q (%s) could not be brought to this worker process: %s", f.Name, id, reason))
	}
	path := filepath.Join(dir, name)
	opened, err := roots.OpenRegular(path)
	if err != nil {
		return file, work.Fail(work.ClassInfra, fmt.Sprintf("the uploaded file %q (%s) cannot be opened here: %v", f.Name, id, reason(err)))
	}
	return backend.File{Name: name, Path: path, Opened: opened, Size: f.Size, MediaType: f.MediaType}, nil
}

func (w *Worker) bring(ctx context.Context, f work.File, dir, name string) (err error) {
	from, err := w.Files.Open(ctx, f.ID)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := roots.OpenOwn(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	_ = root.Remove(name) // an earlier run that died may have left it
	to, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(to, sum), from)
	if err = errors.Join(err, to.Close()); err != nil {
		return err
	}
	if found := hex.EncodeToString(sum.Sum(nil)); found != f.SHA256 {
		return fmt.Errorf("what %s holds is not what was uploaded: SHA-256 %s instead of %s", w.Files.Name(), found, f.SHA256)
	}
	return nil
}

// Bounds of what a run may leave behind. What goes beyond is listed with the
// reason, and not stored.
const (
	maxOutputFiles = 200  // stored
	maxListed      = 1000 // listed by name; the rest is counted
	maxOutputs     = 10   // times the largest file: stored in all

	// noteTime is how long to wait for the ledger, without which nothing can
	// be stored: a finished run must soon be where it is safe.
	noteTime = 5 * time.Second
)

// notOutput are directories that tools fill for themselves.
var notOutput = []string{".git", "node_modules", "__pycache__", ".venv", ".cache"}

// stamp tells whether a file has changed.
type stamp struct {
	size int64
	at   time.Time
}

// survey notes every file in a run's own directory. Symbolic links are not
// followed: neither those in it nor the directory itself.
func survey(dir string) (map[string]stamp, error) {
	if dir == "" {
		return nil, nil
	}
	root, err := openOwn(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found := map[string]stamp{}
	err = fs.WalkDir(roots.FS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // what cannot be read is not listed; the run's result does not hang on it
		case d.IsDir() && slices.Contains(notOutput, d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		if info, err := d.Info(); err == nil {
			found[name] = stamp{info.Size(), info.ModTime()}
		}
		return nil
	})
	return found, err
}

// openOwn opens a directory through its parent, so that a link which leads
// away is refused.
func openOwn(dir string) (*os.Root, error) {
	parent, err := roots.OpenOwn(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return roots.Below(parent, filepath.Base(dir))
}

// outputFiles stores what the run made or changed in its own directory, and
// lists it. A run that is to go on elsewhere at once leaves it where it is.
func (w *Worker) outputFiles(ctx context.Context, p prepared, redact func(string) string) []work.OutputFile {
	after, err := survey(p.own)
	if err != nil {
		w.Log.Warn("a run's output files could not be listed", "unit", p.req.UnitID, "err", err)
		return nil
	}
	var files []work.OutputFile
	for name, now := range after {
		if was, ok := p.before[name]; !ok || was != now {
			files = append(files, work.OutputFile{Name: name, Size: now.size})
		}
	}
	slices.SortFunc(files, func(a, b work.OutputFile) int { return strings.Compare(a.Name, b.Name) })
	first := min(len(files), maxOutputFiles)
	return append(w.storeFirst(ctx, p, files[:first:first], redact), tooMany(files[first:])...)
}

// tooMany lists the files beyond those that a run may leave.
func tooMany(files []work.OutputFile) []work.OutputFile {
	listed := refuseAll(files[:min(len(files), maxListed-maxOutputFiles)], fmt.Sprintf("the run left more than %d files", maxOutputFiles))
	if more := len(files) - len(listed); more > 0 {
		listed = append(slices.Clip(listed), work.OutputFile{Name: fmt.Sprintf("… and %d more", more), Reason: listed[0].Reason})
	}
	return listed
}

func (w *Worker) storeFirst(ctx context.Context, p prepared, files []work.OutputFile, redact func(string) string) []work.OutputFile {
	if len(files) == 0 {
		return nil
	}
	root, err := openOwn(p.own)
	if err != nil {
		return refuseAll(files, "the run's directory cannot be opened any more")
	}
	defer root.Close()
	cause := context.Cause(ctx)
	if errors.Is(cause, work.ErrShutdown) || errors.Is(cause, work.ErrFenced) {
		return refuseAll(files, "the run was stopped before its end")
	}
	return w.storeAll(p, root, files, redact)
}

func refuseAll(files []work.OutputFile, reason string) []work.OutputFile {
	for i := range files {
		files[i].Reason = reason
	}
	return files
}

// storeAll stores files and gives each its id, or the reason why it has none.
// The rows are made with the run's end: until then the bytes are strays.
func (w *Worker) storeAll(p prepared, root *os.Root, files []work.OutputFile, redact func(string) string) []work.OutputFile {
	ctx, cancel := context.WithTimeout(context.Background(), w.keepTime)
	defer cancel()
	stopWaiting := w.lastly(cancel)
	defer stopWaiting()
	ids := make([]uuid.UUID, len(files))
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	note, cancelNote := context.WithTimeout(ctx, noteTime)
	defer cancelNote()
	if err := w.untilAnswered(note, func() error { return w.Store.Files.ExpectBlobs(note, ids) }); err != nil {
		return refuseAll(files, "the ledger could not be reached")
	}
	var spare []uuid.UUID
	room := maxOutputs * w.FilePolicy.MaxBytes
	for i := range files {
		f := &files[i]
		switch {
		case f.Size > w.FilePolicy.MaxBytes:
			f.Reason = fmt.Sprintf("larger than %d bytes", w.FilePolicy.MaxBytes)
		case f.Size > room:
			f.Reason = fmt.Sprintf("the run's files together are larger than %d bytes", maxOutputs*w.FilePolicy.MaxBytes)
		default:
			if err := w.untilAnswered(ctx, func() error { return w.storeOne(ctx, root, ids[i], f, redact) }); err != nil {
				w.Log.Warn("an output file was not stored", "unit", p.req.UnitID, "file", f.Name, "err", err)
				f.Reason = err.Error()
			}
		}
		if f.Reason != "" {
			spare = append(spare, ids[i])
			continue
		}
		f.ID = &ids[i]
		room -= f.Size
	}
	w.forget(ctx, spare)
	return files
}

// forget removes what may be there of files that were not stored. What it
// cannot remove stays a stray, which is swept.
func (w *Worker) forget(ctx context.Context, ids []uuid.UUID) {
	for _, id := range ids {
		if err := w.Files.Delete(ctx, id); err != nil {
			return
		}
	}
	if len(ids) > 0 {
		_ = w.Store.Files.BlobsGone(ctx, ids)
	}
}

var errSecret = errors.New("it holds a secret of this server, or what looks like a provider's key")

func (w *Worker) storeOne(ctx context.Context, root *os.Root, id uuid.UUID, f *work.OutputFile, redact func(string) string) error {
	file, err := openRegular(root, f.Name)
	if err != nil {
		return err
	}
	defer file.Close()
	secret, err := holdsSecret(file, redact)
	if err != nil {
		return fmt.Errorf("it cannot be read: %w", reason(err))
	}
	if secret {
		return errSecret
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("it cannot be read: %w", reason(err))
	}
	content := bufio.NewReader(file)
	head, err := content.Peek(blob.SniffBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("it cannot be read: %w", reason(err))
	}
	f.MediaType = blob.MediaType("", f.Name, head)
	stored, err := w.Files.Put(ctx, id, content, w.FilePolicy.MaxBytes)
	if err != nil {
		return err
	}
	f.Size, f.SHA256 = stored.Size, stored.SHA256
	return nil
}

// openRegular opens a file below root without waiting for the writer of a
// pipe.
func openRegular(root *os.Root, name string) (*os.File, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("it cannot be opened: %w", reason(err))
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		file.Close()
		return nil, errors.New("it is no regular file any more")
	}
	return file, nil
}

// reason is an error without the path, which the reader knows.
func reason(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// holdsSecret tells whether redact would take something out of what is read.
// It looks at pieces that overlap by more than a secret's length.
func holdsSecret(r io.Reader, redact func(string) string) (bool, error) {
	const overlap = 8 << 10
	piece, kept := make([]byte, 512<<10), 0
	for {
		n, err := io.ReadFull(r, piece[kept:])
		text := string(piece[:kept+n])
		if redact(text) != text {
			return true, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		kept = copy(piece, piece[len(piece)-overlap:])
	}
}
