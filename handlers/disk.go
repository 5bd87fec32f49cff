package handlers

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"syscall"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// errDiskFull: a run failed because this worker process has no room for it. That
// is no failure of the unit's.
var errDiskFull = errors.New("the disk of the worker process is full")

const (
	leastRoom = 1 << 20 // bytes that must be free for a run to begin
	// shortRoom is below which directories of units that are over are removed: of
	// a small disk a twentieth.
	shortRoom = 64 << 20
	// diskTold is how often the log says that the disk is still full.
	diskTold  = 10 * time.Minute
	diskPause = 5 * time.Second
	// maxDiskLosses: a unit with more losses than this pays for a full disk with
	// a retry. It may be what fills it.
	maxDiskLosses = 10
)

// diskFull tells whether the data directory has no room for another run.
func diskFull(dir string) bool {
	free, _, files, ok := room(dir)
	return ok && (free < leastRoom || !files)
}

// diskShort tells whether room should be made in the data directory.
func diskShort(dir string) bool {
	free, size, files, ok := room(dir)
	return ok && (free < max(leastRoom, min(shortRoom, size/20)) || !files)
}

// room is the free bytes of a directory's disk and its size, and whether it takes
// another file. When it cannot be told, whoever writes there will say why.
func room(dir string) (free, size uint64, files, ok bool) {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil {
		return 0, 0, false, false
	}
	return fs.Bavail * uint64(fs.Bsize), fs.Blocks * uint64(fs.Bsize), fs.Files == 0 || fs.Ffree > 0, true
}

// watchDisk makes room when the disk is short, and tells when there is none: then
// this worker process takes nothing.
func (w *Worker) watchDisk(ctx context.Context) {
	ticker := time.NewTicker(w.diskEvery)
	defer ticker.Stop()
	var told time.Time
	blocked := false
	for {
		w.makeRoom(ctx)
		full := w.full()
		if full && time.Since(told) > diskTold {
			told = time.Now()
			w.Log.Error("DISK FULL: this worker process takes no units until there is room; no directory of a unit that is over is left to remove", "data", w.Data)
		}
		if !full && blocked {
			told = time.Time{}
			w.Log.Warn("there is room again: this worker process takes units", "data", w.Data)
		}
		w.metrics.full.Set(map[bool]float64{true: 1}[full])
		if full != blocked {
			why := ""
			if full {
				why = w.fullDisk()
			}
			if err := w.Store.Block(ctx, w.id, why); err != nil {
				w.Log.Warn("tell the ledger of a full disk", "err", err)
			} else {
				blocked = full
				w.askForNews()
				w.wake()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Blocked says why this worker process takes no units at all; empty: it takes
// them.
func (w *Worker) Blocked() string {
	if w.full() {
		return w.fullDisk()
	}
	return ""
}

// fullDisk says that the disk is full.
func (w *Worker) fullDisk() string {
	return fmt.Sprintf("the disk of %s is full: free some space", w.Data)
}

// makeRoom removes directories of units that are over, and of units that are not
// in the ledger any more, until the disk is not short: those first that nobody has
// touched for the longest. What they left is stored, or was too large for it.
func (w *Worker) makeRoom(ctx context.Context) {
	if !w.short() && !w.full() {
		return
	}
	dirs, err := w.unitDirectories()
	if err != nil {
		w.Log.Warn("the disk is short: look for directories to remove", "err", err)
		return
	}
	over, gone, err := w.Store.Leftover(ctx, idsOf(dirs))
	if err != nil {
		w.Log.Warn("the disk is short: look for units that are over", "err", err)
		return
	}
	removed := 0
	for _, d := range dirs {
		if over[d.unit] || gone[d.unit] {
			if w.removeDirectory(d, "room") {
				removed++
			}
			if !w.short() && !w.full() {
				break
			}
		}
	}
	if removed > 0 {
		w.Log.Warn("the disk was short: removed directories of units that are over", "data", w.Data, "directories", removed)
	}
}

// noRoom matches what programs say on a full disk.
var noRoom = regexp.MustCompile(`(?i)no space left on device|ENOSPC|disk quota exceeded|EDQUOT`)

// outOfDisk tells whether a failed run lacked room: it said so, or it broke off
// and there is none.
func (w *Worker) outOfDisk(r backend.Result) bool {
	if r.Success || r.Error == nil || r.Error.Class != work.ClassInfra && r.Error.Class != work.ClassCrash {
		return false
	}
	return noRoom.MatchString(r.Error.Message) || w.full()
}
