package upkeep

import (
	"context"
	"errors"
	"fmt"
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

// keepSetAside is how long files of the spool stay that Postgres does not take: for
// people to look at.
const keepSetAside = 30 * 24 * time.Hour

// PruneEvery is how often old directories are looked for.
const PruneEvery = time.Hour

// Prune removes directories of units that nobody has touched for a week, and of
// units that are not in Postgres any more; and files of the spool that were set
// aside a month ago.
func (d *Disk) Prune(ctx context.Context) error {
	return errors.Join(d.pruneUnits(ctx, time.Now().Add(-keepDirectories)), d.Spool.prune(time.Now().Add(-keepSetAside)))
}

func (d *Disk) pruneUnits(ctx context.Context, before time.Time) error {
	dirs, err := d.directories()
	if err != nil {
		return fmt.Errorf("look for old directories: %w", err)
	}
	_, gone, err := d.Store.Retention.Leftover(ctx, idsOf(dirs))
	if err != nil {
		err = fmt.Errorf("look for units of directories: %w", err)
	}
	for _, dir := range dirs {
		if dir.changed.Before(before) || gone[dir.unit] && dir.changed.Before(time.Now().Add(-PruneEvery)) {
			d.remove(dir, "old")
		}
	}
	return err
}

// prune removes what was set aside before that time. Ends of runs that wait
// for Postgres stay, however old they are.
func (s *Spool) prune(before time.Time) error {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for old files of the spool: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || strings.HasSuffix(e.Name(), spoolEnd) || info.ModTime().After(before) {
			continue
		}
		if err := os.Remove(filepath.Join(s.Dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.Log.Warn("remove an old file of the spool", "file", e.Name(), "err", err)
		}
	}
	return nil
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
		if d.unit != uuid.Nil { // what is of no unit is not missed in Postgres
			ids = append(ids, d.unit)
		}
	}
	return ids
}

// directories are those of all units, the one that was changed first at the
// front.
func (d *Disk) directories() ([]directory, error) {
	entries, err := os.ReadDir(d.Units())
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
		dirs = append(dirs, directory{path: filepath.Join(d.Units(), e.Name()), unit: id, changed: info.ModTime()})
	}
	slices.SortFunc(dirs, func(a, b directory) int { return a.changed.Compare(b.changed) })
	return dirs, nil
}

func (d *Disk) remove(dir directory, why string) bool {
	if err := os.RemoveAll(dir.path); err != nil {
		d.Log.Warn("remove a directory", "directory", dir.path, "err", err)
		return false
	}
	d.removed.WithLabelValues(why).Inc()
	return true
}
