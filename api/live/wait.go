package live

import (
	"sync"

	"github.com/google/uuid"
)

// watchers are the requests that wait for units to change.
type watchers struct {
	mu   sync.Mutex
	unit map[uuid.UUID]map[chan struct{}]bool
}

// Watch returns a channel that gets a value after each change, and the
// function to call when nobody listens any more.
func (w *watchers) Watch(id uuid.UUID) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unit == nil {
		w.unit = map[uuid.UUID]map[chan struct{}]bool{}
	}
	if w.unit[id] == nil {
		w.unit[id] = map[chan struct{}]bool{}
	}
	w.unit[id][c] = true
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.unit[id], c); len(w.unit[id]) == 0 {
			delete(w.unit, id)
		}
	}
}

// wakeWaiting wakes the requests that wait for a unit.
func (w *watchers) wakeWaiting(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.unit[id] {
		select {
		case c <- struct{}{}:
		default: // it has a change to look at already
		}
	}
}

// Watched reports whether a request waits for a unit to change.
func (w *watchers) Watched(id uuid.UUID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.unit[id]) > 0
}
