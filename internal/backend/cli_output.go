package backend

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// listener reads an agent's stdout line by line and keeps its pulse.
type listener struct {
	from    io.Reader
	line    func([]byte) bool
	skipped func(size int64)
	limits  limits

	news chan struct{} // something has changed in the pulse
	done chan struct{} // nothing more will come

	mu   sync.Mutex
	now  pulse
	deaf bool
}

// pulse is what is known of an agent from its stdout alone.
type pulse struct {
	spoken  bool      // a byte has come
	last    time.Time // of the last whole line, or of the end
	final   bool      // it has said its last word
	closed  bool      // stdout has ended
	flooded bool      // it said more than it may
	bytes   int64
}

func newListener(from io.Reader, line func([]byte) bool, l limits) *listener {
	return &listener{
		from: from, line: line, limits: l, skipped: func(int64) {},
		news: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

func (l *listener) pulse() pulse {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// deafen makes the listener throw away what comes from now on.
func (l *listener) deafen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = true
}

func (l *listener) change(change func(*pulse)) {
	l.mu.Lock()
	change(&l.now)
	l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// listen reads until stdout ends. It goes on reading, and throwing away, when
// too much has come: a full pipe would keep the agent from hearing us.
func (l *listener) listen() {
	defer close(l.done)
	reader := bufio.NewReaderSize(counted{l}, 64<<10)
	for {
		line, size, err := readLine(reader, l.limits.maxLine)
		if size > l.limits.maxLine {
			l.skipped(size)
		} else if line = bytes.TrimSpace(line); len(line) > 0 {
			l.hear(line)
		}
		if err != nil {
			l.change(func(p *pulse) { p.closed, p.last = true, time.Now() })
			return
		}
		l.change(func(p *pulse) { p.last = time.Now() })
	}
}

func (l *listener) hear(line []byte) {
	l.mu.Lock()
	mute := l.deaf || l.now.flooded
	l.mu.Unlock()
	if mute {
		return
	}
	final := l.line(line)
	l.change(func(p *pulse) { p.final = final })
}

// counted counts the bytes of stdout as they come.
type counted struct{ l *listener }

func (c counted) Read(into []byte) (int, error) {
	n, err := c.l.from.Read(into)
	if n > 0 {
		c.l.change(func(p *pulse) {
			if !p.spoken {
				p.spoken, p.last = true, time.Now()
			}
			p.bytes += int64(n)
			p.flooded = p.bytes > c.l.limits.maxOutput
		})
	}
	return n, err
}

// readLine returns the next line and its full size. It keeps no more than
// limit bytes of a line, but reads to its end.
func readLine(from *bufio.Reader, limit int64) (line []byte, size int64, err error) {
	for {
		part, err := from.ReadSlice('\n')
		if size += int64(len(part)); size <= limit {
			line = append(line, part...)
		} else {
			line = nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, size, err
		}
	}
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
