package upkeep

import (
	"log/slog"
	"maps"
	"sync"

	"piecework/store"
)

// Pauses are the queues and backends that operators have paused.
type Pauses struct {
	Health *Health
	WakeUp Signal
	Log    *slog.Logger

	mu     sync.Mutex
	paused map[pause]bool
}

type pause struct {
	kind store.PauseKind
	name string
}

// apply takes in what operators have paused and resumed. Postgres would give
// no unit of it away in any case; this keeps its messages in Redis.
func (p *Pauses) apply(pauses []store.Pause) {
	now, again := map[pause]bool{}, false
	for _, one := range pauses {
		if one.Since != nil {
			now[pause{one.Kind, one.Name}] = true
		}
		if b := p.Health.Of(one.Name); one.Kind == store.PauseBackend && one.ResumedAt != nil && b != nil && b.resume(*one.ResumedAt) {
			p.Log.Warn("backend goes on: an operator says so", "backend", one.Name)
			again = true
		}
	}
	p.mu.Lock()
	changed := !maps.Equal(now, p.paused)
	p.paused = now
	p.mu.Unlock()
	if changed {
		p.Log.Info("operators have paused or resumed", "paused", len(now))
	}
	if changed || again {
		p.WakeUp.Send()
	}
}

// Hold tells whether units of a queue or of a backend are paused.
func (p *Pauses) Hold(queue, backend string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.paused[pause{store.PauseQueue, queue}] || p.paused[pause{store.PauseBackend, backend}]
}
