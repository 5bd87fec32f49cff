package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// Home is where one unit's agent keeps its things. Only tmp ends with the run.
type Home struct{ Dir, Tmp, Files string }

func newHome(p Program, req backend.Request) (Home, error) {
	if req.Home == "" {
		return Home{}, fmt.Errorf("%s needs a home directory for the unit", p.Name)
	}
	h := Home{Dir: req.Home, Tmp: filepath.Join(req.Home, "tmp"), Files: filepath.Join(req.Home, "files")}
	return h, MakeDir(h.Tmp)
}

func MakeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make an agent's directory: %w", err)
	}
	return nil
}

// WriteFile writes a file that the agent is to read.
func (h Home) WriteFile(name, text string) (string, error) {
	file, err := create(h.Dir, name)
	if err == nil {
		_, err = file.WriteString(text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return "", fmt.Errorf("write an agent's file: %w", err)
	}
	return filepath.Join(h.Dir, name), nil
}

// TOMLString quotes a text. TOML's escapes are JSON's, but for one character
// that TOML wants escaped.
func TOMLString(text string) string {
	quoted, err := json.Marshal(work.Clean(text))
	if err != nil {
		return strconv.Quote("")
	}
	return strings.ReplaceAll(string(quoted), "\x7f", `\u007f`)
}
