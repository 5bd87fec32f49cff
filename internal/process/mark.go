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
	return fmt.Sprintf("%s@%s@%d-%s", run, pidNamespace(), pid, startOf(pid))
}

// orphaned tells whether the worker process that a mark names is gone. A
// process whose mark is not ours to read is left alone: the same pid means
// another process in another container.
func orphaned(mark string) bool {
	_, worker, ok := strings.Cut(mark, "@")
	namespace, who, ok2 := strings.Cut(worker, "@")
	return ok && ok2 && namespace == pidNamespace() && gone(who)
}

// gone tells whether no process has this pid and start.
func gone(who string) bool {
	number, start, ok := strings.Cut(who, "-")
	pid, err := strconv.Atoi(number)
	return ok && err == nil && pid > 0 && start != "" && startOf(pid) != start
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
