package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// startBound starts cmd so that the kernel sends it last when the calling
// thread ends, which the caller has locked for the child's whole life.
func startBound(cmd *exec.Cmd, last syscall.Signal) (release func(), err error) {
	cmd.SysProcAttr.Pdeathsig = last
	return func() {}, cmd.Start()
}

// runsIn tells whether the process works in dir, as Postgres and Redis do in
// their data directories. When it may not look it says yes.
func runsIn(pid int, dir string) bool {
	cwd, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		// A zombie has no directory any more.
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH)
	}
	data, err := os.Stat(dir)
	return err != nil || os.SameFile(cwd, data)
}
