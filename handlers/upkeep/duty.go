package upkeep

import (
	"context"
	"log/slog"
	"time"
)

// Duty is something that a worker process does again and again beside its runs. Each
// has a goroutine of its own, so one that takes long or fails delays no other.
type Duty struct {
	Name  string
	Every time.Duration // from the end of one round to the next
	Bound time.Duration // of one round; 0: each of its calls has its own
	Do    func(context.Context) error

	AtOnce bool            // the first round begins at the start
	Retry  time.Duration   // the pause after a round that failed; 0: Every
	Until  <-chan struct{} // when this is closed it ends too; nil: with its context
}

// Run does the duty until ctx ends, and logs what goes wrong.
func (d Duty) Run(ctx context.Context, log *slog.Logger) {
	pause := d.Every
	if d.AtOnce {
		pause = d.round(ctx, log)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.Until:
			return
		case <-timer.C:
		}
		timer.Reset(d.round(ctx, log))
	}
}

// round does the duty once and returns how long to pause after it.
func (d Duty) round(parent context.Context, log *slog.Logger) time.Duration {
	ctx := parent
	if d.Bound > 0 {
		bounded, cancel := context.WithTimeout(parent, d.Bound)
		defer cancel()
		ctx = bounded
	}
	err := d.Do(ctx)
	if err != nil && parent.Err() == nil {
		log.Warn("upkeep of a worker process failed", "duty", d.Name, "err", err)
		if d.Retry > 0 {
			return d.Retry
		}
	}
	return d.Every
}
