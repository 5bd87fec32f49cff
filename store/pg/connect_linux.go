package pg

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout makes the kernel give up a connection whose bytes nobody
// acknowledges, rather than repeat them for a quarter of an hour.
func setUserTimeout(network, _ string, raw syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
