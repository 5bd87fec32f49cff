package accept

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"piecework/internal/expr"
	"piecework/internal/process"
	"piecework/internal/roots"
	"piecework/internal/work"
)

// Result is what is checked, and what a command needs to run.
type Result struct {
	Output string
	Dir    string // the unit's directory; empty: it has none
	// OpenedDir is the directory that was looked at, which is what is used:
	// another may lie at Dir by now. When nil, Dir is opened.
	OpenedDir  *os.Root
	Env        []string
	Mark       string
	Supervisor process.Supervisor
	Lease      *process.Lease
}

// Verdict is what a check came to.
type Verdict struct {
	Unmet string // what is not as it should be; empty: accepted
	Said  string // the end of what the command wrote
	// Hopeless: to ask the model once more would not change the verdict.
	Hopeless bool
}

// Run checks a result. When ctx ends the verdict says nothing. The error is
// process.ErrLapsed, or tells that not all that the command has started is dead.
func (c *Check) Run(ctx context.Context, r Result) (Verdict, error) {
	for _, look := range []func(context.Context, Result) string{c.matches, c.holds, c.exists} {
		if unmet := look(ctx, r); unmet != "" {
			return Verdict{Unmet: unmet}, nil
		}
	}
	if !c.HasCommand() {
		return Verdict{}, nil
	}
	return c.runCommand(ctx, r)
}

func tooLong(output string) string {
	if len(output) <= maxLooked {
		return ""
	}
	return fmt.Sprintf("the output has %d bytes; a check looks at %d at most", len(output), maxLooked)
}

func (c *Check) matches(_ context.Context, r Result) string {
	if c.OutputMatches == nil {
		return ""
	}
	if long := tooLong(r.Output); long != "" {
		return long
	}
	if !c.OutputMatches.MatchString(r.Output) {
		return fmt.Sprintf("the output does not match the regular expression %s", c.OutputMatches)
	}
	return ""
}

func (c *Check) holds(ctx context.Context, r Result) string {
	if c.condition == nil {
		return ""
	}
	if long := tooLong(r.Output); long != "" {
		return long
	}
	value, _ := expr.Read([]byte(r.Output)) // nil: it is no JSON
	met, err := c.condition.Bool(ctx, expr.Vars{Output: r.Output, JSON: value})
	switch {
	case err != nil:
		return fmt.Sprintf("the expression %s could not be answered: %v", c.Expression, err)
	case !met:
		return fmt.Sprintf("the expression %s is false", c.Expression)
	}
	return ""
}

func (c *Check) exists(ctx context.Context, r Result) string {
	if c.FileExists == "" {
		return ""
	}
	found, err := find(ctx, r, c.FileExists)
	switch {
	case err != nil:
		return fmt.Sprintf("the file %s could not be looked for: %v", c.FileExists, err)
	case !found:
		return fmt.Sprintf("there is no file %s in the working directory", c.FileExists)
	}
	return ""
}

func (r Result) openDir() (*os.Root, error) {
	if r.OpenedDir != nil {
		return roots.Below(r.OpenedDir, ".")
	}
	return roots.OpenOwn(r.Dir)
}

// find looks for a path or a glob inside a directory; no link leads out of it.
func find(ctx context.Context, r Result, pattern string) (found bool, err error) {
	root, err := r.openDir()
	if err != nil {
		return false, errors.New("the directory is gone")
	}
	defer func() { _ = root.Close() }()
	if !strings.ContainsAny(pattern, `*?[\`) {
		_, err := root.Stat(pattern)
		return err == nil, nil
	}
	entries, depth := 0, strings.Count(pattern, "/")
	err = fs.WalkDir(roots.FS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if entries++; entries > maxEntries {
			return errTooMany
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // it is gone, or not for us
			return nil
		case name == ".":
			return nil
		}
		if found, _ = path.Match(pattern, name); found {
			return fs.SkipAll
		}
		if entry.IsDir() && strings.Count(name, "/") >= depth {
			return fs.SkipDir // nothing below can match
		}
		return nil
	})
	return found, err
}

// Words tell the model what is wrong.
func (v Verdict) Words() string {
	words := "Your result was not accepted: " + v.Unmet + "."
	if v.Said != "" {
		words += "\nIt wrote:\n" + v.Said
	}
	return words + "\n\nMend this. Then give your whole answer again."
}

// Failure is the failure of a unit whose result was not accepted.
func (v Verdict) Failure() *work.Failure {
	message := "the result was not accepted: " + v.Unmet
	if v.Said != "" {
		message += "\n" + v.Said
	}
	return work.Fail(work.ClassNotAccepted, message)
}
