package chaos

import (
	"context"
	"time"
)

// noteStalls notes when the machine stood still for longer than limit: then
// everything on it was frozen, the checker's own clock among it, and no worker
// process could keep its lease.
func noteStalls(ctx context.Context, b *book, limit time.Duration) {
	const step = 50 * time.Millisecond
	for last := time.Now(); ctx.Err() == nil; {
		time.Sleep(step)
		now := time.Now()
		if late := now.Round(0).Sub(last.Round(0)) - step; late > limit { // by the wall: a frozen machine's other clock may stop
			b.write(Event{Kind: KindStall, At: last, Seconds: late.Seconds()})
		}
		last = now
	}
}
