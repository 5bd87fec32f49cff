package handlers

import (
	"errors"
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
	diskPause = 5 * time.Second
	// maxDiskLosses: a unit with more losses than this pays for a full disk with
	// a retry. It may be what fills it.
	maxDiskLosses = 10
)

// diskFull tells whether the data directory has no room for another run.
func diskFull(dir string) bool {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil {
		return false // whoever writes there will say why
	}
	return uint64(fs.Bavail)*uint64(fs.Bsize) < leastRoom || fs.Files > 0 && fs.Ffree == 0
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
