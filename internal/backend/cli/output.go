package cli

import (
	"bufio"
	"bytes"
	"io"
	"sync"
	"time"

	"piecework/internal/backend"
)

// outputReader reads an agent's stdout line by line and what is known of it.
type outputReader struct {
	from    io.Reader
	line    func([]byte) bool
	skipped func(size int64)
	limits  limits

	changed chan struct{} // something has changed in the state
	done    chan struct{} // nothing more will come

	mu         sync.Mutex
	current    outputState
	discarding bool
}

// outputState is what is known of an agent from its stdout alone.
type outputState struct {
	started bool      // a byte has come
	last    time.Time // of the last whole line, or of the end
	final   bool      // it has given its final result
	closed  bool      // stdout has ended
	flooded bool      // it said more than it may
	bytes   int64
}

func newOutputReader(from io.Reader, line func([]byte) bool, l limits) *outputReader {
	return &outputReader{
		from: from, line: line, limits: l, skipped: func(int64) {},
		changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

func (l *outputReader) state() outputState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// discard throws away what comes from now on.
func (l *outputReader) discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discarding = true
}

func (l *outputReader) change(change func(*outputState)) {
	l.mu.Lock()
	change(&l.current)
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// read reads until stdout ends. It goes on reading, and throwing away, when
// too much has come: a full pipe would keep the agent from hearing us.
func (l *outputReader) read() {
	defer close(l.done)
	reader := bufio.NewReaderSize(counted{l}, 64<<10)
	for {
		line, size, err := backend.ReadLine(reader, l.limits.maxLine)
		if size > l.limits.maxLine {
			l.skipped(size)
		} else if line = bytes.TrimSpace(line); len(line) > 0 {
			l.handle(line)
		}
		if err != nil {
			l.change(func(p *outputState) { p.closed, p.last = true, time.Now() })
			return
		}
		l.change(func(p *outputState) { p.last = time.Now() })
	}
}

func (l *outputReader) handle(line []byte) {
	l.mu.Lock()
	mute := l.discarding || l.current.flooded
	l.mu.Unlock()
	if mute {
		return
	}
	final := l.line(line)
	l.change(func(p *outputState) { p.final = final })
}

// counted counts the bytes of stdout as they come.
type counted struct{ l *outputReader }

func (c counted) Read(into []byte) (int, error) {
	n, err := c.l.from.Read(into)
	if n > 0 {
		c.l.change(func(p *outputState) {
			if !p.started {
				p.started, p.last = true, time.Now()
			}
			p.bytes += int64(n)
			p.flooded = p.bytes > c.l.limits.maxOutput
		})
	}
	return n, err
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int
	mu    sync.Mutex
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-t.limit):]...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
