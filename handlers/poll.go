package handlers

import (
	"context"
	"sync"
	"time"
)

const (
	pollEvery = time.Second
	// pollGap is kept between two looks for work: slots that become free
	// together are filled by one.
	pollGap = 50 * time.Millisecond
)

// poll claims units straight from Postgres while Redis is away: once a second,
// and when a slot that was filled so is free again. A check each second brings the
// cancels and pauses that no notice can bring.
func (w *Worker) poll(ctx context.Context) {
	var runs sync.WaitGroup
	defer runs.Wait()
	freed := make(chan struct{}, 1)
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.drain.Done():
			return
		case <-ticker.C:
			if !w.Queue.Up() {
				w.heartbeat.CheckSoon()
			}
		case <-freed:
			time.Sleep(pollGap)
		}
		if !w.Queue.Up() {
			w.claimDue(ctx, &runs, freed)
		}
	}
}

func (w *Worker) claimDue(ctx context.Context, runs *sync.WaitGroup, freed chan<- struct{}) {
	free := cap(w.slots) - len(w.slots)
	if free == 0 {
		return
	}
	due, err := w.Store.Queues.Due(ctx, w.queueNames(), w.health.Ready(), w.health.ShutModels(), free)
	if err != nil {
		w.Log.Warn("look for work without redis", "err", err)
		return
	}
	for _, unit := range due {
		if w.wait(unit.Queue, unit.Backend) > 0 {
			continue
		}
		select {
		case w.slots <- struct{}{}:
		default:
			return
		}
		w.took(unit.Backend)
		runs.Go(func() {
			defer func() {
				<-w.slots
				select {
				case freed <- struct{}{}:
				default:
				}
			}()
			if err := w.runUnit(unit.UnitID); err != nil {
				w.Log.Debug("run without redis", "unit", unit.UnitID, "err", err)
			}
		})
	}
}
