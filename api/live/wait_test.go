package live

import (
	"testing"

	"github.com/google/uuid"
)

func TestWatchersAreForgotten(t *testing.T) {
	t.Parallel()
	var w watchers
	id := uuid.New()
	first, forgetFirst := w.Watch(id)
	second, forgetSecond := w.Watch(id)
	w.wakeWaiting(id)
	w.wakeWaiting(id) // a reader that has not looked yet is not waited for
	w.wakeWaiting(uuid.New())
	<-first
	<-second
	forgetFirst()
	w.wakeWaiting(id)
	<-second
	forgetSecond()
	if len(w.unit) != 0 {
		t.Errorf("left: %v", w.unit)
	}
}
