package handlers

import (
	"context"
	"fmt"
	"regexp"
	"syscall"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// shortage is why a run failed that its worker process lacked something for. It
// uses up no retry of the unit.
type shortage struct {
	what string
	mend string // what the operator can do
}

func (s *shortage) Error() string { return s.what }

var (
	errDiskFull = &shortage{"the disk of the worker process is full", "free some space"}
	errNoFiles  = &shortage{"the worker process has too many files open", "raise its limit (ulimit -n) or lower --concurrency"}
)

const (
	leastRoom = 1 << 20 // bytes that must be free for a run to begin
	// shortRoom is below which directories of units that are over are removed: of
	// a small disk a twentieth.
	shortRoom = 64 << 20
	// diskTold is how often the log says that the disk is still full.
	diskTold      = 10 * time.Minute
	shortagePause = 5 * time.Second
	// maxShortageLosses: a unit with more losses than this pays for a shortage
	// with a retry. It may be what causes it.
	maxShortageLosses = 10
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
			if err := w.Store.Processes.Block(ctx, w.id, why); err != nil {
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
	over, gone, err := w.Store.Retention.Leftover(ctx, idsOf(dirs))
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

// tooManyFiles matches what the kernel says of the limits of a process and of the
// machine.
var tooManyFiles = regexp.MustCompile(`(?i)too many open files|EMFILE|ENFILE`)

// lacked returns what a failed run lacked: it said so, or it broke off while the
// disk is full. It returns nil when the worker process is not at fault.
func (w *Worker) lacked(r backend.Result) error {
	if r.Success || r.Error == nil || r.Error.Class != work.ClassInfra && r.Error.Class != work.ClassCrash {
		return nil
	}
	switch {
	case r.Error.Class == work.ClassInfra && tooManyFiles.MatchString(r.Error.Message): // an agent's own limit is not ours
		return errNoFiles
	case noRoom.MatchString(r.Error.Message) || w.full():
		return errDiskFull
	}
	return nil
}
