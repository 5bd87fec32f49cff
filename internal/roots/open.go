package roots

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// OpenRegular opens a file by a path that is not a caller's, such as one that
// this program has made in a directory where agents write: a link or a pipe that
// took its place is refused, and nothing waits for a writer.
func OpenRegular(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	return regular(file, err)
}

// regular closes what is no regular file.
func regular(file *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// OpenOwn opens a directory by a path that is not a caller's. A pipe that took
// its place is refused: os.OpenRoot would wait for its writer.
func OpenOwn(path string) (*os.Root, error) {
	if path == "" {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return os.OpenRoot(path + "/.")
}

// Below opens a directory below an open one, or that one again. Of a path's last
// part os.Root does not ask for a directory, and would wait for a pipe's writer.
func Below(dir *os.Root, inside string) (*os.Root, error) { return dir.OpenRoot(inside + "/.") }

// FS is the files of an open directory. Unlike those of os.Root.FS, none keeps
// its reader waiting when it becomes a pipe.
func FS(dir *os.Root) fs.FS { return tree{dir} }

type tree struct{ dir *os.Root }

func (t tree) Open(name string) (fs.File, error) {
	return t.dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

func (t tree) Stat(name string) (fs.FileInfo, error) { return t.dir.Stat(name) }

func (t tree) ReadDir(name string) ([]fs.DirEntry, error) {
	file, err := t.dir.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	entries, err := file.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, err
}

// WriteFile writes a regular file below an open directory, and nothing else.
func WriteFile(dir *os.Root, name string, data []byte) error {
	file, err := regular(dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|syscall.O_NONBLOCK, 0o600))
	if err != nil {
		return err
	}
	if err = file.Truncate(0); err == nil {
		_, err = file.Write(data)
	}
	return errors.Join(err, file.Close())
}

var (
	errNotRegular = errors.New("is no regular file")
	errNotDir     = errors.New("is no directory")
)

// openFile looks before it opens: opening a device can have effects, and
// opening a pipe waits for a writer unless it is told not to.
func openFile(dir *os.Root, inside string) (*os.File, error) {
	info, err := dir.Stat(inside)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return regular(dir.OpenFile(inside, os.O_RDONLY|syscall.O_NONBLOCK, 0))
}

func openDir(dir *os.Root, inside string) (fs.FileInfo, error) {
	info, err := dir.Stat(inside)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, errNotDir
	}
	return info, nil
}
