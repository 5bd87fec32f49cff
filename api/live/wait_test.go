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
	w.notify(id)
	w.notify(id) // a reader that has not looked yet is not waited for
	w.notify(uuid.New())
	<-first
	<-second
	forgetFirst()
	w.notify(id)
	<-second
	forgetSecond()
	if len(w.unit) != 0 {
		t.Errorf("left: %v", w.unit)
	}
}
