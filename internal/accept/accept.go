// Package accept checks whether what a run came to is what its unit asked for:
// by a command, by a file that must be there, by a pattern of the output, or by
// an expression over it.
//
//	accept.go   Check: what may be asked, as JSON
//	run.go      the check of one result
//	command.go  a command, run as agents are: in a process group of its own
package accept

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"piecework/internal/expr"
	"piecework/internal/work"
)

// Bounds of a check, in bytes unless another unit is named.
const (
	maxCheck    = 16 << 10
	maxPattern  = 500     // of output_matches
	maxPath     = 1000    // of file_exists
	maxLooked   = 1 << 20 // of an output that a pattern or an expression looks at
	maxEntries  = 100_000 // files and directories that a glob looks at
	maxShown    = 16 << 10
	defaultTime = work.Seconds(300) // of a command
	maxTime     = work.Seconds(3600)
)

// Check is what a result must meet. All parts that are given must hold; at least
// one is.
type Check struct {
	Command       Command
	Timeout       time.Duration // of the command
	FileExists    string        // a path, or a glob, inside the unit's directory
	OutputMatches *regexp.Regexp
	Expression    string
	condition     *expr.Program
}

// Command is a program and its arguments. Text is how the caller gave it when
// that was a text, for a shell.
type Command struct {
	Args []string
	Text string
}

// String is the command for people.
func (c Command) String() string {
	if c.Text != "" {
		return c.Text
	}
	return strings.Join(c.Args, " ")
}

// UnmarshalJSON takes a text, which a shell runs, or a list of texts.
func (c *Command) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &c.Text); err == nil {
		c.Args = []string{"/bin/sh", "-c", c.Text}
		return nil
	}
	c.Text = ""
	return json.Unmarshal(data, &c.Args)
}

func (c Command) valid() error {
	if len(c.Args) == 0 || c.Args[0] == "" || c.Text == "" && len(c.Args) == 3 && c.Args[0] == "/bin/sh" && c.Args[1] == "-c" &&
		strings.TrimSpace(c.Args[2]) == "" {
		return errors.New("is empty: give a text for a shell, or a list with a program and its arguments")
	}
	for _, arg := range c.Args {
		if strings.ContainsRune(arg, 0) {
			return errors.New("holds a NUL character")
		}
	}
	return nil
}

type body struct {
	Command       *Command      `json:"command"`
	Timeout       *work.Seconds `json:"timeout"`
	FileExists    *string       `json:"file_exists"`
	OutputMatches *string       `json:"output_matches"`
	Expression    *string       `json:"expression"`
}

var language = sync.OnceValue(expr.NewForOutput)

// Parse reads a check, or says what is wrong with it; the pointers of its errors
// begin with #/accept.
func Parse(raw json.RawMessage) (*Check, error) {
	if len(raw) > maxCheck {
		return nil, work.Invalidf("#/accept", "has more than %d bytes", maxCheck)
	}
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	var b body
	if err := strict.Decode(&b); err != nil {
		return nil, work.Invalidf("#/accept", "is an object with one or more of command (a text or a list of texts), file_exists, output_matches, expression (texts), and timeout: %v", err)
	}
	if b.Command == nil && b.FileExists == nil && b.OutputMatches == nil && b.Expression == nil {
		return nil, work.Invalidf("#/accept", "checks nothing: give command, file_exists, output_matches or expression")
	}
	c := &Check{Timeout: defaultTime.Duration()}
	for _, part := range []func(*body) error{c.command, c.file, c.pattern, c.expression} {
		if err := part(&b); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Check) command(b *body) error {
	if b.Timeout != nil {
		if b.Command == nil {
			return work.Invalidf("#/accept/timeout", "goes with command")
		}
		if !(*b.Timeout >= 0.001 && *b.Timeout <= maxTime) {
			return work.Invalidf("#/accept/timeout", "must lie between 0.001 and %v seconds", float64(maxTime))
		}
		c.Timeout = b.Timeout.Duration()
	}
	if b.Command == nil {
		return nil
	}
	if err := b.Command.valid(); err != nil {
		return work.Invalidf("#/accept/command", "%v", err)
	}
	c.Command = *b.Command
	return nil
}

func (c *Check) file(b *body) error {
	if b.FileExists == nil {
		return nil
	}
	name := *b.FileExists
	if _, err := path.Match(name, ""); err != nil || len(name) > maxPath || !fs.ValidPath(name) || name == "." {
		return work.Invalidf("#/accept/file_exists", "%.100q is no path inside the unit's directory: write one as report.md or out/*.json, with no / at its start or end and no ..", name)
	}
	c.FileExists = name
	return nil
}

func (c *Check) pattern(b *body) (err error) {
	if b.OutputMatches == nil {
		return nil
	}
	if len(*b.OutputMatches) > maxPattern || *b.OutputMatches == "" {
		return work.Invalidf("#/accept/output_matches", "a regular expression has 1 to %d bytes", maxPattern)
	}
	if c.OutputMatches, err = regexp.Compile(*b.OutputMatches); err != nil {
		return work.Invalidf("#/accept/output_matches", "is no RE2 regular expression: %v", err)
	}
	return nil
}

func (c *Check) expression(b *body) (err error) {
	if b.Expression == nil {
		return nil
	}
	if c.condition, err = language().CompileCondition(*b.Expression); err != nil {
		return work.Invalidf("#/accept/expression", "%v", err)
	}
	c.Expression = *b.Expression
	return nil
}

// NeedsDirectory tells whether the check looks at the unit's directory.
func (c *Check) NeedsDirectory() bool { return len(c.Command.Args) > 0 || c.FileExists != "" }

// HasCommand tells whether the check runs a command.
func (c *Check) HasCommand() bool { return len(c.Command.Args) > 0 }

var errTooMany = fmt.Errorf("more than %d files and directories", maxEntries)
