package upkeep

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

// batchPause is how long a batch is left alone after a look at it, so that much
// that ends together is looked at once.
const batchPause = 20 * time.Millisecond

// Batches are the batches of which a unit has ended here. Further units of them may
// be admitted.
type Batches struct {
	store *store.Store
	queue *queue.Client
	log   *slog.Logger

	mu      sync.Mutex
	dirty   map[uuid.UUID]bool
	changed Signal
}

// NewBatches returns Batches of which none has changed.
func NewBatches(s *store.Store, q *queue.Client, log *slog.Logger) *Batches {
	return &Batches{store: s, queue: q, log: log, dirty: map[uuid.UUID]bool{}, changed: NewSignal()}
}

// Changed notes that a unit of a batch has ended.
func (b *Batches) Changed(batch uuid.UUID) {
	b.mu.Lock()
	b.dirty[batch] = true
	b.mu.Unlock()
	b.changed.Send()
}

func (b *Batches) take() map[uuid.UUID]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	dirty := b.dirty
	b.dirty = map[uuid.UUID]bool{}
	return dirty
}

// Advance admits further units of batches when some have ended here.
// Whatever it misses the reconciler finds a second later.
func (b *Batches) Advance(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.changed:
		}
		begun := time.Now()
		for id := range b.take() {
			if err := jobs.AdvanceBatch(ctx, b.store, b.queue, b.log, id); err != nil {
				b.log.Debug("advance a batch", "batch", id, "err", err)
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
