package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
)

// Held is the lock on a data directory.
type Held struct {
	lock *flock.Flock
}

// HeldError says who holds the lock on a data directory.
type HeldError struct {
	Dir  string
	Note string // the holder's process id and its own words
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s is in use by %s: stop that process or choose another data directory", e.Dir, e.Note)
}

// Lock takes dir for this process. While another process has it, the error is
// a *HeldError with that process's note.
func Lock(dir, note string) (*Held, error) {
	if err := os.MkdirAll(dir, newDirMode()); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	lock := flock.New(path)
	free, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !free {
		return nil, &HeldError{Dir: dir, Note: readNote(path)}
	}
	held := &Held{lock: lock}
	if err := held.note(note); err != nil {
		_ = held.Release()
		return nil, err
	}
	return held, nil
}

// note replaces what others are told about the holder.
func (h *Held) note(note string) error {
	file, err := os.OpenFile(h.lock.Path(), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("note holder: %w", err)
	}
	defer func() { _ = file.Close() }()
	text := fmt.Sprintf("pid %d: %s\n", os.Getpid(), note)
	// Written over, then cut: a reader never finds the file empty.
	if _, err := file.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("note holder: %w", err)
	}
	if err := file.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("note holder: %w", err)
	}
	return nil
}

// Release gives the directory back. The file stays: removing it would let two
// processes lock two files of the same name.
func (h *Held) Release() error {
	if err := h.lock.Unlock(); err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	return nil
}

func readNote(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "another process"
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line == "" {
		return "another process"
	}
	return line
}
