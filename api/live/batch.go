package live

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// batchTopic notifies pages that the row of a batch has changed: it has another
// status, is paused, or has let units go. It looks on the hub's timer, for one
// batch or a thousand with one statement.
type batchTopic struct {
	mu      sync.Mutex
	readers map[*batchReader]bool
	seen    map[uuid.UUID]string // heads; nil: nobody followed
}

// batchReader follows one batch, or all of them.
type batchReader struct {
	reader[struct{}]
	batch uuid.UUID // Nil: all
}

// allBatches is how a page asks for all of them.
const allBatches = "all"

func (n *batchTopic) follow(r *batchReader) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.readers == nil {
		n.readers = map[*batchReader]bool{}
	}
	n.readers[r] = true
}

func (n *batchTopic) leave(r *batchReader) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.readers, r)
	if len(n.readers) == 0 {
		n.seen = nil
	}
}

func (n *batchTopic) followed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.readers) > 0
}

// lookAtBatches publishes the batches that have changed since the last look.
func (h *Hub) lookAtBatches(ctx context.Context) error {
	if !h.batches.followed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	h.reads.Inc()
	heads, err := h.store.Batches.Heads(ctx)
	if err != nil {
		return err
	}
	h.batches.publish(heads)
	return nil
}

func (n *batchTopic) publish(heads map[uuid.UUID]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed := map[uuid.UUID]bool{}
	for id, head := range heads {
		if n.seen[id] != head {
			changed[id] = true
		}
	}
	n.seen = heads
	if len(changed) == 0 {
		return
	}
	event := bundle[struct{}]{data: []byte("event: " + eventBatches + "\ndata: {}\n\n")}
	for r := range n.readers {
		if r.batch == uuid.Nil || changed[r.batch] {
			r.push(event) // one that lags has to ask for everything anyway
		}
	}
}
