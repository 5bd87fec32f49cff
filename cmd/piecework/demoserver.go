package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"piecework/internal/process"
	"piecework/internal/work"
)

const (
	startLimit = 5 * time.Minute // the first start may download Postgres
	keptLog    = 16 << 10
)

// Time for the server to let its runs go and to stop Postgres.
var demoStopPolicy = process.StopPolicy{Interrupt: 30 * time.Second, Terminate: 5 * time.Second}

// demoServer is a `piecework dev` of our own. It runs in a session of its own,
// so that Ctrl-C is ours to pass on.
type demoServer struct {
	process *process.Process
	ready   chan string
	log     *tail
	readers sync.WaitGroup
	once    sync.Once
	stopped error // what went wrong in stopping it
}

func (c *DemoCommand) start(app *App, dir string) (*demoServer, error) {
	program := c.program
	if program == nil {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		program = []string{self}
	}
	child, err := process.Start(process.Command{
		Path: program[0],
		Args: append(program[1:len(program):len(program)], "dev", "--listen", "127.0.0.1:0",
			"--data", filepath.Join(dir, "data"), "--roots", "docs="+filepath.Join(dir, "documents")),
		Env:  os.Environ(),
		Dir:  dir,
		Mark: process.NewMark("demo"),
	})
	if err != nil {
		return nil, err
	}
	s := &demoServer{process: child, ready: make(chan string, 1), log: &tail{}}
	if c.Verbose {
		s.log.also = app.Stderr
	}
	s.readers.Go(s.readStdout)
	s.readers.Go(func() { _, _ = io.Copy(s.log, child.Stderr) })
	return s, nil
}

// readStdout looks for the line that says where the server is; other lines are
// for the log.
func (s *demoServer) readStdout() {
	lines := bufio.NewReader(s.process.Stdout)
	for {
		line, err := lines.ReadString('\n')
		if address, found := strings.CutPrefix(strings.TrimSpace(line), "ready "); found && len(s.ready) == 0 {
			s.ready <- address
		} else {
			_, _ = io.WriteString(s.log, line)
		}
		if err != nil {
			return
		}
	}
}

// address waits until the server serves.
func (s *demoServer) address(ctx context.Context) (string, error) {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case address := <-s.ready:
		return address, nil
	case <-s.process.Exited():
		return "", errors.New("the server ended before it was ready")
	case <-limit.C:
		return "", fmt.Errorf("the server was not ready within %s", startLimit)
	case <-ctx.Done():
		return "", interrupted(context.Cause(ctx))
	}
}

// stay returns when the person has had enough, or with an error when the
// server ends by itself.
func (s *demoServer) stay(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.process.Exited():
		return errors.New("the server ended by itself")
	}
}

// stop ends the server and whatever it started. It may be called again.
func (s *demoServer) stop() error {
	s.once.Do(func() {
		s.process.Stop(demoStopPolicy)
		_, s.stopped = s.process.Close()
		s.readers.Wait()
		s.process.Release()
	})
	return s.stopped
}

// explain adds the end of the server's log to an error, unless somebody simply
// pressed Ctrl-C. It stops the server first: its last words may still be on
// their way.
func (s *demoServer) explain(err error) error {
	_ = s.stop() // whoever stops it for good reports what went wrong
	var exit *exitError
	if errors.As(err, &exit) && exit.code == exitInterrupted {
		return err
	}
	said := strings.TrimSpace(work.Visible(s.log.String()))
	if said == "" || s.log.also != nil {
		return err
	}
	return fmt.Errorf("%w\nthe server's last words:\n%s", err, said)
}

// tail keeps the end of what is written to it and may pass it on.
type tail struct {
	mu   sync.Mutex
	kept []byte
	also io.Writer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - keptLog; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	if t.also != nil {
		_, _ = t.also.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
