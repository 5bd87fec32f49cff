package live

import (
	"testing"

	"github.com/google/uuid"
)

func TestBatchesThatChanged(t *testing.T) {
	t.Parallel()
	var n batchTopic
	first, second := uuid.New(), uuid.New()
	one, all := &batchReader{reader: newReader[struct{}](newWake()), batch: first}, &batchReader{reader: newReader[struct{}](newWake())}
	n.follow(one)
	n.follow(all)
	for i, look := range []struct {
		heads    map[uuid.UUID]string
		one, all int
	}{
		{map[uuid.UUID]string{first: "1", second: "1"}, 1, 1}, // what was before nobody knows
		{map[uuid.UUID]string{first: "1", second: "1"}, 0, 0},
		{map[uuid.UUID]string{first: "1", second: "2"}, 0, 1},
		{map[uuid.UUID]string{first: "3", second: "2"}, 1, 1},
		{map[uuid.UUID]string{first: "3"}, 0, 0},
		{map[uuid.UUID]string{first: "3", second: "2"}, 0, 1},
	} {
		n.publish(look.heads)
		sent, _, _ := one.next()
		sentAll, _, _ := all.next()
		if len(sent) != look.one || len(sentAll) != look.all {
			t.Errorf("look %d: %d and %d", i, len(sent), len(sentAll))
		}
	}
	n.leave(one)
	if !n.followed() {
		t.Error("one is left")
	}
	n.leave(all)
	if n.followed() || n.seen != nil {
		t.Error("none is left")
	}
}
