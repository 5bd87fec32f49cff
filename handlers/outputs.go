package handlers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"piecework/internal/blob"
	"piecework/internal/roots"
	"piecework/internal/work"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// Bounds of what a run may leave behind. What goes beyond is listed with the
// reason, and not stored.
const (
	maxOutputFiles = 200  // stored
	maxListed      = 1000 // listed by name; the rest is counted
	maxOutputs     = 10   // times the largest file: stored in all

	// noteTime is how long to wait for Postgres, without which nothing can
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

// listFiles notes every file in a run's own directory. Symbolic links are not
// followed: neither those in it nor the directory itself.
func listFiles(dir string) (map[string]stamp, error) {
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

// outputs stores what the run made or changed in its own directory, and
// lists it. A run that is to go on elsewhere at once leaves it where it is.
func (f *files) outputs(ctx context.Context, p prepared, redact func(string) string) []work.OutputFile {
	after, err := listFiles(p.own)
	if err != nil {
		f.log.Warn("a run's output files could not be listed", "unit", p.req.UnitID, "err", err)
		return nil
	}
	var changed []work.OutputFile
	for name, now := range after {
		if was, ok := p.before[name]; !ok || was != now {
			changed = append(changed, work.OutputFile{Name: name, Size: now.size})
		}
	}
	slices.SortFunc(changed, func(a, b work.OutputFile) int { return strings.Compare(a.Name, b.Name) })
	first := min(len(changed), maxOutputFiles)
	return append(f.storeFirst(ctx, p, changed[:first:first], redact), tooMany(changed[first:])...)
}

// tooMany lists the files beyond those that a run may leave.
func tooMany(files []work.OutputFile) []work.OutputFile {
	listed := refuseAll(files[:min(len(files), maxListed-maxOutputFiles)], fmt.Sprintf("the run left more than %d files", maxOutputFiles))
	if more := len(files) - len(listed); more > 0 {
		listed = append(slices.Clip(listed), work.OutputFile{Name: fmt.Sprintf("… and %d more", more), Reason: listed[0].Reason})
	}
	return listed
}

func (f *files) storeFirst(ctx context.Context, p prepared, files []work.OutputFile, redact func(string) string) []work.OutputFile {
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
	return f.storeAll(p, root, files, redact)
}

func refuseAll(files []work.OutputFile, reason string) []work.OutputFile {
	for i := range files {
		files[i].Reason = reason
	}
	return files
}

// storeAll stores files and gives each its id, or the reason why it has none.
// The rows are made with the run's end: until then the bytes are strays.
func (f *files) storeAll(p prepared, root *os.Root, files []work.OutputFile, redact func(string) string) []work.OutputFile {
	ctx, cancel := context.WithTimeout(context.Background(), f.storeTime)
	defer cancel()
	defer f.drain.Bound(cancel)()
	ids := make([]uuid.UUID, len(files))
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	note, cancelNote := context.WithTimeout(ctx, noteTime)
	defer cancelNote()
	if err := untilAnswered(note, func() error { return f.store.Files.ExpectBlobs(note, ids) }); err != nil {
		return refuseAll(files, "the database could not be reached")
	}
	var spare []uuid.UUID
	room := maxOutputs * f.policy.MaxBytes
	for i := range files {
		file := &files[i]
		switch {
		case file.Size > f.policy.MaxBytes:
			file.Reason = fmt.Sprintf("larger than %d bytes", f.policy.MaxBytes)
		case file.Size > room:
			file.Reason = fmt.Sprintf("the run's files together are larger than %d bytes", maxOutputs*f.policy.MaxBytes)
		default:
			if err := untilAnswered(ctx, func() error { return f.storeOne(ctx, root, ids[i], file, redact) }); err != nil {
				f.log.Warn("an output file was not stored", "unit", p.req.UnitID, "file", file.Name, "err", err)
				file.Reason = err.Error()
			}
		}
		if file.Reason != "" {
			spare = append(spare, ids[i])
			continue
		}
		file.ID = &ids[i]
		room -= file.Size
	}
	f.forget(ctx, spare)
	return files
}

// forget removes what may be there of files that were not stored. What it
// cannot remove stays a stray, which is swept.
func (f *files) forget(ctx context.Context, ids []uuid.UUID) {
	for _, id := range ids {
		if err := f.blobs.Delete(ctx, id); err != nil {
			return
		}
	}
	if len(ids) > 0 {
		_ = f.store.Files.BlobsGone(ctx, ids)
	}
}

var errSecret = errors.New("it holds a secret of this server, or what looks like a provider's key")

func (f *files) storeOne(ctx context.Context, root *os.Root, id uuid.UUID, output *work.OutputFile, redact func(string) string) error {
	file, err := openRegular(root, output.Name)
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
	output.MediaType = blob.MediaType("", output.Name, head)
	stored, err := f.blobs.Put(ctx, id, content, f.policy.MaxBytes)
	if err != nil {
		return err
	}
	output.Size, output.SHA256 = stored.Size, stored.SHA256
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
