package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// Output is the reading end of a child's stdout or stderr. It ends when all
// writers have closed it, or, after Close, when it is empty: an orphan that
// escaped the sweep may hold it open for ever.
type Output struct {
	file  *os.File
	ended atomic.Bool
	rest  int64 // what has been read since it ended

	// Of a file that is followed: how much was read, and how large it was when
	// it ended.
	followed   bool
	read, size int64
	done       chan struct{} // closed when it has ended
}

const (
	// A pipe holds at most 1 MiB, unless root made it larger. Whatever comes
	// beyond this was written after the end.
	maxRest   = 4 << 20
	emptyWait = 100 * time.Millisecond
	// A reader that is woken by its deadline has not looked at the pipe again:
	// on a busy machine there may be something in it all the same.
	emptyLooks = 3
	// How often a file that is followed is looked at. Nobody tells when it grows.
	followEvery = 25 * time.Millisecond
)

// follow makes the file that a child writes to, and returns the child's end.
func (o *Output) follow(path string) (*os.File, error) {
	_ = os.Remove(path) // of an earlier child, and perhaps a pipe by now
	theirs, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make a file for the child's output: %w", err)
	}
	if o.file, err = os.Open(path); err != nil {
		_ = theirs.Close()
		return nil, fmt.Errorf("open the child's output: %w", err)
	}
	o.followed, o.done = true, make(chan struct{})
	return theirs, nil
}

// Read reads what the child has written.
func (o *Output) Read(into []byte) (int, error) {
	if o.followed {
		return o.readFile(into)
	}
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

// readFile waits at the file's end until there is more or the end is final.
func (o *Output) readFile(into []byte) (int, error) {
	for {
		ended := o.ended.Load() // before the look: what is there then is all there is
		if ended {
			into = into[:min(int64(len(into)), max(0, o.size-o.read))]
		}
		n, err := o.file.Read(into)
		o.read += int64(n)
		switch {
		case n > 0:
			return n, nil
		case err != nil && !errors.Is(err, io.EOF):
			return 0, err
		case ended:
			return 0, io.EOF
		}
		select {
		case <-o.done:
		case <-time.After(followEvery):
		}
	}
}

// end lets reading end, now that nobody is left who should write.
func (o *Output) end() error {
	if o.followed {
		info, err := o.file.Stat()
		if err == nil {
			o.size = info.Size()
		}
		o.ended.Store(true)
		close(o.done)
		return err
	}
	o.ended.Store(true)
	return o.file.SetReadDeadline(time.Now().Add(emptyWait))
}
