package handlers

import (
	"context"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
)

// processesDir is where worker processes that share a data directory show each
// other that they live.
func (w *Worker) processesDir() string { return filepath.Join(w.Data, "processes") }

// watchNeighbours looks at every beat who has died.
func (w *Worker) watchNeighbours(ctx context.Context) {
	ticker := time.NewTicker(w.Beat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := w.buryNeighbours(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("look for dead worker processes", "err", err)
		}
	}
}

// buryNeighbours ends the lease of worker processes that are plainly dead, those
// of this machine and those that shared this data directory, so that their units
// need not wait for it to run out.
func (w *Worker) buryNeighbours(ctx context.Context) error {
	processes, err := w.Store.Processes.List(ctx)
	if err != nil {
		return err
	}
	var dead []uuid.UUID
	for _, p := range processes {
		if p.ID != w.id && process.Dead(p.Identity) {
			dead = append(dead, p.ID)
		}
	}
	unlocked, remove := process.Unlocked(w.processesDir())
	var files []string
	for _, name := range unlocked {
		if id, err := uuid.Parse(name); err == nil {
			dead, files = append(dead, id), append(files, name)
		}
	}
	if len(dead) == 0 {
		return nil
	}
	w.sweep()      // before their units run elsewhere
	w.unspool(ctx) // what they have finished need not
	buried, err := w.Store.Processes.EndDead(ctx, dead)
	if err != nil {
		return err
	}
	if buried > 0 {
		w.Log.Warn("worker processes have died; others take over their units", "count", buried)
	}
	for _, name := range files {
		remove(name)
	}
	return nil
}
