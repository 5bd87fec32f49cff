package handlers

import (
	"context"
	"piecework/jobs"
	"sync"
	"time"

	"github.com/google/uuid"
)

// batchPause is how long a batch is left alone after a look at it, so that much
// that ends together is looked at once.
const batchPause = 20 * time.Millisecond

// marks are batches that are to be looked at.
type marks struct {
	mu  sync.Mutex
	ids map[uuid.UUID]bool
	any chan struct{} // has one when there are some
}

func newMarks() *marks { return &marks{ids: map[uuid.UUID]bool{}, any: make(chan struct{}, 1)} }

func (m *marks) mark(id uuid.UUID) {
	m.mu.Lock()
	m.ids[id] = true
	m.mu.Unlock()
	select {
	case m.any <- struct{}{}:
	default:
	}
}

func (m *marks) take() map[uuid.UUID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids := m.ids
	m.ids = map[uuid.UUID]bool{}
	return ids
}

// advanceBatches lets further units of batches go when some have ended here.
// Whatever it misses the reconciler finds a second later.
func (w *Worker) advanceBatches(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.batches.any:
		}
		begun := time.Now()
		for id := range w.batches.take() {
			if err := jobs.AdvanceBatch(ctx, w.Store, w.Queue, w.Log, id); err != nil {
				w.Log.Debug("advance a batch", "batch", id, "err", err)
			}
		}
		// A batch that takes long to look at, as one with a budget and many units
		// does, must not keep Postgres busy.
		select {
		case <-ctx.Done():
			return
		case <-time.After(batchPause + 5*time.Since(begun)):
		}
	}
}
