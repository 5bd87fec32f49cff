package handlers

import (
	"maps"
	"time"

	"piecework/store"
)

// held names a queue or a backend that an operator has paused.
type held struct {
	kind store.PauseKind
	name string
}

// heed takes in what operators have paused and resumed. The ledger would give
// no unit of it away in any case; this keeps its bells in Redis.
func (w *Worker) heed(pauses []store.Pause) {
	now, opened := map[held]bool{}, false
	for _, p := range pauses {
		if p.Since != nil {
			now[held{p.Kind, p.Name}] = true
		}
		if l := w.lane(p.Name); p.Kind == store.PauseBackend && p.ResumedAt != nil && l != nil && l.resume(*p.ResumedAt) {
			w.Log.Warn("backend goes on: an operator says so", "backend", p.Name)
			opened = true
		}
	}
	w.mu.Lock()
	changed := !maps.Equal(now, w.held)
	w.held = now
	w.mu.Unlock()
	if changed {
		w.Log.Info("operators have paused or resumed", "paused", len(now))
	}
	if changed || opened {
		w.wake()
	}
}

func (w *Worker) holds(queue, backend string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held[held{store.PauseQueue, queue}] || w.held[held{store.PauseBackend, backend}]
}

// laneWait tells how long until a unit of a queue and a backend may begin here.
func (w *Worker) laneWait(queue, backend string) time.Duration {
	l := w.lane(backend)
	if l == nil || w.secluded.Load() || w.holds(queue, backend) || w.cutOff() || w.full() {
		return never
	}
	return l.wait()
}
