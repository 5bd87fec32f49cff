package process

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func TestGCPercentFollowsWhatIsLive(t *testing.T) {
	for live, want := range map[uint64]int{0: 800, 6 << 20: 800, 7 << 20: 400, 24 << 20: 200, 100 << 20: 25, 4 << 30: 25} {
		if percent := gcPercent(live); percent != want {
			t.Errorf("with %d bytes live the percent is %d, not %d", live, percent, want)
		}
	}
}

func TestTuneGCAfterEachCollection(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	stop := TuneGC()
	defer stop()
	percent := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	if percent() <= leastGC {
		t.Fatalf("an almost empty process has a percent of %d", percent())
	}
	ballast := make([][]byte, 200)
	for i := range ballast {
		ballast[i] = make([]byte, 1<<20)
	}
	runtime.GC()
	for percent() != leastGC { // it is set after the collection
		runtime.Gosched()
	}
	runtime.KeepAlive(ballast)
	clear(ballast)
	runtime.GC()
	for percent() <= leastGC {
		runtime.Gosched()
	}
}
