package handlers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"mime"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/handlers/upkeep"
	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/roots"
	"piecework/internal/work"
	"piecework/store"
)

// files brings the files of units in, and those that their runs made out.
type files struct {
	store     *store.Store
	blobs     *blob.Store
	roots     roots.Roots
	policy    work.FilePolicy
	redact    func(string) string
	drain     *upkeep.Drain
	log       *slog.Logger
	storeTime time.Duration // for storing a run's output files
}

// inputs finds what a unit names, and brings what was uploaded into dir.
func (f *files) inputs(ctx context.Context, c *store.Claimed, dir string) ([]backend.File, *work.Failure) {
	uploads, err := f.uploads(ctx, c)
	if err != nil {
		return nil, work.Fail(work.ClassInfra, "look up the unit's files: "+err.Error())
	}
	var found []backend.File
	taken := map[string]bool{}
	for _, ref := range c.Attachments() {
		var file backend.File
		var failure *work.Failure
		if id, ok := work.UploadedFile(ref); ok {
			file, failure = f.fetch(ctx, id, uploads, dir, taken)
		} else {
			file, failure = f.inRoot(ref, taken)
		}
		if failure != nil {
			closeFiles(found)
			return nil, failure
		}
		found = append(found, file)
	}
	return found, nil
}

// closeFiles closes what was opened for a run.
func closeFiles(files []backend.File) {
	for _, f := range files {
		if f.Opened != nil {
			_ = f.Opened.Close()
		}
	}
}

func (f *files) uploads(ctx context.Context, c *store.Claimed) (files map[uuid.UUID]work.File, err error) {
	ids := c.Uploads()
	if len(ids) == 0 {
		return nil, nil
	}
	err = untilAnswered(ctx, func() (err error) {
		files, err = f.store.Files.ByID(ctx, c.Tenant, ids)
		return err
	})
	return files, err
}

func (f *files) inRoot(ref string, taken map[string]bool) (file backend.File, failure *work.Failure) {
	opened, path, err := f.roots.Open(ref)
	if err != nil {
		return file, work.Fail(work.ClassInvalidRequest, fmt.Sprintf("file %q: %v", ref, err))
	}
	info, err := opened.Stat()
	if err != nil {
		_ = opened.Close()
		return file, work.Fail(work.ClassInvalidRequest, fmt.Sprintf("file %q: %v", ref, reason(err)))
	}
	if wrong := f.policy.Refuses(path, info.Size()); wrong != "" {
		_ = opened.Close()
		return file, work.Fail(work.ClassInvalidRequest, fmt.Sprintf("file %q: %s", ref, wrong))
	}
	return backend.File{
		Name: unique(filepath.Base(path), taken), Path: path, Opened: opened,
		Size: info.Size(), MediaType: mime.TypeByExtension(filepath.Ext(path)),
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
func (f *files) fetch(
	ctx context.Context, id uuid.UUID, uploads map[uuid.UUID]work.File, dir string, taken map[string]bool,
) (file backend.File, failure *work.Failure) {
	upload, ok := uploads[id]
	if !ok {
		return file, work.Fail(work.ClassInvalidRequest,
			fmt.Sprintf("the uploaded file %s was deleted; upload it again and submit a new unit", id))
	}
	name := unique(safeName(upload.Name), taken)
	if err := f.bring(ctx, upload, dir, name); err != nil {
		reason := err.Error()
		if errors.Is(err, blob.ErrMissing) {
			reason += "; give API and worker processes the same PIECEWORK_FILES"
		}
		return file, work.Fail(work.ClassInfra,
			fmt.Sprintf("the uploaded file %q (%s) could not be brought to this worker process: %s", upload.Name, id, reason))
	}
	path := filepath.Join(dir, name)
	opened, err := roots.OpenRegular(path)
	if err != nil {
		return file, work.Fail(work.ClassInfra, fmt.Sprintf("the uploaded file %q (%s) cannot be opened here: %v", upload.Name, id, reason(err)))
	}
	return backend.File{Name: name, Path: path, Opened: opened, Size: upload.Size, MediaType: upload.MediaType}, nil
}

func (f *files) bring(ctx context.Context, upload work.File, dir, name string) (err error) {
	from, err := f.blobs.Open(ctx, upload.ID)
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
	if found := hex.EncodeToString(sum.Sum(nil)); found != upload.SHA256 {
		return fmt.Errorf("what %s holds is not what was uploaded: SHA-256 %s instead of %s", f.blobs.Name(), found, upload.SHA256)
	}
	return nil
}

// reason is an error without the path, which the reader knows.
func reason(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
