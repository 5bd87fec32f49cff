package testkit

import (
	"runtime"
	"testing"
)

// Allocated runs f and returns how many bytes it allocated, garbage included. The
// test must not be parallel: the count is the whole process's. Under the race
// detector it is 0: there it would say nothing of the program.
func Allocated(t testing.TB, f func()) int64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if raced {
		return 0
	}
	return int64(after.TotalAlloc - before.TotalAlloc)
}
