package pg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// How long a grouped write may take. Its callers may wait for two: the one that
// was under way when they came, and their own.
const (
	writeLimit = 8 * time.Second
	writeSpeed = 2 << 20 // bytes a second, which large rows get besides
	// leaveBehind is how long a flush whose time is over may keep the others
	// waiting.
	leaveBehind = 2 * closeAfter
)

// Group turns calls that arrive together into one statement. The first caller
// flushes at once; whoever comes while that flush is under way goes with the
// next. There is no timer, so a lone call costs what it would cost alone.
// Every caller waits for its own commit, and when a statement fails each of
// its rows is tried alone, so that a bad row fails alone.
//
// A first statement without an answer is tried once more, for a shorter time: the
// other connections are distrusted by then, so that it gets a new one. A row whose
// outcome is unknown may be there already: repeating one must change nothing.
type Group[In, Out any] struct {
	max    int          // rows in one statement
	weigh  func(In) int // about how many bytes a row sends; nil: few
	flush  func(context.Context, []In) ([]Out, error)
	Limit  time.Duration // for one statement, which the tests change
	writes *Writes
	// Impatience is how long a caller waits when it is known that Postgres does not
	// answer; 0: for as long as it takes.
	Impatience time.Duration

	mu      sync.Mutex
	waiting []*call[In, Out]
	busy    bool
}

type call[In, Out any] struct {
	in   In
	out  Out
	err  error
	done chan struct{}
}

// maxWeight bounds the bytes of one statement, unless a single row is larger:
// Postgres takes no parameter beyond a gigabyte, and fails all rows of one.
const maxWeight = 64 << 20

// NewGroup makes a group whose statements have at most max rows.
func NewGroup[In, Out any](max int, weigh func(In) int, w *Writes, flush func(context.Context, []In) ([]Out, error)) *Group[In, Out] {
	return &Group[In, Out]{max: max, weigh: weigh, flush: flush, Limit: writeLimit, writes: w}
}

// Do hands in to the next flush and waits for its outcome. When ctx ends
// first the outcome is unknown: the row may still be committed, unless its flush
// had not begun. When Postgres is known to be silent a caller of a group with an
// impatience waits no longer than that.
func (g *Group[In, Out]) Do(ctx context.Context, in In) (Out, error) {
	c := &call[In, Out]{in: in, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	lead := !g.busy
	g.busy = true
	g.mu.Unlock()
	if lead {
		go g.drain()
	}
	var enough <-chan time.Time
	if g.Impatience > 0 && g.writes.Trouble() != nil {
		timer := time.NewTimer(g.Impatience)
		defer timer.Stop()
		enough = timer.C
	}
	var none Out
	select {
	case <-c.done:
		return c.out, c.err
	case <-ctx.Done():
		g.forget(c)
		return none, Translate(context.Cause(ctx))
	case <-enough:
		g.forget(c)
		return none, Translate(fmt.Errorf("write: %w", os.ErrDeadlineExceeded))
	}
}

// forget takes back a call that nobody waits for and that no flush has.
func (g *Group[In, Out]) forget(c *call[In, Out]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, c); i >= 0 {
		// A copy: a flush under way has the rest of the array.
		g.waiting = slices.Concat(g.waiting[:i], g.waiting[i+1:])
	}
}

func (g *Group[In, Out]) drain() {
	for {
		g.mu.Lock()
		n := g.next()
		if n == 0 {
			g.busy, g.waiting = false, nil
			g.mu.Unlock()
			return
		}
		calls := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		g.mu.Unlock()

		g.run(calls)
		for i, c := range calls {
			close(c.done)
			calls[i] = nil // a transcript must not live as long as the array it waited in
		}
	}
}

// next is how many of the waiting go with the next flush.
func (g *Group[In, Out]) next() int {
	most, weight := min(len(g.waiting), g.max), 0
	if g.weigh == nil {
		return most
	}
	for n := range most {
		if weight += g.weigh(g.waiting[n].in); n > 0 && weight > maxWeight {
			return n
		}
	}
	return most
}

func (g *Group[In, Out]) run(calls []*call[In, Out]) {
	known := g.writes.pulse.away.Load()
	err := g.try(calls, g.usual())
	if unanswered(err) && !known {
		err = g.try(calls, min(g.Limit, silentLimit))
	}
	if err == nil || len(calls) == 1 || kindOf(err) == away {
		return
	}
	for i := range calls {
		_ = g.try(calls[i:i+1], g.Limit) // each call carries its own error
	}
}

// usual is how long a flush may take: not long when the last one had no answer.
func (g *Group[In, Out]) usual() time.Duration {
	if g.writes.pulse.away.Load() {
		return min(g.Limit, silentLimit)
	}
	return g.Limit
}

// try flushes calls once. A flush that does not come back in time is left
// behind, and what it may still bring is nobody's.
func (g *Group[In, Out]) try(calls []*call[In, Out], limit time.Duration) error {
	rows := make([]In, len(calls))
	for i, c := range calls {
		rows[i] = c.in
		if g.weigh != nil {
			limit += time.Duration(g.weigh(c.in)) * time.Second / writeSpeed
		}
	}
	ctx, cancel := context.WithTimeout(Allow(context.Background(), limit), limit)
	type outcome struct {
		outs []Out
		err  error
	}
	back := make(chan outcome, 1)
	written := g.writes.Begin(limit)
	go func() {
		defer cancel()
		outs, err := g.flush(ctx, rows)
		back <- outcome{outs, Translate(err)}
	}()
	stuck := time.NewTimer(limit + leaveBehind)
	defer stuck.Stop()
	var o outcome
	select {
	case o = <-back:
	case <-stuck.C:
		o.err = Translate(fmt.Errorf("write: %w", os.ErrDeadlineExceeded))
	}
	written(o.err)
	for i, c := range calls {
		c.err = o.err
		if o.err == nil {
			c.out = o.outs[i]
		}
	}
	return o.err
}

// unanswered tells whether a statement failed because nothing came back in time.
// One that was too slow, and that Postgres has cancelled, was answered.
func unanswered(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// Waiting is how many calls wait for the next flush.
func (g *Group[In, Out]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
