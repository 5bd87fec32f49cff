//go:build !linux

package local

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// startBound starts cmd and beside it a shell that reads from a pipe nobody
// writes to. The pipe breaks when we die, and the shell sends the child last.
// Only Linux offers this of itself.
func startBound(cmd *exec.Cmd, last syscall.Signal) (release func(), err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	watch := exec.Command("/bin/sh", "-c", `read -r line; kill -"$1" "$2"`, "watch",
		strconv.Itoa(int(last)), strconv.Itoa(cmd.Process.Pid))
	watch.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := watch.StdinPipe(); err != nil {
		return func() {}, nil
	}
	if err := watch.Start(); err != nil {
		// Without a watcher a killed process leaves its child behind, which
		// the next start finds by its pid file and names.
		return func() {}, nil
	}
	return func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
	}, nil
}

// runsIn tells whether the process is one of those we start. Its directory
// cannot be asked for everywhere; a database server that took over the pid
// of another is left alone rather than doubted.
func runsIn(pid int, _ string) bool {
	out, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false
	}
	switch name := filepath.Base(strings.TrimSpace(string(out))); name {
	case "postgres", "redis-server", "valkey-server":
		return true
	default:
		return false
	}
}
