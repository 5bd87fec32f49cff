package fakecli

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
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
