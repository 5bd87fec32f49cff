package process

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when the child has ended and leaves it a zombie.
func awaitExit(pid int) {
	for {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// kill holds the process by a pidfd while it makes sure that it is the one
// that was seen, so that a reused pid is never hit.
func kill(p proc) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // an old kernel, or a strict seccomp profile
		if startOf(p.pid) == p.start {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		return
	}
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if startOf(p.pid) == p.start {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

func marks(table []proc) map[int]string {
	found := map[int]string{}
	for _, p := range table {
		if p.zombie {
			continue
		}
		environ, err := os.ReadFile(procFile(p.pid, "environ"))
		if err != nil || !bytes.Contains(environ, []byte(markName)) {
			continue
		}
		found[p.pid] = markIn(environ)
	}
	return found
}

// startOf returns when a living process began, in clock ticks since boot.
func startOf(pid int) string {
	p, err := readProc(pid)
	if err != nil || p.zombie {
		return ""
	}
	return p.start
}

func processes() []proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	table := make([]proc, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := readProc(pid); err == nil {
			table = append(table, p)
		}
	}
	return table
}

// readProc reads /proc/PID/stat: pid (name) state ppid pgrp session … start.
func readProc(pid int) (proc, error) {
	stat, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return proc{}, err
	}
	// The name may hold anything, brackets and spaces too.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return proc{}, fs.ErrInvalid
	}
	p := proc{pid: pid, start: fields[19], zombie: fields[0] == "Z" || fields[0] == "X"}
	p.ppid, _ = strconv.Atoi(fields[1])
	p.session, _ = strconv.Atoi(fields[3])
	return p, nil
}
