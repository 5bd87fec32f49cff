package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"piecework/store"
)

// pieceRows is how many rows a duty changes in one statement.
const pieceRows = 1000

// duty is one thing that is done again and again. It works in pieces, for as long
// as its budget lasts; what goes wrong with it, and how long it takes, is nothing
// to the others.
type duty struct {
	name   string
	every  time.Duration // 0: in each round
	budget time.Duration
	piece  int // rows: it is worth doing again at once when it changed as many; 0: it is not
	pause  int // between two pieces, as a multiple of what the last has taken
	// needed tells by a look at all duties together whether this one has something to
	// do; nil: it is done in any case.
	needed func(*store.Pending) bool
	// do makes one piece and returns how many rows it changed.
	do func(context.Context) (int, error)

	last time.Time // when it was begun
}

// once makes a piece of a whole.
func once(do func(context.Context) error) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) { return 0, do(ctx) }
}

func (d *duty) due() bool { return d.every == 0 || time.Since(d.last) >= d.every }

// run does the duty once. It returns how many rows it changed. An end of its time
// is no error while pieces of it got through: the next round goes on.
func (d *duty) run(parent context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(parent, d.budget)
	defer cancel()
	d.last = time.Now()
	for {
		begun := time.Now()
		changed, err := d.do(ctx)
		n += changed
		switch {
		case err == nil:
		case parent.Err() != nil:
			return n, context.Cause(parent)
		case ctx.Err() != nil && n > 0:
			return n, nil
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return n, fmt.Errorf("%s: it took longer than %s: %s", d.name, d.budget, err.Error()) // not wrapped: Postgres is there
		default:
			return n, fmt.Errorf("%s: %w", d.name, err)
		}
		if d.piece == 0 || changed < d.piece {
			return n, nil
		}
		select {
		case <-ctx.Done():
			return n, nil
		case <-time.After(time.Duration(d.pause) * time.Since(begun)):
		}
	}
}
