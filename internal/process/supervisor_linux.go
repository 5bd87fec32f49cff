package process

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Main is a supervisor's whole life if the program was started as one, and else
// returns at once. A program that wants a Supervisor calls it first of all, with
// its os.Args and os.Environ().
func Main(args, environ []string) Supervisor {
	if len(args) < 3 || args[0] != supervisorName {
		return Supervisor{program: "/proc/self/exe", kinds: []Containment{PIDNamespace, Subreaper, MarksOnly}}
	}
	// The child dies with the thread that made it. This one lives as long as
	// the process.
	runtime.LockOSThread()
	k := &supervisor{containment: Containment(args[1]), alarm: never, allGone: make(chan struct{})}
	k.run(args[2] == leased, args[3:], environ)
	return Supervisor{}
}

func supervisorAttributes(c Containment) *syscall.SysProcAttr {
	if c == PIDNamespace {
		return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	}
	// It must outlive us, to end what we leave.
	return &syscall.SysProcAttr{Setsid: true}
}

// isSupervisor tells whether a process began as a supervisor.
func isSupervisor(pid int) bool {
	const want = supervisorName + "\x00"
	cmdline, err := os.ReadFile(procFile(pid, "cmdline"))
	return err == nil && len(cmdline) > len(want) && string(cmdline[:len(want)]) == want
}

const (
	ordersFD  = 3
	reportsFD = 4
	leaseFD   = 5 // if there is one
)

// never is an alarm that does not go off.
const never alarm = -1

// supervisor is the process between us and a child.
type supervisor struct {
	containment Containment
	lease       Lease
	alarm       alarm         // for when the lease ends
	allGone     chan struct{} // closed when no descendant is left

	mu    sync.Mutex
	child int // 0 before its start and after its end
}

func (k *supervisor) run(leased bool, argv, environ []string) {
	syscall.CloseOnExec(ordersFD)
	syscall.CloseOnExec(reportsFD)
	_ = os.WriteFile("/proc/self/comm", []byte(supervisorName), 0) // else the table of processes says "exe"
	// Whatever an agent sends to its parent: only the end of the orders ends
	// us. Handled signals, unlike ignored ones, are not inherited.
	signal.Notify(make(chan os.Signal, 1))
	err := k.contain()
	if err == nil && leased {
		err = k.watchLease()
	}
	if err != nil {
		k.sendError(reportDenied, err)
		exit(1)
	}
	if len(argv) == 0 { // only to see whether it can be done
		k.send(reportStarted, 0)
		close(k.allGone)
		k.serve()
	}
	if k.lapsed() {
		exit(1)
	}
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Env: environ, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		k.sendError(reportFailed, err)
		exit(1)
	}
	k.child = pid
	releaseStdio()
	k.send(reportStarted, pid)
	go k.serve()
	k.reap()
	close(k.allGone)
	select {}
}

// contain makes sure that every descendant stays below us.
func (k *supervisor) contain() error {
	if k.containment != PIDNamespace {
		return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	// A /proc that agrees with the pids, for us alone.
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	return unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// watchLease has the alarm go off when the lease ends.
func (k *supervisor) watchLease() (err error) {
	if k.lease.until, err = mapWord(leaseFD, unix.PROT_READ); err != nil {
		return err
	}
	_ = syscall.Close(leaseFD) // for agents, it is not there
	if k.alarm, err = newAlarm(); err != nil {
		return err
	}
	return k.alarm.set(k.lease.end())
}

// lapsed tells whether the lease has run out, and says so.
func (k *supervisor) lapsed() bool {
	if k.alarm == never || !k.lease.Lapsed() {
		return false
	}
	k.send(reportLapsed, 0)
	return true
}

// releaseStdio closes the child's stdin, stdout and stderr here, so that they end
// when the child and its descendants have closed them.
func releaseStdio() {
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	for fd := range 3 {
		if err != nil {
			_ = syscall.Close(fd)
			continue
		}
		_ = syscall.Dup3(null, fd, 0)
	}
}

// reap waits for everybody who is or becomes our child, and returns when there
// is nobody: then there is no descendant either.
func (k *supervisor) reap() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		k.reapOne()
	}
}

func (k *supervisor) reapOne() {
	k.mu.Lock() // whoever signals the child must not hit the next owner of its pid
	defer k.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err == nil && pid == k.child {
		k.child = 0
		k.send(reportEnded, int(status))
	}
}

// serve passes signals on until the orders or the lease end, then ends
// everything.
func (k *supervisor) serve() {
	for goOn := true; goOn; {
		wake := []unix.PollFd{{Fd: ordersFD, Events: unix.POLLIN}, {Fd: int32(k.alarm), Events: unix.POLLIN}}
		_, err := unix.Poll(wake, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			goOn = false
		case wake[1].Revents != 0:
			// Mostly it was renewed meanwhile.
			goOn = !k.lapsed() && k.alarm.set(k.lease.end()) == nil
		default:
			goOn = k.readOrder()
		}
	}
	deadline := time.After(sweepLimit)
	tree := newTree(os.Getpid(), "")
	for {
		k.killAll(tree)
		select {
		case <-k.allGone:
			exit(0)
		case <-deadline:
			exit(1)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// readOrder follows one order, and tells whether others may come.
func (k *supervisor) readOrder() bool {
	var order [1]byte
	n, err := syscall.Read(ordersFD, order[:])
	if n == 1 {
		k.signal(syscall.Signal(order[0]))
	}
	return n == 1 || errors.Is(err, syscall.EINTR)
}

func (k *supervisor) signal(s syscall.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.child != 0 {
		_ = syscall.Kill(-k.child, s)
	}
}

func (k *supervisor) killAll(t *tree) {
	select {
	case <-k.allGone:
		return
	default:
	}
	if k.containment == PIDNamespace {
		_ = syscall.Kill(-1, syscall.SIGKILL)
		return
	}
	for _, p := range t.look() {
		if !p.zombie {
			kill(p)
		}
	}
}

func (k *supervisor) send(what string, number int) {
	_, _ = syscall.Write(reportsFD, fmt.Appendf(nil, "%s %d\n", what, number)) // nobody to tell: we are to end then
}

func (k *supervisor) sendError(what string, err error) {
	errno := syscall.EIO
	errors.As(err, &errno)
	k.send(what, int(errno))
}

// exit leaves out what a race-enabled test binary does at its end, which takes
// a second.
func exit(code int) { syscall.Exit(code) }
