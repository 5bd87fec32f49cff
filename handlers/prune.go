package handlers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// keepDirectories is how long a unit's directory stays after its last change:
// output files and sessions are in it.
const keepDirectories = 7 * 24 * time.Hour

// keepSetAside is how long files of the spool stay that no ledger takes: for
// people to look at.
const keepSetAside = 30 * 24 * time.Hour

// pruneEvery is how often old directories are looked for.
const pruneEvery = time.Hour

// prune removes directories of units that nobody has touched for a week, and of
// units that are not in the ledger any more; and files of the spool that were set
// aside a month ago.
func (w *Worker) prune(ctx context.Context) {
	ticker := time.NewTicker(pruneEvery)
	defer ticker.Stop()
	for {
		w.pruneOnce(ctx, time.Now().Add(-keepDirectories))
		w.pruneSpool(time.Now().Add(-keepSetAside))
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (w *Worker) pruneOnce(ctx context.Context, before time.Time) {
	dirs, err := w.unitDirectories()
	if err != nil {
		w.Log.Warn("look for old directories", "err", err)
		return
	}
	_, gone, err := w.Store.Retention.Leftover(ctx, idsOf(dirs))
	if err != nil {
		w.Log.Warn("look for units of directories", "err", err)
	}
	for _, d := range dirs {
		if d.changed.Before(before) || gone[d.unit] && d.changed.Before(time.Now().Add(-pruneEvery)) {
			w.removeDirectory(d, "old")
		}
	}
}

// pruneSpool removes what was set aside before that time. Ends of runs that wait
// for the ledger stay, however old they are.
func (w *Worker) pruneSpool(before time.Time) {
	entries, err := os.ReadDir(w.spoolDir())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			w.Log.Warn("look for old files of the spool", "err", err)
		}
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || strings.HasSuffix(e.Name(), spoolEnd) || info.ModTime().After(before) {
			continue
		}
		if err := os.Remove(filepath.Join(w.spoolDir(), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.Log.Warn("remove an old file of the spool", "file", e.Name(), "err", err)
		}
	}
}

// directory is what a unit has on this disk.
type directory struct {
	path    string
	unit    uuid.UUID // uuid.Nil: of none
	changed time.Time
}

func idsOf(dirs []directory) []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(dirs))
	for _, d := range dirs {
		if d.unit != uuid.Nil { // what is of no unit is not missed in the ledger
			ids = append(ids, d.unit)
		}
	}
	return ids
}

// unitDirectories are those of all units, the one that was changed first at the
// front.
func (w *Worker) unitDirectories() ([]directory, error) {
	entries, err := os.ReadDir(w.unitsDir())
	if err != nil {
		return nil, err
	}
	dirs := make([]directory, 0, len(entries))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // it has gone
		}
		id, _ := uuid.Parse(e.Name())
		dirs = append(dirs, directory{path: filepath.Join(w.unitsDir(), e.Name()), unit: id, changed: info.ModTime()})
	}
	slices.SortFunc(dirs, func(a, b directory) int { return a.changed.Compare(b.changed) })
	return dirs, nil
}

func (w *Worker) removeDirectory(d directory, why string) bool {
	if err := os.RemoveAll(d.path); err != nil {
		w.Log.Warn("remove a directory", "directory", d.path, "err", err)
		return false
	}
	w.metrics.directories.WithLabelValues(why).Inc()
	return true
}
