package process

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// Outlet is the reading end of a child's stdout or stderr. It ends when all
// writers have closed it, or, after Close, when it is empty: an orphan that
// escaped the sweep may hold it open for ever.
type Outlet struct {
	file  *os.File
	ended atomic.Bool
	rest  int64 // what may still be read since it ended
}

const (
	// A pipe holds at most 1 MiB, unless root made it larger. Whatever comes
	// beyond this was written after the end.
	maxRest   = 4 << 20
	emptyWait = 100 * time.Millisecond
	// A reader that is woken by its deadline has not looked at the pipe again:
	// on a busy machine there may be something in it all the same.
	emptyLooks = 3
)

// Read reads what the child has written.
func (o *Outlet) Read(into []byte) (int, error) {
	for range emptyLooks {
		if o.ended.Load() {
			if err := o.file.SetReadDeadline(time.Now().Add(emptyWait)); err != nil {
				return 0, err
			}
		}
		n, err := o.file.Read(into)
		if o.ended.Load() {
			o.rest += int64(n)
		}
		if o.rest > maxRest {
			return 0, io.EOF
		}
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	return 0, io.EOF
}

// end lets reading end, now that nobody is left who should write.
func (o *Outlet) end() error {
	o.ended.Store(true)
	return o.file.SetReadDeadline(time.Now().Add(emptyWait))
}
