package web

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/api/web/page"
)

// batchCache has the pages of batches as they were made last. All open pages of
// one ask when it has changed, and counting the units of a large one takes
// long: it is done once a second at most, for all pages of this process.
type batchCache struct {
	mu      sync.Mutex
	batches map[uuid.UUID]*cachedBatch
}

type cachedBatch struct {
	mu    sync.Mutex // held while it is made
	page  page.Batch
	begun time.Time // when it began to be made; zero: it was not
}

const batchFresh = time.Second

// of is the page as it was not long ago, or else as it is made now; its age
// lets a page that knows of a later change ask again.
func (k *batchCache) of(id uuid.UUID, make func() (page.Batch, error)) (page.Batch, error) {
	asked := time.Now()
	b := k.entry(id, asked)
	b.mu.Lock()
	defer b.mu.Unlock()
	if asked.Sub(b.begun) > batchFresh {
		begun := time.Now()
		shown, err := make()
		if err != nil {
			return shown, err
		}
		b.page, b.begun = shown, begun
	}
	shown := b.page
	shown.Now, shown.Age = time.Now(), max(asked.Sub(b.begun), 0)
	return shown, nil
}

// entry finds a batch's entry, or makes one and forgets those that are too old.
func (k *batchCache) entry(id uuid.UUID, now time.Time) *cachedBatch {
	k.mu.Lock()
	defer k.mu.Unlock()
	if b := k.batches[id]; b != nil {
		return b
	}
	for id, b := range k.batches {
		if b.mu.TryLock() {
			if now.Sub(b.begun) > batchFresh {
				delete(k.batches, id)
			}
			b.mu.Unlock()
		}
	}
	if k.batches == nil {
		k.batches = map[uuid.UUID]*cachedBatch{}
	}
	b := &cachedBatch{}
	k.batches[id] = b
	return b
}

// drop forgets a batch that was changed here.
func (k *batchCache) drop(id uuid.UUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.batches, id)
}
