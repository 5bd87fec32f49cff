package upkeep

import (
	"context"
	"errors"
	"sync"
	"time"

	"piecework/internal/work"
)

// extraGrace is how long the end of a run may take to reach Postgres after the grace
// period. Then the spool has it.
const extraGrace = 3 * time.Second

// Drain is the end of a worker process: it takes no new unit, and what is under way
// gets a grace period.
type Drain struct {
	Grace time.Duration

	ctx   context.Context
	start context.CancelCauseFunc
	mu    sync.Mutex
	begun time.Time
}

// NewDrain returns a drain that has not begun.
func NewDrain(grace time.Duration) *Drain {
	d := &Drain{Grace: grace}
	d.ctx, d.start = context.WithCancelCause(context.Background())
	return d
}

// Begin begins the drain.
func (d *Drain) Begin(why error) {
	d.mu.Lock()
	d.begun = time.Now()
	d.mu.Unlock()
	d.start(why)
}

// Done is closed when the drain begins.
func (d *Drain) Done() <-chan struct{} { return d.ctx.Done() }

// Begun tells whether the drain has begun.
func (d *Drain) Begun() bool { return d.ctx.Err() != nil }

// Shorten calls cancel that long after the drain began. The function it returns takes
// that back.
func (d *Drain) Shorten(after time.Duration, cancel func()) (stop func() bool) {
	return context.AfterFunc(d.ctx, func() { time.AfterFunc(after, cancel) })
}

// Bound calls cancel when the grace period and a little more have passed since
// the drain began, at once when there is nothing to wait for. The function it returns
// takes that back.
func (d *Drain) Bound(cancel func()) (stop func() bool) {
	return context.AfterFunc(d.ctx, func() {
		if errors.Is(context.Cause(d.ctx), work.ErrLedgerGone) {
			cancel() // what has ended is on disk, or will be
			return
		}
		d.mu.Lock()
		passed := time.Since(d.begun)
		d.mu.Unlock()
		time.AfterFunc(d.Grace+extraGrace-passed, cancel)
	})
}
