package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	oldChildWait = 20 * time.Second // for the child of a killed process to finish
	hardStopWait = 10 * time.Second // for a child to obey the second signal
	poll         = 20 * time.Millisecond
	maxLog       = 10 << 20 // a longer log is put aside at start
	logTail      = 2 << 10  // what an error quotes of it
)

// child is a process that ends when we do.
type child struct {
	name string
	cmd  *exec.Cmd
	log  string // path of its output
	from int64  // where this start's output begins in it
	done chan struct{}
	err  error // how it ended; read after done
}

// startChild starts cmd with its output appended to the file at log. Should we
// die first, it gets the signal last.
func startChild(name string, cmd *exec.Cmd, log string, last syscall.Signal) (*child, error) {
	file, err := openLog(log)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer func() { _ = file.Close() }()
	from, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	// A file, not a pipe: a pipe would break under a child that outlives us.
	cmd.Stdout, cmd.Stderr = file, file
	c := &child{name: name, cmd: cmd, log: log, from: from, done: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // Ctrl-C in the terminal is for us alone
	started := make(chan error, 1)
	go c.live(started, last)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// live is the child's life. It keeps to one thread, because Linux counts the
// end of the thread that started a child as the death of its parent.
func (c *child) live(started chan<- error, last syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	release, err := startBound(c.cmd, last)
	started <- err
	if err != nil {
		return
	}
	c.err = c.cmd.Wait()
	release()
	close(c.done)
}

// stop asks with the polite signal until ctx ends, then insists.
func (c *child) stop(ctx context.Context, polite, hard syscall.Signal) error {
	_ = c.cmd.Process.Signal(polite)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	if c.ended() != nil {
		return nil
	}
	c.kill(hard)
	return fmt.Errorf("stop %s: had to kill it: %w", c.name, context.Cause(ctx))
}

// kill ends the child at once and waits for its end.
func (c *child) kill(hard syscall.Signal) {
	_ = c.cmd.Process.Signal(hard)
	select {
	case <-c.done:
	case <-time.After(hardStopWait):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// ended says how the child ended and what it said last; nil while it lives.
func (c *child) ended() error {
	select {
	case <-c.done:
	default:
		return nil
	}
	reason := c.err
	if reason == nil {
		reason = errors.New("exit status 0")
	}
	return fmt.Errorf("%s ended: %w%s (log: %s)", c.name, reason, c.lastWords(), c.log)
}

func (c *child) lastWords() string {
	file, err := os.Open(c.log)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || info.Size() <= c.from {
		return ""
	}
	text, _ := io.ReadAll(io.NewSectionReader(file, max(c.from, info.Size()-logTail), logTail)) // what there is will do
	return ": " + strings.TrimSpace(strings.ToValidUTF8(string(text), ""))
}

// await repeats ready until it succeeds, the child ends or ctx ends.
func (c *child) await(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return c.ended()
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w%s", c.name, context.Cause(ctx), err, c.lastWords())
		case <-tick.C:
		}
	}
}

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// awaitOld waits until the process that pidFile names does not work in dir any
// more, and removes the file when another process has that id by now. It is most
// likely the child of a process that was killed, and about to end.
func awaitOld(ctx context.Context, wait time.Duration, name, pidFile, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		pid := readPid(pidFile)
		if pid == 0 || !exists(pid) {
			return nil
		}
		if !runsIn(pid, dir) {
			return dropStale(pidFile)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s already runs in %s as process %d: stop it (kill %d) and start again: %w", name, dir, pid, pid, ctx.Err())
		}
	}
}

// dropStale removes a file whose process id now belongs to a stranger: the
// server would take the stranger for itself and refuse to start.
func dropStale(pidFile string) error {
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale pid file: %w", err)
	}
	return nil
}

// readPid returns 0 when there is no pid to be read.
func readPid(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}

func exists(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func absDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("no data directory given")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find data directory: %w", err)
	}
	if err := os.MkdirAll(dir, newDirMode()); err != nil {
		return "", fmt.Errorf("make data directory: %w", err)
	}
	return dir, nil
}
