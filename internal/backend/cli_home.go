package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// home is where one unit's agent keeps its things. Only tmp ends with the run.
type home struct{ dir, tmp, files string }

func makeHome(p program, req Request) (home, error) {
	if req.Home == "" {
		return home{}, fmt.Errorf("%s needs a home directory for the unit", p.name)
	}
	h := home{dir: req.Home, tmp: filepath.Join(req.Home, "tmp"), files: filepath.Join(req.Home, "files")}
	return h, makeDir(h.tmp)
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make an agent's directory: %w", err)
	}
	return nil
}

// put writes a file that the agent is to read.
func (h home) put(name, text string) (string, error) {
	file, err := create(h.dir, name)
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return "", fmt.Errorf("write an agent's file: %w", err)
	}
	return filepath.Join(h.dir, name), nil
}
