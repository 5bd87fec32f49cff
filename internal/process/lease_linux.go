package process

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Uptime is the time since this machine started, the same for all its
// processes. It goes on while the machine is suspended, as CLOCK_BOOTTIME does
// and CLOCK_MONOTONIC, by which Go measures, does not: Postgres's clock, on which
// leases end, is on another machine that is awake. Nobody can set it, as they can
// the wall clock. Of a virtual machine that its host has paused no clock tells.
func Uptime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // there since Linux 2.6.39
	return time.Duration(t.Nano())
}

const word = 8

func newLease() (*Lease, error) {
	fd, err := unix.MemfdCreate("run-lease", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make memory for a lease: %w", err)
	}
	l := &Lease{file: os.NewFile(uintptr(fd), "run-lease")}
	if err := unix.Ftruncate(fd, word); err != nil {
		return nil, fmt.Errorf("make memory for a lease: %w", err)
	}
	if l.until, err = mapWord(fd, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, err
	}
	runtime.AddCleanup(l, unmapWord, l.until)
	return l, nil
}

// mapWord shares the first word of a file with whoever else maps it.
func mapWord(fd, protection int) (*atomic.Int64, error) {
	at, err := unix.MmapPtr(fd, 0, nil, word, protection, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the memory of a lease: %w", err)
	}
	return (*atomic.Int64)(at), nil
}

func unmapWord(w *atomic.Int64) { _ = unix.MunmapPtr(unsafe.Pointer(w), word) }

// alarm is a timer on the clock of Uptime: it goes off at once when the machine
// wakes too late.
type alarm int

func newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	return alarm(fd), err
}

func (a alarm) set(at time.Duration) error {
	return unix.TimerfdSettime(int(a), unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at, 1)))}, nil)
}
