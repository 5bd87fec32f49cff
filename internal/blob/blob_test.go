package blob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/uuid"
	_ "gocloud.dev/blob/s3blob"

	"piecework/internal/work"
)

func local(t *testing.T) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a [dir] with %20 and ?")
	return open(t, Local(dir)), dir
}

func open(t *testing.T, address string) *Store {
	t.Helper()
	s, err := Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// left lists the files under dir.
func left(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func read(t *testing.T, s *Store, id uuid.UUID) []byte {
	t.Helper()
	r, err := s.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestStores(t *testing.T) {
	t.Parallel()
	dir, _ := local(t)
	for name, s := range map[string]*Store{"file": dir, "s3": open(t, startS3(t))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, text := range []string{"", "hello", strings.Repeat("x", 3<<20)} {
				id := uuid.Must(uuid.NewV7())
				stored, err := s.Put(t.Context(), id, iotest.HalfReader(strings.NewReader(text)), 3<<20)
				sum := sha256.Sum256([]byte(text))
				if err != nil || stored != (Stored{int64(len(text)), hex.EncodeToString(sum[:])}) {
					t.Fatalf("%d bytes: %+v, %v", len(text), stored, err)
				}
				if got := read(t, s, id); string(got) != text {
					t.Errorf("%d bytes came back as %d", len(text), len(got))
				}
				if len(text) > 4 {
					checkSeek(t, s, id, text)
				}
				for range 2 { // what is gone already is no error
					if err := s.Delete(t.Context(), id); err != nil {
						t.Error(err)
					}
				}
				if _, err := s.Open(t.Context(), id); !errors.Is(err, ErrMissing) {
					t.Errorf("after its end: %v", err)
				}
			}
			if err := s.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func checkSeek(t *testing.T, s *Store, id uuid.UUID, text string) {
	t.Helper()
	r, err := s.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := r.Seek(2, io.SeekStart); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	var rest bytes.Buffer
	if _, err := io.Copy(&rest, r); err != nil || rest.String() != text[2:] {
		t.Errorf("after a seek %d bytes, %v", rest.Len(), err)
	}
}

func TestFailedPutLeavesNothing(t *testing.T) {
	t.Parallel()
	s, dir := local(t)
	cut := errors.New("the caller hung up")
	for name, c := range map[string]struct {
		r    io.Reader
		want error
	}{
		"too large": {strings.NewReader("12345678901"), ErrTooLarge},
		"cut":       {io.MultiReader(strings.NewReader("123"), iotest.ErrReader(cut)), cut},
	} {
		if _, err := s.Put(t.Context(), uuid.Must(uuid.NewV7()), c.r, 10); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names := left(t, dir); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

// A process that is killed leaves its temporary file.
func TestDeleteRemovesTheRemainsOfAKilledWriter(t *testing.T) {
	t.Parallel()
	s, dir := local(t)
	id, other := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	for _, name := range []string{key(id) + ".18f0.tmp", key(id), key(other)} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if names := left(t, dir); len(names) != 1 || filepath.Base(names[0]) != other.String() {
		t.Errorf("left: %v", names)
	}
}

func TestAStoreThatIsAwaySaysSo(t *testing.T) {
	t.Parallel()
	s, dir := local(t)
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var away *work.Unavailable
	if _, err := s.Put(t.Context(), uuid.Must(uuid.NewV7()), strings.NewReader("x"), 10); !errors.As(err, &away) {
		t.Errorf("put: %v", err)
	}
	if err := s.Check(t.Context()); !errors.As(err, &away) {
		t.Errorf("check: %v", err)
	}
	gone := open(t, "s3://bucket?region=us-east-1&anonymous=true&use_path_style=true&endpoint=http://127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := gone.Put(ctx, uuid.Must(uuid.NewV7()), strings.NewReader("x"), 10); !errors.As(err, &away) {
		t.Errorf("put: %v", err)
	}
	if _, err := gone.Open(ctx, uuid.Must(uuid.NewV7())); !errors.As(err, &away) {
		t.Errorf("open: %v", err)
	}
}

func TestAFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	s, _ := local(t)
	err := s.explain(fmt.Errorf("blob: %w", &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}))
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "no room left") {
		t.Error(err)
	}
}

func TestAddressesThatAreNone(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"":                       "file:///DIR",
		"/srv/files":             "file:///DIR",
		"file://host/dir":        "file:///DIR",
		"file:///dir?metadata=x": "file:///DIR",
		"azblob://box":           "s3://BUCKET",
		"s3://b?nope=1":          "nope",
		"%zz":                    "no address",
	} {
		if _, err := Open(t.Context(), address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestMediaType(t *testing.T) {
	t.Parallel()
	png := "\x89PNG\r\n\x1a\n"
	for _, c := range []struct{ given, name, head, want string }{
		{"image/webp", "a.png", png, "image/webp"},
		{"application/octet-stream", "a.png", "", "image/png"},
		{"", "noname", png, "image/png"},
		{"text/plain; charset=latin1; x=y", "a", "", "text/plain; charset=latin1"},
		{"text/html\r\nX: y", "noname", "\x00\x01", "application/octet-stream"},
		{"", "noname", "", "text/plain; charset=utf-8"},
	} {
		if got := MediaType(c.given, c.name, []byte(c.head)); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// startS3 serves one bucket as S3 does, as far as small objects go, and
// returns its address.
func startS3(t *testing.T) string {
	t.Helper()
	var mu sync.Mutex
	objects := map[string][]byte{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("X-Amz-Checksum-Mode") != "" {
			t.Errorf("%s %s asks for a checksum that objects of others do not have", r.Method, r.URL)
		}
		body, found := objects[r.URL.Path]
		switch {
		case r.Method == http.MethodPut:
			body, err := io.ReadAll(r.Body)
			if err != nil || strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
				t.Errorf("put %s: %v, %v", r.URL, err, r.Header)
			}
			objects[r.URL.Path] = body
		case r.Method == http.MethodDelete:
			delete(objects, r.URL.Path)
			w.WriteHeader(http.StatusNoContent)
		case !found:
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")
		default:
			http.ServeContent(w, r, "", time.Now(), bytes.NewReader(body))
		}
	}))
	t.Cleanup(server.Close)
	return "s3://bucket?region=us-east-1&anonymous=true&use_path_style=true&request_checksum_calculation=when_required&endpoint=" + server.URL
}
