package handlers

import (
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
	leastRoom     = 1 << 20 // bytes that must be free for a run to begin
	shortagePause = 5 * time.Second
	// maxShortageLosses: a unit with more losses than this pays for a shortage
	// with a retry. It may be what causes it.
	maxShortageLosses = 10
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
