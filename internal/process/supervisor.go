package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Supervisor is how children are held together: by a process of our own between
// us and the child, from which no descendant gets away. The zero Supervisor has no
// such process; then marks, sessions and parents tell who belongs to a child.
type Supervisor struct {
	program string        // what starts as a supervisor: this same program, by way of Main
	kinds   []Containment // in this order
}

func (k Supervisor) containments() []Containment {
	if len(k.kinds) == 0 {
		return []Containment{MarksOnly}
	}
	return k.kinds
}

// Containment is by what a child's descendants are found and ended.
type Containment string

// The kinds of containment, the strongest first.
const (
	// PIDNamespace: the kernel ends all when the supervisor ends, whoever ended it.
	PIDNamespace Containment = "pid namespace"
	// Subreaper: every orphan becomes the supervisor's child. Who kills the supervisor
	// first escapes as far as marks allow.
	Subreaper Containment = "subreaper"
	// MarksOnly: who clears its environment, leaves its session and loses its
	// parent before anybody looks escapes.
	MarksOnly Containment = "marks only"
)

// String says what the kind means for whoever runs worker processes.
func (c Containment) String() string {
	switch c {
	case PIDNamespace:
		return "pid namespace: no process of an agent outlives its run"
	case Subreaper:
		return "subreaper: no process of an agent outlives its run, unless it kills the run's keeper; " +
			"a pid namespace prevents that and needs CAP_SYS_ADMIN"
	}
	return "marks only: a process that clears its environment and leaves its session may outlive its run"
}

// Containment tries out what this machine allows.
func (k Supervisor) Containment() Containment {
	p, err := Start(Command{Supervisor: k, Mark: NewMark("probe"), probe: true})
	if err != nil {
		return MarksOnly
	}
	defer p.Release()
	if _, err := p.Close(); err != nil {
		return MarksOnly
	}
	return p.containment
}

// supervisorName is the supervisor's argv[0]. It does not name Piecework, so that
// whoever kills that by name does not kill the supervisors with it.
const supervisorName = "run-keeper"

// What a supervisor reports, a line each, with a number.
const (
	reportStarted = "started" // the child's pid as the supervisor sees it
	reportFailed  = "failed"  // the errno of the child's start
	reportDenied  = "denied"  // the errno of what the containment needs
	reportEnded   = "ended"   // the child's wait status
	reportLapsed  = "lapsed"  // the lease has run out: the child is ended, or not started
)

// Whether a supervisor has a lease to watch.
const (
	leased   = "leased"
	unleased = "unleased"
)

// errDenied: this kind of containment cannot be had here.
var errDenied = errors.New("containment denied")

// link connects us to a supervisor. A byte on orders is a signal for the child's
// process group; the end of orders, which comes with our own death too, means
// to end everything.
type link struct {
	orders, reports *os.File
	theirs          []*os.File
	lines           *bufio.Reader
	lapsed          bool // once ended has returned: the lease ran out
}

func newLink() (*link, error) {
	theirOrders, orders, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for the supervisor: %w", err)
	}
	reports, theirReports, err := os.Pipe()
	if err != nil {
		closeAll([]*os.File{theirOrders, orders})
		return nil, fmt.Errorf("make a pipe for the supervisor: %w", err)
	}
	return &link{
		orders: orders, reports: reports, theirs: []*os.File{theirOrders, theirReports}, lines: bufio.NewReader(reports),
	}, nil
}

func (l *link) close() { closeAll(append(l.theirs, l.orders, l.reports)) }

// report reads what the supervisor says next; the error is about the supervisor itself.
func (l *link) report() (what string, number int, err error) {
	line, err := l.lines.ReadString('\n')
	if err != nil {
		return "", 0, fmt.Errorf("the supervisor ended without a report: %w", err)
	}
	what, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
	number, err = strconv.Atoi(digits)
	return what, number, err
}

// awaitStart waits until it is known whether the child has started, and its pid as the supervisor sees it.
func (l *link) awaitStart() (pid int, err error) {
	what, number, err := l.report()
	switch {
	case err != nil:
		return 0, err
	case what == reportDenied:
		return 0, fmt.Errorf("%w: %w", errDenied, syscall.Errno(number))
	case what == reportFailed:
		return 0, syscall.Errno(number)
	case what == reportLapsed:
		return 0, ErrLapsed
	}
	return number, nil
}

// awaitEnd waits for the child's end. A supervisor that was killed takes the child
// along.
func (l *link) awaitEnd() syscall.WaitStatus {
	for {
		what, number, err := l.report()
		switch {
		case err != nil:
			return syscall.WaitStatus(syscall.SIGKILL)
		case what == reportLapsed:
			l.lapsed = true
		case what == reportEnded:
			return syscall.WaitStatus(number)
		}
	}
}

// wrap turns a command for the child into one for its supervisor.
func (l *link) wrap(cmd *exec.Cmd, kind Containment, c Command) {
	if c.probe {
		cmd.Args = nil
	}
	cmd.ExtraFiles = l.theirs
	lease := unleased
	if c.Lease != nil {
		lease = leased
		cmd.ExtraFiles = append(slices.Clip(l.theirs), c.Lease.file)
	}
	cmd.Args = append([]string{supervisorName, string(kind), lease}, cmd.Args...)
	cmd.Path = c.Supervisor.program
	cmd.SysProcAttr = supervisorAttributes(kind)
}
