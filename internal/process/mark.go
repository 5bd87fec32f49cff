package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// markName is the variable that every descendant of a child inherits, unless
// it clears its environment on purpose.
const markName = "PIECEWORK_MARK"

// NewMark returns the mark of one run's child: the run, and the worker process
// that must be alive for the child to have a reason to live.
func NewMark(run string) string {
	pid := os.Getpid()
	return fmt.Sprintf("%s@%d-%s", run, pid, startOf(pid))
}

// owner reads the worker process out of a mark.
func owner(mark string) (pid int, start string, ok bool) {
	_, worker, ok := strings.Cut(mark, "@")
	if !ok {
		return 0, "", false
	}
	number, start, ok := strings.Cut(worker, "-")
	pid, err := strconv.Atoi(number)
	return pid, start, ok && err == nil && pid > 0 && start != ""
}

// orphaned tells whether the worker process that a mark names is gone. A
// process whose mark is not ours to read is left alone.
func orphaned(mark string) bool {
	pid, start, ok := owner(mark)
	return ok && startOf(pid) != start
}

// markIn finds the mark in an environment of NUL-ended NAME=VALUE strings.
func markIn(environ []byte) string {
	for entry := range strings.SplitSeq(string(environ), "\x00") {
		if value, ok := strings.CutPrefix(entry, markName+"="); ok {
			return value
		}
	}
	return ""
}
