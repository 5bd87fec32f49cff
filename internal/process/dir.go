package process

import (
	"fmt"
	"os"
	"os/exec"
)

// EnterDir has cmd start in the directory opened, whatever lies at path by now;
// by its path if there is none. left is to be called once cmd has started.
func EnterDir(cmd *exec.Cmd, path string, opened *os.Root) (left func(), err error) {
	cmd.Dir = path
	if opened == nil {
		return func() {}, nil
	}
	dir, err := opened.Open(".")
	if err == nil {
		cmd.Dir, err = pathOf(dir, path)
	}
	if err != nil {
		_ = dir.Close()
		return nil, fmt.Errorf("enter the working directory: %w", err)
	}
	return func() { _ = dir.Close() }, nil
}
