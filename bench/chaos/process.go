package chaos

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is one process of Piecework, started again whenever it ends.
type server struct {
	name, command, binary, log string
	env                        []string
	book                       *book

	mu    sync.Mutex
	cmd   *exec.Cmd // nil while it is down
	ready string    // its URL
	pause time.Duration
	over  bool
	ended chan struct{} // closed when it is not started again
}

// restartPause is how soon a process is started again unless a fault says
// otherwise.
const restartPause = 300 * time.Millisecond

func (p *server) start() {
	p.ended = make(chan struct{})
	p.pause = restartPause
	go p.live()
}

// live keeps to one thread: Linux counts its end as the death of the parent,
// and a process must not outlive us.
func (p *server) live() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.ended)
	for !p.isOver() {
		if err := p.once(); err != nil {
			p.book.write(Event{Kind: KindProcess, Target: p.name, What: "not started", Error: err.Error()})
		}
		p.mu.Lock()
		p.cmd, p.ready = nil, ""
		pause := p.pause
		p.pause = restartPause
		p.mu.Unlock()
		for end := time.Now().Add(pause); time.Now().Before(end) && !p.isOver(); {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func (p *server) once() error {
	logs, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logs.Close()
	cmd := exec.Command(p.binary, p.command)
	cmd.Env, cmd.Stderr = p.env, logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return nil
	}
	err = cmd.Start()
	if err == nil {
		p.cmd = cmd
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	pid := cmd.Process.Pid
	p.book.write(Event{Kind: KindProcess, Target: p.name, PID: pid, What: "started"})
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
			p.mu.Lock()
			p.ready = url
			p.mu.Unlock()
		}
	}
	_ = cmd.Wait() // the exit code says it
	p.book.write(Event{Kind: KindProcess, Target: p.name, PID: pid, What: "ended", Code: cmd.ProcessState.ExitCode()})
	return nil
}

func (p *server) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// url is where the process listens; empty while it does not.
func (p *server) url() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

func (p *server) awaitReady(ctx context.Context, limit time.Duration) error {
	for end := time.Now().Add(limit); p.url() == ""; time.Sleep(20 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("%s is not ready; see %s", p.name, p.log)
		}
	}
	return nil
}

// signal sends s and returns the pid it went to, 0 when the process is down.
// After it has ended it stays down for pause.
func (p *server) signal(s syscall.Signal, pause time.Duration) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	p.pause = max(pause, restartPause)
	_ = p.cmd.Process.Signal(s) // it may have ended just now
	return p.cmd.Process.Pid
}

// pid is the process's, 0 while it is down.
func (p *server) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// quit asks the process to end and lets it stay so.
func (p *server) quit() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	if pid := p.signal(syscall.SIGTERM, 0); pid != 0 {
		p.book.write(Event{Kind: KindProcess, Target: p.name, PID: pid, What: "asked"})
	}
}

// awaitEnd kills a process that does not end by itself, and says so.
func (p *server) awaitEnd(limit time.Duration) {
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.book.write(Event{Kind: KindProcess, Target: p.name, What: "stuck", Seconds: limit.Seconds()})
		p.end()
	}
}

// end kills the process for good.
func (p *server) end() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.signal(syscall.SIGKILL, 0)
	<-p.ended
}
