package api

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// waitFor is how long an answer may be held.
type waitFor time.Duration

// longest is the longest hold; proxies in between rarely allow more.
const longest = work.Seconds(300)

func parseWait(text string) (waitFor, error) {
	if text == "" {
		return 0, nil
	}
	s, err := work.ParseSeconds(text)
	if err != nil || !(s >= 0) { // NaN is neither
		return 0, badParameter("wait", "write a length of time such as 30s")
	}
	return waitFor(min(s, longest).Duration()), nil
}

// await reads a unit, and while it is not final and wait lasts, reads it again
// whenever it changes. Redis only makes this fast: without a notice it looks
// again by itself.
func (a *API) await(ctx context.Context, id uuid.UUID, wait waitFor) (unitView, error) {
	if wait == 0 {
		return a.viewUnit(ctx, id)
	}
	holdAnswer(ctx)
	changed, forget := a.watchers.watch(id)
	defer forget()
	deadline := time.NewTimer(time.Duration(wait))
	defer deadline.Stop()
	look := time.NewTicker(a.lookAgain)
	defer look.Stop()
	for {
		state, err := a.Store.Units.State(ctx, work.DefaultTenant, id)
		if err != nil {
			return unitView{}, err
		}
		if state.Final() {
			return a.viewUnit(ctx, id)
		}
		select {
		case <-changed:
		case <-look.C:
		case <-deadline.C:
			return a.viewUnit(ctx, id)
		case <-ctx.Done():
			return unitView{}, ctx.Err()
		}
	}
}

// watchers are the requests that wait for units to change.
type watchers struct {
	mu   sync.Mutex
	unit map[uuid.UUID]map[chan struct{}]bool
}

func newWatchers() *watchers { return &watchers{unit: map[uuid.UUID]map[chan struct{}]bool{}} }

// watch returns a channel that gets a value after each change, and the
// function to call when nobody listens any more.
func (w *watchers) watch(id uuid.UUID) (<-chan struct{}, func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
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

func (w *watchers) tell(id uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.unit[id] {
		select {
		case c <- struct{}{}:
		default: // it has a change to look at already
		}
	}
}
