package process

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// Garbage may take garbageRoom whatever is live, and leastGC percent of what is
// live when that is more. Thousands of units in flight, or of open event streams,
// mostly wait: they have more time than memory to spare. A process with little in
// it has the memory, and would spend a quarter of its time collecting.
const (
	garbageRoom = 48 << 20
	leastGC     = 25
	mostGC      = 800
)

// TuneGC sets Go's GC percent after each collection by how much memory is live.
// It returns what ends that and leaves the percent as it is.
func TuneGC() (stop func()) {
	var stopped atomic.Bool
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := 0
	var afterCollection func(struct{})
	arm := func() {
		// The next collection finds that nobody has this, and calls back.
		runtime.AddCleanup(new(*byte), afterCollection, struct{}{})
	}
	afterCollection = func(struct{}) {
		if stopped.Load() {
			return
		}
		metrics.Read(live)
		if percent := gcPercent(live[0].Value.Uint64()); percent != now {
			now = percent
			debug.SetGCPercent(percent)
		}
		arm()
	}
	afterCollection(struct{}{})
	return func() { stopped.Store(true) }
}

// gcPercent is in steps, for each change stops the program for a moment.
func gcPercent(live uint64) int {
	for percent := mostGC; percent > leastGC; percent /= 2 {
		if live*uint64(percent) <= garbageRoom*100 {
			return percent
		}
	}
	return leastGC
}
