// Package roots holds the named directories that units may use, and turns
// what a unit calls a file or a directory into a path inside one of them.
//
// A reference is NAME:path/inside, an absolute path inside a root, or, when
// there is exactly one root, a path relative to it. Symbolic links are
// followed as long as they are relative and stay inside their root; nothing
// outside is ever looked at, so an error cannot tell what exists there. Hard
// links and mounts are not told from other files: who can make them in a root
// is trusted.
package roots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"piecework/internal/work"
)

const (
	maxRef  = 4096 // bytes, what Linux takes as a path
	maxPart = 255  // bytes, what file systems take as a name
)

// Roots is a set of named directories; the zero value has none.
type Roots struct {
	list []root
}

type root struct {
	name string
	dir  string // absolute, as it was given
	real string // without symbolic links
}

// Parse reads "name=DIR,name=DIR". A DIR must exist; a relative one starts at
// the working directory.
func Parse(text string) (Roots, error) {
	var roots Roots
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, dir, ok := strings.Cut(entry, "=")
		if !ok {
			return Roots{}, fmt.Errorf("root %q: want name=DIR", entry)
		}
		var err error
		if roots, err = roots.With(name, dir); err != nil {
			return Roots{}, err
		}
	}
	return roots, nil
}

// With returns the roots and one more.
func (r Roots) With(name, dir string) (Roots, error) {
	if !isName(name) {
		return Roots{}, fmt.Errorf("root %q: a name has only a-z, 0-9, _ and -", name)
	}
	if _, ok := r.named(name); ok {
		return Roots{}, fmt.Errorf("root %q is named twice", name)
	}
	if dir == "" {
		return Roots{}, fmt.Errorf("root %q has no directory: want name=DIR", name)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Roots{}, fmt.Errorf("resolving root %q: %w", name, err)
	}
	resolved, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return Roots{}, fmt.Errorf("resolving root %q: %w", name, err)
	}
	info, err := os.Stat(resolved)
	if err != nil {
		return Roots{}, fmt.Errorf("resolving root %q: %w", name, err)
	}
	if !info.IsDir() {
		return Roots{}, fmt.Errorf("root %q: %s is no directory", name, abs)
	}
	return Roots{list: append(slices.Clip(r.list), root{name, abs, resolved})}, nil
}

// Names lists the roots in the order they were given.
func (r Roots) Names() []string {
	var names []string
	for _, root := range r.list {
		names = append(names, root.name)
	}
	return names
}

// Open opens the regular file that ref means, and returns its real path for
// people and agents. What is read must come from the open file: the path may
// lead elsewhere a moment later.
func (r Roots) Open(ref string) (file *os.File, path string, err error) {
	path, err = r.resolve(ref, func(dir *os.Root, inside string) (fs.FileInfo, error) {
		if file, err = openFile(dir, inside); err != nil {
			return nil, err
		}
		return file.Stat()
	})
	if err != nil {
		if file != nil {
			_ = file.Close()
		}
		return nil, "", err
	}
	return file, path, nil
}

// OpenDir opens the directory that ref means, and returns its real path for
// people. What is done in it must go through the open directory: the path may
// lead elsewhere a moment later.
func (r Roots) OpenDir(ref string) (dir *os.Root, path string, err error) {
	path, err = r.resolve(ref, func(root *os.Root, inside string) (fs.FileInfo, error) {
		if dir, err = Below(root, inside); err != nil {
			return nil, notDir(root, inside, err)
		}
		return dir.Stat(".")
	})
	if err != nil {
		if dir != nil {
			_ = dir.Close()
		}
		return nil, "", err
	}
	return dir, path, nil
}

// notDir says so when that is why a directory could not be opened.
func notDir(root *os.Root, inside string, err error) error {
	if info, statErr := root.Stat(inside); statErr == nil && !info.IsDir() {
		return errNotDir
	}
	return err
}

// File finds the regular file that ref means, opens it once to see that it
// can be read, and returns its real path. To read it, use Open.
func (r Roots) File(ref string) (path string, err error) {
	file, path, err := r.Open(ref)
	if err == nil {
		_ = file.Close()
	}
	return path, err
}

// Dir finds the directory that ref means and returns its real path. To work in
// it, use OpenDir.
func (r Roots) Dir(ref string) (path string, err error) {
	return r.resolve(ref, openDir)
}

type opener func(dir *os.Root, inside string) (fs.FileInfo, error)

func (r Roots) resolve(ref string, open opener) (string, error) {
	if len(r.list) == 0 {
		return "", errors.New("files and directories of the server are not allowed: set PIECEWORK_ROOTS=name=DIR to name the directories that units may use")
	}
	if err := check(ref); err != nil {
		return "", err
	}
	name, inside := cutName(ref)
	if err := checkParts(ref, inside); err != nil {
		return "", err
	}
	root, inside, err := r.find(ref, name, inside)
	if err != nil {
		return "", err
	}
	path, err := root.resolve(inside, open)
	if err != nil {
		return "", fmt.Errorf("%s %w", quote(ref), explain(err, root))
	}
	return path, nil
}

func check(ref string) error {
	switch {
	case ref == "":
		return errors.New("the path is empty")
	case len(ref) > maxRef:
		return fmt.Errorf("the path is longer than %d bytes", maxRef)
	case !utf8.ValidString(ref):
		return fmt.Errorf("%s is not UTF-8", quote(ref))
	case strings.ContainsFunc(ref, unicode.IsControl):
		return fmt.Errorf("%s has a control character, such as NUL or a newline", quote(ref))
	}
	return nil
}

func checkParts(ref, inside string) error {
	for part := range strings.SplitSeq(inside, "/") {
		if len(part) > maxPart {
			return fmt.Errorf("%s has a name longer than %d bytes", quote(ref), maxPart)
		}
		if part == ".." {
			return fmt.Errorf("%s has a .. in it: write the path without", quote(ref))
		}
	}
	return nil
}

// cutName splits a reference into a root's name, empty when it has none, and
// the rest.
func cutName(ref string) (name, rest string) {
	name, rest, ok := strings.Cut(ref, ":")
	if !ok || !isName(name) {
		return "", ref
	}
	return name, strings.TrimLeft(rest, "/")
}

// find returns the root of a reference and the path inside it.
func (r Roots) find(ref, name, rest string) (found root, inside string, err error) {
	switch {
	case name != "":
		found, ok := r.named(name)
		if !ok {
			return root{}, "", fmt.Errorf("%s: there is no root %q; there is %s", quote(ref), name, r.listed())
		}
		return found, rest, nil
	case filepath.IsAbs(ref):
		return r.findAbsolute(ref)
	case len(r.list) > 1:
		return root{}, "", fmt.Errorf("%s names no root: write name:path with one of %s", quote(ref), r.listed())
	}
	return r.list[0], ref, nil
}

// findAbsolute compares paths as text; the innermost root wins.
func (r Roots) findAbsolute(ref string) (root, string, error) {
	var best root
	length, inside := -1, ""
	for _, root := range r.list {
		for _, dir := range []string{root.dir, root.real} {
			rest, ok := within(dir, filepath.Clean(ref))
			if ok && len(dir) > length {
				best, inside, length = root, rest, len(dir)
			}
		}
	}
	if length < 0 {
		return root{}, "", fmt.Errorf("%s is outside the directories that units may use: %s", quote(ref), r.listed())
	}
	return best, inside, nil
}

func within(dir, path string) (inside string, ok bool) {
	if path == dir {
		return ".", true
	}
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

var errMoved = errors.New("was changed while it was being opened")

func (r root) resolve(inside string, open opener) (string, error) {
	dir, err := os.OpenRoot(r.dir)
	if err != nil {
		return "", fmt.Errorf("cannot be reached: opening root %s: %w", r.name, reason(err))
	}
	defer dir.Close()
	opened, err := open(dir, filepath.Clean(inside))
	if err != nil {
		return "", err
	}
	path, err := r.realPath(inside)
	if err != nil {
		return "", errMoved
	}
	found, err := os.Stat(path)
	if err != nil || !os.SameFile(opened, found) {
		return "", errMoved
	}
	return path, nil
}

func (r root) realPath(inside string) (string, error) {
	resolved, err := filepath.EvalSymlinks(r.dir)
	if err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(filepath.Join(resolved, inside))
	if err != nil {
		return "", err
	}
	if _, ok := within(resolved, path); !ok {
		return "", errMoved
	}
	return path, nil
}

// explain says in words what went wrong, without the server's own paths.
func explain(err error, r root) error {
	var pathError *fs.PathError
	var number syscall.Errno
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("does not exist in root %s", r.name)
	case errors.Is(err, fs.ErrPermission):
		return errors.New("may not be read by the worker process")
	case errors.Is(err, syscall.ELOOP):
		return errors.New("is a symbolic link that leads nowhere")
	case errors.As(err, &pathError) && !errors.As(err, &number):
		return fmt.Errorf("leads out of root %s by a symbolic link (an absolute link is never followed)", r.name)
	case errors.As(err, &pathError):
		return fmt.Errorf("cannot be opened: %w", pathError.Err)
	}
	return err
}

func reason(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func (r Roots) named(name string) (root, bool) {
	for _, root := range r.list {
		if root.name == name {
			return root, true
		}
	}
	return root{}, false
}

func (r Roots) listed() string { return strings.Join(r.Names(), ", ") }

func isName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
	})
}

func quote(ref string) string {
	const shown = 200
	short, cut := work.Cut(ref, shown)
	if cut {
		short += "…"
	}
	return strconv.Quote(short)
}
