// Package process runs a child and leaves nothing of it behind: not the
// shells its tools started in sessions of their own, not the daemons they
// forked, not the orphan that still holds its stdout.
//
//	process.go         Process: start, ask to stop, close
//	outlet.go          stdout and stderr, which always end
//	mark.go            the mark that a child's descendants inherit
//	tree.go            who belongs to a child, and the sweep
//	tree_linux.go      the process table by /proc, kills by pidfd
//	tree_other.go      the same, as well as ps allows
//	identity_linux.go  a name by which others can tell whether we still live
//	identity_other.go  no such name
package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Command says what to start.
type Command struct {
	Path  string
	Args  []string // without the program's own name
	Env   []string // all of the child's environment, save for its mark
	Dir   string
	Mark  string    // unique to this child, see NewMark
	Stdin io.Reader // nil: nothing to read
}

// Process is a running child. Its Stdout and Stderr must be read until they
// end, each by one goroutine. Stop is optional, Close is not; one goroutine
// calls them.
type Process struct {
	Stdout, Stderr *Outlet

	cmd     *exec.Cmd
	tree    *tree
	exited  chan struct{} // the child has ended, and is a zombie until released
	release chan struct{}
	reaped  chan struct{}
	stdin   *os.File
}

// Start starts a child in a session of its own. On Linux it dies when this
// process dies, however that happens.
func Start(c Command) (*Process, error) {
	p := &Process{
		Stdout: &Outlet{}, Stderr: &Outlet{},
		exited: make(chan struct{}), release: make(chan struct{}), reaped: make(chan struct{}),
	}
	p.cmd = &exec.Cmd{
		Path: c.Path, Args: append([]string{c.Path}, c.Args...), Dir: c.Dir,
		Env:         append(append([]string(nil), c.Env...), markName+"="+c.Mark),
		SysProcAttr: attributes(),
	}
	theirs, err := p.pipes(c.Stdin != nil)
	defer closeAll(theirs)
	if err != nil {
		closeAll(p.ours())
		return nil, err
	}
	started := make(chan error)
	go p.live(started)
	if err := <-started; err != nil {
		closeAll(p.ours())
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	p.tree = newTree(p.cmd.Process.Pid, c.Mark)
	if p.stdin != nil {
		go p.feed(c.Stdin)
	}
	return p, nil
}

// live is the child's whole life on one thread: the kernel kills the child
// when the thread that forked it ends.
func (p *Process) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	awaitExit(p.cmd.Process.Pid)
	close(p.exited)
	<-p.release // until then the zombie keeps its pid and session from being reused
	_ = p.cmd.Wait()
	close(p.reaped)
}

// pipes connects the child by pipes of our own, so that nothing but us
// decides when reading ends. It returns the child's ends.
func (p *Process) pipes(stdin bool) (theirs []*os.File, err error) {
	open := func(read, write **os.File) {
		if err != nil {
			return
		}
		if *read, *write, err = os.Pipe(); err != nil {
			err = fmt.Errorf("make a pipe for the child: %w", err)
		}
	}
	var in, out, errs *os.File
	open(&p.Stdout.file, &out)
	open(&p.Stderr.file, &errs)
	if stdin {
		open(&in, &p.stdin)
	} else if err == nil {
		in, err = os.Open(os.DevNull)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = in, out, errs
	return []*os.File{in, out, errs}, err
}

func (p *Process) ours() []*os.File { return []*os.File{p.stdin, p.Stdout.file, p.Stderr.file} }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// feed writes stdin and closes it. A child that does not care to read all of
// it has done nothing wrong.
func (p *Process) feed(from io.Reader) {
	_, _ = io.Copy(p.stdin, from)
	_ = p.stdin.Close()
}

// Exited is closed when the child itself has ended. What it started may live
// on until Close.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ladder is how long a child may take to follow each request to stop.
type Ladder struct {
	Interrupt time.Duration // after SIGINT
	Terminate time.Duration // after SIGTERM
}

// DefaultLadder leaves an agent the time to stop its tools and write down what
// it has done and spent.
var DefaultLadder = Ladder{Interrupt: 5 * time.Second, Terminate: 2 * time.Second}

// Stop asks the child's process group to end, by SIGINT, then SIGTERM, then
// SIGKILL, and returns when the child itself has ended.
func (p *Process) Stop(l Ladder) {
	for _, rung := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGINT, l.Interrupt}, {syscall.SIGTERM, l.Terminate}} {
		p.tree.look() // while the chain of parents is still whole
		p.signal(rung.signal)
		select {
		case <-p.exited:
			return
		case <-time.After(rung.wait):
		}
	}
	p.kill()
}

// kill ends the child's own process group by force. A child that the kernel
// cannot end (a dead network file system) is given up after a while.
func (p *Process) kill() {
	p.tree.look()
	p.signal(syscall.SIGKILL)
	select {
	case <-p.exited:
	case <-time.After(sweepLimit):
	}
}

// signal reaches the whole group. Until release, the group's number is the
// child's own.
func (p *Process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// sweepLimit is how long SIGKILL may take to end a process.
const sweepLimit = 10 * time.Second

// Close kills the child if it lives and everything that it left behind, and
// returns how the child ended. The error names what could not be killed. After
// Close, Stdout and Stderr end as soon as what is in them has been read.
func (p *Process) Close() (*os.ProcessState, error) {
	select {
	case <-p.exited:
	default:
		p.kill()
	}
	left := sweep(p.tree.look)
	close(p.release)
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	err := errors.Join(left, p.Stdout.end(), p.Stderr.end())
	select {
	case <-p.reaped:
	case <-p.unkillable():
		return nil, errors.Join(err, fmt.Errorf("process %d does not die", p.cmd.Process.Pid))
	}
	return p.cmd.ProcessState, err
}

// unkillable fires at once when the child has outlived SIGKILL, and never
// otherwise.
func (p *Process) unkillable() <-chan time.Time {
	select {
	case <-p.exited:
		return nil
	default:
		return time.After(0)
	}
}

// Release closes the reading ends; call it when reading is over.
func (p *Process) Release() { closeAll([]*os.File{p.Stdout.file, p.Stderr.file}) }
