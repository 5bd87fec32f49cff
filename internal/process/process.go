// Package process runs a child and leaves nothing of it behind: not the
// shells its tools started in sessions of their own, not the daemons they
// forked, not the orphan that still holds its stdout.
//
//	process.go            Process: start, ask to stop, close
//	dir.go                the directory that a child starts in
//	state.go              how a child ended
//	supervisor.go         Supervisor: how descendants are held together
//	supervisor_linux.go   the process that does it, by a pid namespace or as a subreaper
//	supervisor_other.go   no such process
//	lease.go              Lease: until when children may live, whatever becomes of us
//	lease_linux.go        a word of shared memory, and the clock that it is about
//	lease_other.go        the same without supervisors that could see it
//	output.go             stdout and stderr, which always end
//	mark.go               the mark that a child's descendants inherit
//	tree.go               who belongs to a child, and the sweep
//	tree_linux.go         the process table by /proc, kills by pidfd
//	tree_other.go         the same, as well as ps allows
//	lockfile_linux.go     a lock that says so to other containers
//	identity_linux.go     a name by which others can tell whether we still live
//	identity_other.go     no such name
//	gc.go                 how much garbage the collector leaves
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
	Path string
	Args []string // without the program's own name
	Env  []string // all of the child's environment, save for its mark
	Dir  string
	// OpenedDir is the directory to start in, when it was looked at before:
	// another may lie at Dir by now. When nil, Dir is entered by its path.
	OpenedDir *os.Root
	Mark      string    // unique to this child, see NewMark
	Stdin     io.Reader // nil: nothing to read
	// StdoutFile is a file to be made for stdout and followed while it grows,
	// for a child that ends before a pipe has taken all it has to say. Empty: a
	// pipe.
	StdoutFile string
	Supervisor Supervisor // what Main returned; the zero one has its limits
	Lease      *Lease     // the supervisor ends the child when it runs out; nil: it never does

	probe bool // start the supervisor only
}

// Process is a running child. Its Stdout and Stderr must be read until they
// end, each by one goroutine. Stop is optional, Close is not; one goroutine
// calls them.
type Process struct {
	Stdout, Stderr *Output

	containment Containment
	cmd         *exec.Cmd     // the child, or its supervisor
	link        *link         // to the supervisor, nil without one
	tree        *tree         // who belongs to the child, for when no supervisor can tell
	gone        chan struct{} // what cmd started has ended, and is a zombie until released
	exited      chan struct{} // the child has ended
	release     chan struct{}
	reaped      chan struct{}
	stdin       *os.File
	state       State // once exited (with a supervisor) or reaped (without)
}

// Start starts a child in a session of its own. On Linux it dies when this
// process dies, however that happens, and with a Supervisor its descendants die
// too. It is held together by the best means that there is.
func Start(c Command) (*Process, error) {
	p := &Process{Stdout: &Output{}, Stderr: &Output{}}
	theirs, err := p.connect(c)
	defer closeAll(theirs)
	if err != nil {
		closeAll(p.ownEnds())
		return nil, err
	}
	for _, p.containment = range c.Supervisor.containments() {
		if err = p.launch(c, theirs); !errors.Is(err, errDenied) {
			break
		}
	}
	if err != nil {
		closeAll(p.ownEnds())
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	if p.stdin != nil {
		go p.writeStdin(c.Stdin)
	}
	return p, nil
}

// launch starts the child by one kind of containment. The error is errDenied
// when another kind may do.
func (p *Process) launch(c Command, theirs []*os.File) error {
	p.gone, p.release, p.reaped = make(chan struct{}), make(chan struct{}), make(chan struct{})
	p.exited, p.link = p.gone, nil
	p.cmd = &exec.Cmd{
		Path: c.Path, Args: append([]string{c.Path}, c.Args...),
		Env:   append(append([]string(nil), c.Env...), markName+"="+c.Mark),
		Stdin: theirs[0], Stdout: theirs[1], Stderr: theirs[2],
		SysProcAttr: attributes(),
	}
	left, err := EnterDir(p.cmd, c.Dir, c.OpenedDir)
	if err != nil {
		return err
	}
	defer left()
	if p.containment == MarksOnly {
		if err := p.spawn(); err != nil {
			return err
		}
		p.tree = newTree(p.cmd.Process.Pid, c.Mark)
		return nil
	}
	if p.link, err = newLink(); err != nil {
		return err
	}
	p.link.wrap(p.cmd, p.containment, c)
	err = p.spawn()
	closeAll(p.link.theirs)
	if err != nil {
		p.link.close()
		return fmt.Errorf("%w: %w", errDenied, err)
	}
	pid, err := p.link.awaitStart()
	if err != nil {
		p.link.close()
		close(p.release)
		<-p.reaped
		return err
	}
	if p.containment == PIDNamespace {
		pid = p.cmd.Process.Pid // the child's own is another one here
	}
	p.tree = newTree(pid, c.Mark)
	p.exited = make(chan struct{})
	go func() {
		p.state = State{p.link.awaitEnd()}
		close(p.exited)
	}()
	return nil
}

func (p *Process) spawn() error {
	started := make(chan error)
	go p.hold(started)
	return <-started
}

// hold starts cmd and waits for it, on one thread: the kernel kills the
// child when the thread that forked it ends.
func (p *Process) hold(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	awaitExit(p.cmd.Process.Pid)
	close(p.gone)
	<-p.release // until then the zombie keeps its pid and session from being reused
	_ = p.cmd.Wait()
	close(p.reaped)
}

// connect connects the child by pipes of our own, so that nothing but us
// decides when reading ends. It returns the child's ends.
func (p *Process) connect(c Command) (theirs []*os.File, err error) {
	open := func(read, write **os.File) {
		if err != nil {
			return
		}
		if *read, *write, err = os.Pipe(); err != nil {
			err = fmt.Errorf("make a pipe for the child: %w", err)
		}
	}
	var in, out, errs *os.File
	if c.StdoutFile == "" {
		open(&p.Stdout.file, &out)
	} else {
		out, err = p.Stdout.follow(c.StdoutFile)
	}
	open(&p.Stderr.file, &errs)
	if c.Stdin != nil {
		open(&in, &p.stdin)
	} else if err == nil {
		in, err = os.Open(os.DevNull)
	}
	return []*os.File{in, out, errs}, err
}

func (p *Process) ownEnds() []*os.File { return []*os.File{p.stdin, p.Stdout.file, p.Stderr.file} }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// writeStdin writes stdin and closes it. A child that does not care to read all of
// it has done nothing wrong.
func (p *Process) writeStdin(from io.Reader) {
	_, _ = io.Copy(p.stdin, from)
	_ = p.stdin.Close()
}

// Exited is closed when the child itself has ended. What it started may live
// on until Close.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Lapsed tells, once the child has ended, whether its supervisor ended it because
// the lease had run out.
func (p *Process) Lapsed() bool { return p.link != nil && p.link.lapsed }

// StopPolicy is how long a child may take to follow each request to stop.
type StopPolicy struct {
	Interrupt time.Duration // after SIGINT
	Terminate time.Duration // after SIGTERM
}

// DefaultStopPolicy leaves an agent the time to stop its tools and write down what
// it has done and spent.
var DefaultStopPolicy = StopPolicy{Interrupt: 5 * time.Second, Terminate: 2 * time.Second}

// Stop asks the child's process group to end, by SIGINT, then SIGTERM, ends it by
// SIGKILL, and returns when the child itself has ended. A request that there is no
// time for is not made: the child would begin to say that it was cut off.
func (p *Process) Stop(l StopPolicy) {
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGINT, l.Interrupt}, {syscall.SIGTERM, l.Terminate}} {
		if step.wait <= 0 {
			continue
		}
		p.signal(step.signal)
		select {
		case <-p.exited:
			return
		case <-time.After(step.wait):
		}
	}
	p.kill()
}

// kill ends the child's own process group by force. A child that the kernel
// cannot end (a dead network file system) is given up after a while.
func (p *Process) kill() {
	p.signal(syscall.SIGKILL)
	select {
	case <-p.exited:
	case <-time.After(sweepLimit):
	}
}

// signal reaches the child's whole group. Until release, the group's number,
// or the supervisor's, is not used again.
func (p *Process) signal(s syscall.Signal) {
	if p.link == nil {
		p.tree.look() // while the chain of parents is still whole
		_ = syscall.Kill(-p.cmd.Process.Pid, s)
		return
	}
	p.wake()
	_, _ = p.link.orders.Write([]byte{byte(s)})
}

// wake lets a supervisor go on that an agent has stopped.
func (p *Process) wake() { _ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGCONT) }

// sweepLimit is how long SIGKILL may take to end a process.
const sweepLimit = 10 * time.Second

// Close kills the child if it lives and everything that it left behind, and
// returns how the child ended, nil if it cannot be killed. The error names what
// could not be killed. After Close, Stdout and Stderr end as soon as what is in
// them has been read.
func (p *Process) Close() (*State, error) {
	var left error
	if p.link != nil {
		p.stopSupervisor()
	} else {
		if !done(p.exited) {
			p.kill()
		}
		left = sweep(p.tree.look, kill)
	}
	close(p.release)
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	err := errors.Join(left, p.Stdout.end(), p.Stderr.end())
	if !done(p.gone) {
		return nil, errors.Join(err, fmt.Errorf("process %d does not die", p.cmd.Process.Pid))
	}
	<-p.reaped
	if p.link == nil {
		p.state = stateOf(p.cmd.ProcessState)
		return &p.state, err
	}
	<-p.exited // the reports have ended with the supervisor
	_ = p.link.reports.Close()
	if !p.cmd.ProcessState.Success() {
		// It was killed, or could not kill: nothing is proven.
		err = errors.Join(err, sweep(p.tree.look, kill))
	}
	return &p.state, err
}

// stopSupervisor makes the supervisor end everything and itself.
func (p *Process) stopSupervisor() {
	p.wake()
	_ = p.link.orders.Close()
	select {
	case <-p.gone:
		return
	case <-time.After(sweepLimit + time.Second):
	}
	_ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-p.gone:
	case <-time.After(time.Second):
	}
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Release closes the reading ends; call it when reading is over.
func (p *Process) Release() { closeAll([]*os.File{p.Stdout.file, p.Stderr.file}) }
