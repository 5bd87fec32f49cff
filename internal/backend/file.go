package backend

import (
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"unicode/utf8"

	"piecework/internal/roots"
	"piecework/internal/work"
)

// File is an attachment on this machine.
type File struct {
	Name      string // base name, unique within the request
	Path      string // absolute; where it was found
	MediaType string
	Size      int64
	// Opened is the file that was looked at, which is what is read: another may
	// lie at Path by now. It is closed by who opened it. When nil, Path is opened.
	Opened *os.File
}

// Open opens the file to be read from its beginning, Size bytes at most.
func (f File) Open() (io.ReadCloser, error) {
	if f.Opened != nil {
		return io.NopCloser(io.NewSectionReader(f.Opened, 0, f.Size)), nil
	}
	return roots.OpenRegular(f.Path)
}

// InPlace tells whether the file that was looked at still lies at its path.
func (f File) InPlace() bool {
	if f.Opened == nil {
		return true
	}
	was, err := f.Opened.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(f.Path)
	return err == nil && os.SameFile(was, now)
}

// Read reads the whole file.
func (f File) Read() ([]byte, error) {
	file, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(file)
}

// What goes to the model itself; what is larger is a file for its tools. The
// API takes 5 MB per image, in base64, and 32 MB per request.
const (
	MaxInlineText  = 256 << 10
	MaxInlineImage = 5 << 20 / 4 * 3
	MaxInline      = 20 << 20
)

// InlineImages are the types of images that models take.
var InlineImages = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// DetectType tells what a file is by its first bytes: an API refuses an image that
// is called by a wrong name.
func DetectType(f File) (string, error) {
	file, err := f.Open()
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	head := make([]byte, 512)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	return http.DetectContentType(head[:n]), nil
}

// AsText shows a text file to the model as it is, if data is one.
func AsText(file File, data []byte) (string, bool) {
	if !utf8.Valid(data) || strings.ContainsRune(string(data), 0) {
		return "", false
	}
	return fmt.Sprintf("<file name=\"%s\">\n%s\n</file>", html.EscapeString(file.Name), data), true
}

// FileFailure is the failure of a unit whose file cannot be read.
func FileFailure(file File, err error) *work.Failure {
	class := work.ClassInfra
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		class = work.ClassInvalidRequest
	}
	return work.Fail(class, fmt.Sprintf("read the attached file %q: %v", file.Name, err))
}
