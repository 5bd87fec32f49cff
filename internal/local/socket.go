package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The longest path a socket can have on Linux is 107 bytes, on macOS 103.
const maxSocketPath = 103

// socketDir makes a directory that only acct can enter, at dir if a socket
// called name fits there, else a short one that remove takes away again.
func socketDir(dir, name string, acct account) (path string, remove func(), err error) {
	path, remove = dir, func() {}
	if socketFits(filepath.Join(dir, name)) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", nil, fmt.Errorf("make socket directory: %w", err)
		}
	} else {
		if path, err = shortDir(name, acct); err != nil {
			return "", nil, err
		}
		remove = func() { _ = os.RemoveAll(path) }
	}
	if err := errors.Join(os.Chmod(path, 0o700), acct.own(path)); err != nil {
		remove()
		return "", nil, fmt.Errorf("close socket directory to others: %w", err)
	}
	return path, remove, nil
}

// shortDir makes a directory below the temporary directory, or below /tmp
// when that one is itself too deep or closed to acct.
func shortDir(name string, acct account) (string, error) {
	parent := os.TempDir()
	if !socketFits(filepath.Join(parent, "piecework-1234567890", name)) || acct.enter(parent) != nil {
		parent = "/tmp"
	}
	path, err := os.MkdirTemp(parent, "piecework-")
	if err != nil {
		return "", fmt.Errorf("make socket directory: %w", err)
	}
	return path, nil
}

// socketFits also refuses what Postgres and its clients read as a list.
func socketFits(path string) bool {
	return len(path) <= maxSocketPath && !strings.ContainsAny(path, `,"'\ `)
}
