package handlers

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// keepDirectories is how long a unit's directory stays after its last change:
// output files and sessions are in it.
const keepDirectories = 7 * 24 * time.Hour

// prune removes directories of units that nobody has touched for a week.
func (w *Worker) prune(ctx context.Context) {
	ticker := time.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		w.pruneOnce(time.Now().Add(-keepDirectories))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (w *Worker) pruneOnce(before time.Time) {
	entries, err := os.ReadDir(w.unitsDir())
	if err != nil {
		w.Log.Warn("look for old directories", "err", err)
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.ModTime().After(before) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(w.unitsDir(), e.Name())); err != nil {
			w.Log.Warn("remove old directory", "err", err)
		}
	}
}
