//go:build !linux

package process

import (
	"errors"
	"os"
)

// errReplaced: the directory that was looked at does not lie at its path.
var errReplaced = errors.New("it was replaced by another")

// pathOf sees that the open directory lies at its path just before the start.
func pathOf(dir *os.File, path string) (string, error) {
	was, err := dir.Stat()
	if err != nil {
		return "", err
	}
	now, err := os.Stat(path)
	if err != nil || !os.SameFile(was, now) {
		return "", errReplaced
	}
	return path, nil
}
