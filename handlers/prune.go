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

// prune removes directories of units that nobody has touched for a week, bytes
// that no file stands for, files whose time is over, deleted batches, results that
// are too old to be taken over, and deliveries that were settled long ago.
func (w *Worker) prune(ctx context.Context) {
	ticker := time.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		w.pruneOnce(time.Now().Add(-keepDirectories))
		if err := w.Store.ExpireFiles(ctx); err != nil {
			w.Log.Warn("look for files whose time is over", "err", err)
		}
		if err := w.Store.PurgeBatches(ctx); err != nil {
			w.Log.Warn("remove deleted batches", "err", err)
		}
		w.sweepBlobs(ctx)
		if err := w.Store.PruneCache(ctx); err != nil {
			w.Log.Warn("forget old results", "err", err)
		}
		w.pruneDeliveries(ctx, time.Now().Add(-keepDeliveries))
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

// sweepAtOnce is how many blobs are removed between two looks at the ledger.
const sweepAtOnce = 100

// sweepBlobs removes what uploads and runs that died left in the file store,
// and what could not be removed when its file was deleted. Several processes
// at it do no harm.
func (w *Worker) sweepBlobs(ctx context.Context) {
	for ctx.Err() == nil {
		ids, err := w.Store.StrayBlobs(ctx, sweepAtOnce)
		if err != nil {
			w.Log.Warn("look for stray blobs", "err", err)
			return
		}
		for i, id := range ids {
			if err := w.Files.Delete(ctx, id); err != nil {
				w.Log.Warn("remove stray blob; the next round tries again", "file", id, "err", err)
				ids = ids[:i]
				break
			}
		}
		if len(ids) == 0 {
			return
		}
		if err := w.Store.BlobsGone(ctx, ids); err != nil {
			w.Log.Warn("forget stray blobs", "err", err)
			return
		}
	}
}
