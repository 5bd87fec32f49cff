//go:build !linux

package process

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Uptime is the time since some moment, the same for all processes of this
// machine. Darwin's CLOCK_MONOTONIC goes on while the machine is suspended.
func Uptime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}

func newLease() (*Lease, error) { return &Lease{until: new(atomic.Int64)}, nil }
