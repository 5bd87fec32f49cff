package process

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A child starts in the directory that is open, whatever lies at its path.
func TestChildStartsInTheOpenDirectory(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		base := t.TempDir()
		dir, away := filepath.Join(base, "dir"), filepath.Join(base, "away")
		for _, d := range []string{dir, away} {
			if err := os.Mkdir(d, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(d, "word"), []byte(filepath.Base(d)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		opened, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		start := func() (string, error) {
			child, err := Start(Command{
				Path: "/bin/sh", Args: []string{"-c", "cat word"}, Env: testEnv(), Mark: NewMark("dir"), Dir: dir, OpenedDir: opened, Supervisor: k,
			})
			if err != nil {
				return "", err
			}
			defer child.Release()
			go func() { _, _ = io.Copy(io.Discard, child.Stderr) }()
			said := make(chan string)
			go func() { text, _ := io.ReadAll(child.Stdout); said <- string(text) }()
			<-child.Exited()
			_, err = child.Close()
			return <-said, err
		}
		first, err := start()
		if err != nil || first != "dir" {
			t.Fatalf("%q, %v", first, err)
		}
		if err := os.Rename(dir, filepath.Join(base, "old")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(away, dir); err != nil {
			t.Fatal(err)
		}
		second, err := start()
		if runtime.GOOS != "linux" {
			if err == nil || !strings.Contains(err.Error(), "replaced") {
				t.Errorf("%q, %v", second, err)
			}
		} else if err != nil || second != "dir" {
			t.Errorf("%q, %v", second, err)
		}
	})
}
