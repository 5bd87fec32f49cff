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
	due, err := w.Store.Due(ctx, w.queueNames(), w.open(), free)
	if err != nil {
		w.Log.Warn("look for work without redis", "err", err)
		return
	}
	for _, unit := range due {
		if w.laneWait(unit.Queue, unit.Backend) > 0 {
			continue
		}
		select {
		case w.slots <- struct{}{}:
		default:
			return
		}
		w.laneTook(unit.Backend)
		runs.Go(func() {
			defer func() { <-w.slots }()
			if err := w.runUnit(unit.UnitID); err != nil {
				w.Log.Debug("run without redis", "unit", unit.UnitID, "err", err)
			}
		})
	}
}
