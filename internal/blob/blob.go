// Package blob keeps the bytes of files: in a local directory, in S3 or in
// Google Cloud Storage. A blob is written once under an id and never changed.
// What a file is called and whom it belongs to is the ledger's to know.
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/gcerrors"

	"piecework/internal/work"
)

// What can be wrong beside the store being away, which is *work.Unavailable.
var (
	ErrTooLarge = errors.New("larger than allowed")
	ErrFull     = errors.New("the file store is full")
	ErrMissing  = errors.New("there is no such blob in the file store")
)

const (
	// partBytes is what one write to S3 or GCS holds in memory, times writers.
	partBytes = 8 << 20
	writers   = 2
	// answerTime is how long a store may take to begin an answer.
	answerTime = 30 * time.Second
	// stuckTime is how long nothing may move while a blob is written. Its source
	// may pause for a minute.
	stuckTime = 3 * time.Minute
)

// Store is a place for blobs.
type Store struct {
	bucket *blob.Bucket
	name   string // for people, without parameters
	dir    string // of a local store
}

// Open opens the store at address: file:///DIR, s3://BUCKET?region=… or
// gs://BUCKET, as gocloud.dev has them. A local directory is made if need be.
// S3 and GCS take their credentials from where their own programs do; a program
// that wants them imports gocloud.dev's drivers, which are large.
func Open(ctx context.Context, address string) (*Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("it is no address; write file:///DIR, s3://BUCKET?region=… or gs://BUCKET")
	}
	s := &Store{name: u.Scheme + "://" + u.Host + u.Path}
	switch u.Scheme {
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) || u.RawQuery != "" {
			return nil, fmt.Errorf("%s: write a local store as file:///DIR, an absolute path without parameters", s.name)
		}
		s.dir = filepath.Clean(u.Path)
		s.bucket, err = openDir(s.dir)
	case "s3", "gs":
		s.bucket, err = openBucket(ctx, *u)
	default:
		return nil, fmt.Errorf("%q is no kind of file store; there are file:///DIR, s3://BUCKET?region=… and gs://BUCKET", u.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", s.name, err)
	}
	return s, nil
}

// openBucket opens a bucket of S3 or GCS. Objects of others have no checksum that
// S3's client knows, of which it would complain on stderr for each; what we have
// stored ourselves is compared with its SHA-256 where it is used.
func openBucket(ctx context.Context, u url.URL) (*blob.Bucket, error) {
	const validation = "response_checksum_validation"
	if q := u.Query(); u.Scheme == "s3" && !q.Has(validation) {
		q.Set(validation, "when_required")
		u.RawQuery = q.Encode()
	}
	return blob.OpenBucket(ctx, u.String())
}

// Local is the address of the store in a directory.
func Local(dir string) string { return (&url.URL{Scheme: "file", Path: dir}).String() }

// openDir makes the directory for its owner only: files are nobody else's
// business. Temporary files stay in it, so that a rename never crosses disks.
func openDir(dir string) (*blob.Bucket, error) {
	return fileblob.OpenBucket(dir, &fileblob.Options{
		CreateDir: true, DirFileMode: 0o700, NoTempDir: true, Metadata: fileblob.MetadataDontWrite,
	})
}

// Name is the store's address without its parameters.
func (s *Store) Name() string { return s.name }

// Close lets go of the store.
func (s *Store) Close() error { return s.bucket.Close() }

// key spreads blobs over directories. An id ends in chance, not in time.
func key(id uuid.UUID) string {
	text := id.String()
	return text[len(text)-2:] + "/" + text
}

// Stored is what is known of a blob that was written.
type Stored struct {
	Size   int64
	SHA256 string // hex
}

// Put writes all of r, which may hold at most limit bytes, and returns when it
// is safe. When it fails nothing is left behind that Delete would not remove.
// An error of r's own is returned as it is.
func (s *Store) Put(ctx context.Context, id uuid.UUID, r io.Reader, limit int64) (Stored, error) {
	ctx, abort := context.WithCancel(ctx)
	defer abort()
	var local *os.File
	w, err := s.bucket.NewWriter(ctx, key(id), &blob.WriterOptions{
		ContentType: "application/octet-stream", BufferSize: partBytes, MaxConcurrency: writers,
		BeforeWrite: func(as func(any) bool) error {
			if s.dir != "" {
				as(&local)
			}
			return nil
		},
	})
	if err != nil {
		return Stored{}, s.explain(err)
	}
	// A store that says nothing, or a caller that sends nothing, ends it.
	stuck := time.AfterFunc(stuckTime, abort)
	defer stuck.Stop()
	sum := sha256.New()
	source := &source{r: r, left: limit, moved: func() { stuck.Reset(stuckTime) }}
	size, err := io.Copy(io.MultiWriter(w, sum), source)
	if err == nil && local != nil {
		err = local.Sync()
	}
	if err != nil {
		abort() // else Close would keep what was written so far
	}
	closed := w.Close()
	switch {
	case source.err != nil:
		return Stored{}, source.err
	case err != nil:
		return Stored{}, s.explain(err)
	case closed != nil:
		return Stored{}, s.explain(closed)
	}
	if s.dir != "" {
		if err := syncDir(filepath.Join(s.dir, filepath.Dir(key(id)))); err != nil {
			return Stored{}, s.explain(err)
		}
	}
	return Stored{Size: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// syncDir makes a new name in a directory outlive a loss of power.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// source counts what is read and remembers its own failure, which is not the
// store's.
type source struct {
	r    io.Reader
	left int64
	err  error

	moved func() // is called at each read
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.moved()
	if s.left -= int64(n); s.left < 0 {
		err = ErrTooLarge
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// Reader reads a blob; it can seek.
type Reader interface {
	io.ReadSeekCloser
	Size() int64
}

// Open reads a blob from its start. The error is ErrMissing when the store
// does not have it.
func (s *Store) Open(ctx context.Context, id uuid.UUID) (Reader, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(answerTime, cancel)
	r, err := s.bucket.NewReader(ctx, key(id), nil)
	if !late.Stop() && err == nil {
		_ = r.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		if gcerrors.Code(err) == gcerrors.NotFound { // a bucket that does not exist looks the same
			return nil, fmt.Errorf("%w %s", ErrMissing, s.name)
		}
		return nil, s.explain(err)
	}
	return &reader{r, s, cancel}, nil
}

type reader struct {
	*blob.Reader
	store  *Store
	cancel context.CancelFunc
}

func (r *reader) Read(p []byte) (int, error) {
	late := time.AfterFunc(answerTime, r.cancel)
	defer late.Stop()
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader's contract
		err = r.store.explain(err)
	}
	return n, err
}

// WriteTo hides the one of gocloud.dev, which cannot go on after a seek.
func (r *reader) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{r})
}

func (r *reader) Close() error {
	defer r.cancel()
	return r.Reader.Close()
}

// Delete removes a blob and what an interrupted Put may have left of it. That
// there is none is no error.
func (s *Store) Delete(ctx context.Context, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if s.dir != "" {
		left, err := filepath.Glob(filepath.Join(escapeGlob(s.dir), key(id)+".*.tmp"))
		if err != nil {
			return fmt.Errorf("look for remains of blob %s: %w", id, err)
		}
		for _, name := range left {
			if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
				return s.explain(err)
			}
		}
	}
	if err := s.bucket.Delete(ctx, key(id)); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return s.explain(err)
	}
	return nil
}

func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// Check writes a blob, reads it back and removes it.
func (s *Store) Check(ctx context.Context) error {
	id, text := uuid.Must(uuid.NewV7()), "piecework looks whether it can write here"
	if _, err := s.Put(ctx, id, strings.NewReader(text), int64(len(text))); err != nil {
		return err
	}
	r, err := s.Open(ctx, id)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	if found, err := io.ReadAll(r); err != nil || string(found) != text {
		return fmt.Errorf("what was written to %s does not come back: %w", s.name, err)
	}
	return s.Delete(ctx, id)
}

// explain puts an error of the store into the house's words.
func (s *Store) explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %s has no room left", ErrFull, s.name)
	}
	return &work.Unavailable{What: "the file store " + s.name, RetryAfter: 5 * time.Second, Err: err}
}
