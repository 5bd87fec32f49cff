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

// Keeper is how children are held together: by a process of our own between
// us and the child, from which no descendant gets away. The zero Keeper has no
// such process; then marks, sessions and parents tell who belongs to a child.
type Keeper struct {
	program string        // what starts as a keeper: this same program, by way of Main
	try     []Containment // in this order
}

func (k Keeper) containments() []Containment {
	if len(k.try) == 0 {
		return []Containment{MarksOnly}
	}
	return k.try
}

// Containment is by what a child's descendants are found and ended.
type Containment string

// The kinds of containment, the strongest first.
const (
	// PIDNamespace: the kernel ends all when the keeper ends, whoever ended it.
	PIDNamespace Containment = "pid namespace"
	// Subreaper: every orphan becomes the keeper's child. Who kills the keeper
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
func (k Keeper) Containment() Containment {
	p, err := Start(Command{Keeper: k, Mark: NewMark("probe"), probe: true})
	if err != nil {
		return MarksOnly
	}
	defer p.Release()
	if _, err := p.Close(); err != nil {
		return MarksOnly
	}
	return p.containment
}

// keeperName is the keeper's argv[0]. It does not name Piecework, so that
// whoever kills that by name does not kill the keepers with it.
const keeperName = "run-keeper"

// What a keeper reports, a line each, with a number.
const (
	saysStarted = "started" // the child's pid as the keeper sees it
	saysFailed  = "failed"  // the errno of the child's start
	saysDenied  = "denied"  // the errno of what the containment needs
	saysEnded   = "ended"   // the child's wait status
	saysLapsed  = "lapsed"  // the lease has run out: the child is ended, or not started
)

// Whether a keeper has a lease to watch.
const (
	leased   = "leased"
	unleased = "unleased"
)

// errDenied: this kind of containment cannot be had here.
var errDenied = errors.New("containment denied")

// link connects us to a keeper. A byte on orders is a signal for the child's
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
		return nil, fmt.Errorf("make a pipe for the keeper: %w", err)
	}
	reports, theirReports, err := os.Pipe()
	if err != nil {
		closeAll([]*os.File{theirOrders, orders})
		return nil, fmt.Errorf("make a pipe for the keeper: %w", err)
	}
	return &link{
		orders: orders, reports: reports, theirs: []*os.File{theirOrders, theirReports}, lines: bufio.NewReader(reports),
	}, nil
}

func (l *link) close() { closeAll(append(l.theirs, l.orders, l.reports)) }

// report reads what the keeper says next; the error is about the keeper itself.
func (l *link) report() (what string, number int, err error) {
	line, err := l.lines.ReadString('\n')
	if err != nil {
		return "", 0, fmt.Errorf("the keeper ended without a report: %w", err)
	}
	what, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
	number, err = strconv.Atoi(digits)
	return what, number, err
}

// begun hears whether the child has started, and its pid as the keeper sees it.
func (l *link) begun() (pid int, err error) {
	what, number, err := l.report()
	switch {
	case err != nil:
		return 0, err
	case what == saysDenied:
		return 0, fmt.Errorf("%w: %w", errDenied, syscall.Errno(number))
	case what == saysFailed:
		return 0, syscall.Errno(number)
	case what == saysLapsed:
		return 0, ErrLapsed
	}
	return number, nil
}

// ended waits for the child's end. A keeper that was killed takes the child
// along.
func (l *link) ended() syscall.WaitStatus {
	for {
		what, number, err := l.report()
		switch {
		case err != nil:
			return syscall.WaitStatus(syscall.SIGKILL)
		case what == saysLapsed:
			l.lapsed = true
		case what == saysEnded:
			return syscall.WaitStatus(number)
		}
	}
}

// keep turns a command for the child into one for its keeper.
func (l *link) keep(cmd *exec.Cmd, kind Containment, c Command) {
	if c.probe {
		cmd.Args = nil
	}
	cmd.ExtraFiles = l.theirs
	lease := unleased
	if c.Lease != nil {
		lease = leased
		cmd.ExtraFiles = append(slices.Clip(l.theirs), c.Lease.file)
	}
	cmd.Args = append([]string{keeperName, string(kind), lease}, cmd.Args...)
	cmd.Path = c.Keeper.program
	cmd.SysProcAttr = keeperAttributes(kind)
}
