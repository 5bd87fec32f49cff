//go:build !linux

package process

import (
	"bytes"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes has no way to make the child die with us; the mark and SweepDead
// make up for it.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// awaitExit returns when the child has ended and leaves it a zombie.
func awaitExit(pid int) {
	queue, err := unix.Kqueue()
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(queue) }()
	var watch unix.Kevent_t
	unix.SetKevent(&watch, pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	watch.Fflags = unix.NOTE_EXIT
	changes := []unix.Kevent_t{watch}
	for {
		_, err := unix.Kevent(queue, changes, make([]unix.Kevent_t, 1), nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func kill(p proc) {
	if startOf(p.pid) == p.start {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}

// marks asks ps for the environments that it may show, our own user's.
func marks([]proc) map[int]string {
	listing, _ := exec.Command("ps", "-axEww", "-o", "pid=,command=").Output()
	found := map[int]string{}
	for line := range bytes.Lines(listing) {
		words := strings.Fields(string(line))
		for i, word := range words {
			if value, ok := strings.CutPrefix(word, markName+"="); ok && i > 0 {
				pid, _ := strconv.Atoi(words[0])
				found[pid] = value
			}
		}
	}
	return found
}

func startOf(pid int) string {
	for _, p := range table("-p", strconv.Itoa(pid)) {
		if !p.zombie {
			return p.start
		}
	}
	return ""
}

func processes() []proc { return table("-ax") }

func table(which ...string) []proc {
	listing, _ := exec.Command("ps", append(which, "-o", "pid=,ppid=,stat=,lstart=")...).Output()
	var procs []proc
	for line := range bytes.Lines(listing) {
		words := strings.Fields(string(line))
		if len(words) < 4 {
			continue
		}
		p := proc{start: strings.Join(words[3:], "_"), zombie: strings.HasPrefix(words[2], "Z")}
		p.pid, _ = strconv.Atoi(words[0])
		p.ppid, _ = strconv.Atoi(words[1])
		p.session, _ = unix.Getsid(p.pid)
		procs = append(procs, p)
	}
	return procs
}
