package fakecli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// startSleeper leaves a child that lives long, with stdout or without.
func startSleeper(stdout *os.File, newSession bool) error {
	child := exec.Command("/bin/sleep", "1000")
	if stdout != nil {
		child.Stdout = stdout
	}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: newSession}
	if err := child.Start(); err != nil {
		return fmt.Errorf("starting a child: %w", err)
	}
	return nil
}

// startDaemon leaves a grandchild whose parent is gone, in a session of its
// own.
func startDaemon() error {
	parent := exec.Command("/bin/sh", "-c", "/bin/sleep 1000 </dev/null >/dev/null 2>&1 &")
	parent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := parent.Run(); err != nil {
		return fmt.Errorf("starting a daemon: %w", err)
	}
	return nil
}

// startHidden leaves a grandchild like startDaemon, in another session, without
// the agent's environment, deaf to polite signals.
func startHidden(seconds string) error {
	parent := exec.Command("/bin/sh", "-c", "trap '' INT TERM HUP; /bin/sleep "+seconds+" </dev/null >/dev/null 2>&1 &")
	parent.Env = []string{}
	parent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := parent.Run(); err != nil {
		return fmt.Errorf("hiding a daemon: %w", err)
	}
	return nil
}

// Asleep returns the living processes that the verb hide has left with this
// number of seconds. It needs /proc.
func Asleep(t testing.TB, seconds int) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatalf("listing processes: %v", err)
	}
	want := fmt.Appendf(nil, "/bin/sleep\x00%d\x00", seconds)
	var pids []int
	for _, file := range files {
		// A zombie's is empty; a process may end while we look.
		if cmdline, err := os.ReadFile(file); err == nil && bytes.Equal(cmdline, want) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}
