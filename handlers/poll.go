package handlers

import (
	"context"
	"sync"
	"time"
)

// poll claims units straight from the ledger while Redis is away.
func (w *Worker) poll(ctx context.Context) {
	var runs sync.WaitGroup
	defer runs.Wait()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.draining.Done():
			return
		case <-ticker.C:
		}
		if !w.Bell.Up() {
			w.claimDue(ctx, &runs)
		}
	}
}

func (w *Worker) claimDue(ctx context.Context, runs *sync.WaitGroup) {
	free := cap(w.slots) - len(w.slots)
	if free == 0 {
		return
	}
	due, err := w.Store.Due(ctx, w.queueNames(), w.available(), free)
	if err != nil {
		w.Log.Warn("look for work without redis", "err", err)
		return
	}
	for _, unit := range due {
		select {
		case w.slots <- struct{}{}:
		default:
			return
		}
		runs.Go(func() {
			defer func() { <-w.slots }()
			if err := w.runUnit(unit); err != nil {
				w.Log.Debug("run without redis", "unit", unit, "err", err)
			}
		})
	}
}
