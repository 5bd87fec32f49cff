package chaos

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// disk is a small file system in memory, which can be filled.
type disk struct{ dir string }

// How large they are: a worker process keeps little, Postgres its log.
const (
	workerDisk   = "64m"
	postgresDisk = "512m"
)

// mount makes a file system of its own, or says why there is none.
func mount(t testing.TB, size string) (*disk, error) {
	dir, err := os.MkdirTemp("", "pw-disk-")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // Postgres runs as another user
		return nil, err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0711,size="+size); err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 2) }) // detached: somebody may still hold it
	return &disk{dir}, nil
}

func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill leaves not one byte.
func (d *disk) fill() error {
	file, err := os.Create(d.ballast())
	if err != nil {
		return err
	}
	defer file.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err = file.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) free() { _ = os.Remove(d.ballast()) }
