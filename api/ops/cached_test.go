package ops

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What is about few rows is asked each time. What is about many is asked once for all
// readers of some seconds, and again before its time is over.
func TestLately(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var kept cached[int]
		asked, rows, takes, broken := 0, int64(manyRows-1), time.Duration(0), error(nil)
		read := func() (int, time.Duration) {
			t.Helper()
			begun := time.Now()
			value, err := kept.get(t.Context(), func(context.Context) (int, int64, error) {
				asked++
				value := asked
				time.Sleep(takes)
				return value, rows, broken
			})
			if !errors.Is(err, broken) {
				t.Fatal(err)
			}
			return value, time.Since(begun)
		}
		want := func(what string, value int, waited time.Duration) {
			t.Helper()
			if got, took := read(); got != value || took != waited {
				t.Errorf("%s: %d after %s, want %d after %s", what, got, took, value, waited)
			}
		}
		want("few rows", 1, 0)
		want("few rows again", 2, 0)
		rows, takes = manyRows, time.Second
		want("many rows", 3, takes)
		want("the next", 3, 0)
		time.Sleep(4500 * time.Millisecond) // it is kept for 10 s
		want("half of its time is over", 3, 0)
		time.Sleep(2 * takes)
		want("it was asked for meanwhile", 4, 0)
		time.Sleep(time.Minute)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { want("after long", 5, takes) })
		}
		all.Wait()
		time.Sleep(time.Minute)
		rows, takes = 10, 0
		want("few rows are left", 7, 0)
		want("which are asked for each time", 8, 0)
		broken = errors.New("broken")
		want("an error", 9, 0)
	})
}
