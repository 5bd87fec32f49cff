package work

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// File is a file that was uploaded, or that a run left behind, and whose bytes
// are in the file store.
type File struct {
	ID        uuid.UUID  `json:"id" db:"id"`
	Tenant    string     `json:"-" db:"tenant"`
	RunID     *uuid.UUID `json:"run_id" db:"run_id"` // the run that left it; nil for an upload
	Name      string     `json:"filename" db:"filename"`
	Size      int64      `json:"bytes" db:"bytes"`
	MediaType string     `json:"media_type" db:"media_type"`
	SHA256    string     `json:"sha256" db:"sha256"` // hex
	CreatedAt time.Time  `json:"created_at" db:"created_at"`
	Purpose   string     `json:"purpose,omitempty" db:"purpose"`       // as /v1/files has it
	ExpiresAt *time.Time `json:"expires_at,omitempty" db:"expires_at"` // it is deleted then
}

// OutputFile is a file that a run left in its directory. One without an ID was
// not stored, and Reason says why.
type OutputFile struct {
	ID        *uuid.UUID `json:"id"`
	Name      string     `json:"name"` // path inside the run's directory
	Size      int64      `json:"size"` // bytes
	MediaType string     `json:"media_type,omitempty"`
	SHA256    string     `json:"sha256,omitempty"` // hex
	Reason    string     `json:"reason,omitempty"`
}

// FilePolicy limits the files of a unit, uploads and output files.
type FilePolicy struct {
	MaxFiles int      // of one unit
	MaxBytes int64    // of one file
	Suffixes []string // lower case, with the dot; empty: any
}

// DefaultFilePolicy is in force unless the server was told another.
func DefaultFilePolicy() FilePolicy { return FilePolicy{MaxFiles: 4, MaxBytes: 10 << 20} }

// Refuses says why a file may not be given to a unit, or nothing.
func (p FilePolicy) Refuses(name string, size int64) string {
	suffix := strings.ToLower(filepath.Ext(name))
	switch {
	case len(p.Suffixes) > 0 && !slices.Contains(p.Suffixes, suffix):
		return fmt.Sprintf("a name that ends in %q is not allowed here; allowed are %s", suffix, strings.Join(p.Suffixes, ", "))
	case size > p.MaxBytes:
		return fmt.Sprintf("has %d bytes; at most %d are allowed", size, p.MaxBytes)
	}
	return ""
}

// maxFileName is what file systems take, in bytes.
const maxFileName = 255

// FileName is the last part of what a caller calls a file, or what is wrong
// with it. The name is for people: it is never a path.
func FileName(given string) (name, wrong string) {
	name = path.Base(strings.ReplaceAll(given, `\`, "/"))
	switch {
	case given == "" || name == "." || name == ".." || name == "/":
		return "", "give the file a name"
	case !utf8.ValidString(name):
		return "", "the file's name is not UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		return "", "the file's name has a control character, such as NUL or a newline; take it out"
	case len(name) > maxFileName:
		return "", fmt.Sprintf("the file's name is longer than %d bytes", maxFileName)
	}
	return name, ""
}

// UploadedFile tells whether a unit's reference to a file is an id.
func UploadedFile(ref string) (uuid.UUID, bool) {
	id, err := uuid.Parse(ref)
	return id, err == nil && len(ref) == len(id.String())
}

// Refs are references to files: ids, name:path, or absolute paths.
type Refs []string

// Scan reads a column of JSON.
func (r *Refs) Scan(from any) error {
	text, ok := from.([]byte)
	if !ok {
		return fmt.Errorf("read references to files: %T is not JSON", from)
	}
	return json.Unmarshal(text, r)
}

// Attachments are the files that a unit names, in order: files, then the
// payload's file_path and file_paths. Fields of another shape belong to the
// prompt alone.
func (s *Spec) Attachments() []string {
	refs := slices.Clone([]string(s.Files))
	if !MayName(s.Payload, "file_path") {
		return refs
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(s.Payload, &fields) != nil {
		return refs
	}
	var one string
	if json.Unmarshal(fields["file_path"], &one) == nil && one != "" {
		refs = append(refs, one)
	}
	var many []string
	if json.Unmarshal(fields["file_paths"], &many) == nil {
		refs = append(refs, many...)
	}
	return refs
}

// MayName tells whether an object may have a field whose name begins so: plain
// letters and underscores. It looks for the letters alone, and for escapes that
// stand for such: most payloads need not be parsed then.
func MayName(object json.RawMessage, beginning string) bool {
	if bytes.Contains(object, []byte(beginning)) {
		return true
	}
	for rest := object; ; {
		at := bytes.Index(rest, []byte(`\u00`))
		if at < 0 || at+4 >= len(rest) {
			return false
		}
		if c := rest[at+4]; c >= '4' && c <= '7' {
			return true
		}
		rest = rest[at+4:]
	}
}

// Uploads are the ids among the attachments, each once.
func (s *Spec) Uploads() []uuid.UUID {
	var ids []uuid.UUID
	for _, ref := range s.Attachments() {
		if id, ok := UploadedFile(ref); ok && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
