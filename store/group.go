package store

import (
	"context"
	"sync"
	"time"
)

// group turns calls that arrive together into one statement. The first caller
// flushes at once; whoever comes while that flush is under way goes with the
// next. There is no timer, so a lone call costs what it would cost alone.
// Every caller waits for its own commit, and when a statement fails each of
// its rows is tried alone, so that a bad row fails alone.
type group[In, Out any] struct {
	max   int          // rows in one statement
	weigh func(In) int // about how many bytes a row sends; nil: few
	flush func(context.Context, []In) ([]Out, error)
	limit time.Duration // for one statement, which the tests lengthen

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

func newGroup[In, Out any](max int, weigh func(In) int, flush func(context.Context, []In) ([]Out, error)) *group[In, Out] {
	return &group[In, Out]{max: max, weigh: weigh, flush: flush, limit: writeTimeout}
}

// do hands in to the next flush and waits for its outcome. When ctx ends
// first the outcome is unknown: the row may still be committed.
func (g *group[In, Out]) do(ctx context.Context, in In) (Out, error) {
	c := &call[In, Out]{in: in, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, c)
	lead := !g.busy
	g.busy = true
	g.mu.Unlock()
	if lead {
		go g.drain()
	}
	select {
	case <-c.done:
		return c.out, c.err
	case <-ctx.Done():
		var none Out
		return none, translate(context.Cause(ctx))
	}
}

func (g *group[In, Out]) drain() {
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
func (g *group[In, Out]) next() int {
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

func (g *group[In, Out]) run(calls []*call[In, Out]) {
	err := g.try(calls)
	if err == nil || len(calls) == 1 || kindOf(err) == away {
		return
	}
	for i := range calls {
		_ = g.try(calls[i : i+1]) // each call carries its own error
	}
}

func (g *group[In, Out]) try(calls []*call[In, Out]) error {
	ctx, cancel := context.WithTimeout(context.Background(), g.limit)
	defer cancel()
	rows := make([]In, len(calls))
	for i, c := range calls {
		rows[i] = c.in
	}
	outs, err := g.flush(ctx, rows)
	err = translate(err)
	for i, c := range calls {
		c.err = err
		if err == nil {
			c.out = outs[i]
		}
	}
	return err
}
