package accept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"piecework/internal/process"
)

// runCommand runs the command in the unit's directory, the output on its
// standard input. Exit status 0 accepts. Nothing that it starts outlives it.
func (c *Check) runCommand(ctx context.Context, r Result) (Verdict, error) {
	program, err := lookUp(c.Command.Args[0], r)
	if err != nil {
		return Verdict{Unmet: err.Error(), Hopeless: true}, nil
	}
	child, err := process.Start(process.Command{
		Path: program, Args: c.Command.Args[1:], Env: r.Env, Dir: r.Dir, OpenedDir: r.OpenedDir, Mark: r.Mark,
		Stdin: strings.NewReader(r.Output), Supervisor: r.Supervisor, Lease: r.Lease,
	})
	switch {
	case errors.Is(err, process.ErrLapsed):
		return Verdict{}, err
	case err != nil:
		return Verdict{Unmet: fmt.Sprintf("the command %s could not be started: %v", c.Command, err), Hopeless: true}, nil
	}
	said := &end{limit: maxShown}
	var drained sync.WaitGroup
	drained.Go(func() { _, _ = io.Copy(said, child.Stdout) })
	drained.Go(func() { _, _ = io.Copy(said, child.Stderr) })
	timer := time.NewTimer(c.Timeout)
	defer timer.Stop()
	late := false
	select {
	case <-child.Exited():
	case <-ctx.Done():
	case <-timer.C:
		late = true
	}
	lapsed := child.Lapsed()
	state, swept := child.Close()
	drained.Wait()
	child.Release()
	if lapsed {
		return Verdict{}, errors.Join(process.ErrLapsed, swept)
	}
	if swept != nil {
		swept = fmt.Errorf("stop what the acceptance check started: %w", swept)
	}
	v := Verdict{Said: strings.TrimSpace(said.String())}
	switch {
	case late:
		v.Unmet = fmt.Sprintf("the command %s took longer than %v", c.Command, c.Timeout)
	case state == nil || !state.Success():
		v.Unmet = fmt.Sprintf("the command %s ended with %v", c.Command, state)
	}
	return v, swept
}

// lookUp finds a program on the PATH that the command gets. One below its
// directory is found by its start there.
func lookUp(name string, r Result) (string, error) {
	if strings.Contains(name, "/") && !filepath.IsAbs(name) {
		return name, nil
	}
	if filepath.IsAbs(name) {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("the command %s cannot be run here", name)
		}
		return path, nil
	}
	for _, variable := range r.Env {
		list, is := strings.CutPrefix(variable, "PATH=")
		if !is {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(path) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("the command %s is not on the PATH of the worker process", name)
}

// end keeps the end of what is written.
type end struct {
	limit int

	mu   sync.Mutex
	text []byte
	cut  bool
}

func (e *end) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(p)
	if over := len(p) - e.limit; over > 0 {
		p, e.cut = p[over:], true
	}
	e.text = append(e.text, p...)
	if over := len(e.text) - e.limit; over > 0 {
		e.text, e.cut = append(e.text[:0], e.text[over:]...), true
	}
	return n, nil
}

func (e *end) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := strings.ToValidUTF8(string(e.text), "�")
	if e.cut {
		text = "… " + text
	}
	return text
}
