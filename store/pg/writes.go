package pg

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"piecework/internal/work"
)

// overdue is how long a write may take before Postgres counts as away.
const overdue = 3 * time.Second

// Writes knows how the last write ended, and which are under way.
type Writes struct {
	pulse *pulse

	mu     sync.Mutex
	number int
	open   map[int]time.Time // by when the writes under way should have come back
	newest int               // the last write whose outcome is known
	failed error             // Postgres did not take it; nil: it did
}

func newWrites(p *pulse) *Writes { return &Writes{pulse: p, open: map[int]time.Time{}} }

// Begin notes that a write begins which may take that long, and returns what
// takes in its end. Postgres counts as away before the time is over.
func (w *Writes) Begin(limit time.Duration) (end func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.number++
	number := w.number
	w.open[number] = time.Now().Add(min(overdue, limit*3/4))
	return func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, number)
		if number < w.newest {
			return
		}
		w.newest, w.failed = number, nil
		if errors.As(err, new(*work.Unavailable)) {
			w.failed = err
		}
		w.pulse.away.Store(unanswered(w.failed))
	}
}

// Trouble tells why writes do not come back, nil when they do.
func (w *Writes) Trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, due := range w.open {
		if late := time.Since(due); late > 0 {
			return &work.Unavailable{What: "postgres", RetryAfter: 2 * time.Second,
				Err: fmt.Errorf("the answer to a write is late by %s", late.Round(100*time.Millisecond))}
		}
	}
	return w.failed
}
