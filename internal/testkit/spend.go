package testkit

import (
	"runtime"
	"testing"
)

// Allocated runs f and returns how many bytes it allocated, garbage included. The
// test must not be parallel: the count is the whole process's.
func Allocated(t testing.TB, f func()) int64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}
