package roots_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"piecework/internal/roots"
)

// Whatever is opened, a pipe in its place is refused at once.
func TestPipesKeepNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	must(t, os.Symlink("pipe", filepath.Join(dir, "link")))
	set := parse(t, "r="+dir)
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	for name, open := range map[string]func() error{
		"Open":          func() error { _, _, err := set.Open("r:pipe"); return err },
		"OpenDir":       func() error { _, _, err := set.OpenDir("r:pipe"); return err },
		"OpenDir, link": func() error { _, _, err := set.OpenDir("r:link"); return err },
		"OpenRegular":   func() error { _, err := roots.OpenRegular(pipe); return err },
		"OpenOwn":       func() error { _, err := roots.OpenOwn(pipe); return err },
		"Below":         func() error { _, err := roots.Below(root, "pipe"); return err },
		"ReadDir":       func() error { _, err := fs.ReadDir(roots.FS(root), "pipe"); return err },
		"WriteFile":     func() error { return roots.WriteFile(root, "link", []byte("text")) },
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan error, 1)
			go func() { done <- open() }()
			select {
			case err := <-done:
				if err == nil {
					t.Error("it was opened")
				}
			case <-time.After(20 * time.Second):
				t.Error("it waits for the writer of the pipe")
			}
		})
	}
	if _, err := roots.OpenOwn(""); err == nil {
		t.Error("an empty path was opened")
	}
}

func TestFSOfADirectory(t *testing.T) {
	t.Parallel()
	dir, _ := tree(t)
	root, err := os.OpenRoot(filepath.Join(dir, "sub"))
	must(t, err)
	defer root.Close()
	var names []string
	must(t, fs.WalkDir(roots.FS(root), ".", func(name string, _ fs.DirEntry, err error) error {
		names = append(names, name)
		return err
	}))
	if got := strings.Join(names, " "); got != ". b c.txt deep deep/d up" {
		t.Errorf("walked %q", got)
	}
	must(t, roots.WriteFile(root, "deep/d", []byte("new")))
	must(t, roots.WriteFile(root, "made", []byte("new")))
	for _, name := range []string{"deep/d", "made"} {
		if text, err := fs.ReadFile(roots.FS(root), name); err != nil || string(text) != "new" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if _, err := fs.ReadFile(roots.FS(root), "up"); err == nil {
		t.Error("a link out of the directory was followed")
	}
}
