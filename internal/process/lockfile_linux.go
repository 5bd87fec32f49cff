package process

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// LockFile makes a file below dir that is locked until unlock is called, which
// removes it, or this process is dead. So those learn of its death who do not
// see its pid: the next process in the same container, and others that share
// the directory. It is nobody's on another machine, where a shared directory
// need not show who holds a lock.
func LockFile(dir, name string) (unlock func(), err error) {
	dir, err = ofThisBoot(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for lock files: %w", err)
	}
	file, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return nil, fmt.Errorf("make a lock file: %w", err)
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(dir, name)) // a file with this name is locked from the first
	}
	if err != nil {
		_, _ = os.Remove(file.Name()), file.Close()
		return nil, fmt.Errorf("lock a file: %w", err)
	}
	return func() {
		_, _ = os.Remove(filepath.Join(dir, name)), file.Close() // in this order: unlocked it would speak of a death
	}, nil
}

// Unlocked returns the names of the lock files below dir whose processes are
// dead, and a function that removes one.
func Unlocked(dir string) (names []string, remove func(name string)) {
	dir, err := ofThisBoot(dir)
	if err != nil {
		return nil, nil
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		file, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			names = append(names, e.Name())
		}
		_ = file.Close()
	}
	return names, func(name string) { _ = os.Remove(filepath.Join(dir, name)) }
}

// ofThisBoot is the directory for this machine, until it starts anew.
func ofThisBoot(dir string) (string, error) {
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, boot), nil
}
