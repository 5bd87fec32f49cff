// Package upkeep is what a worker process does beside its runs: it keeps its lease,
// looks after its peers, its backends and its disk, and brings finished runs,
// provider batches and webhook deliveries to where they belong. Each is a type of
// its own; package handlers makes and starts them.
package upkeep

// Signal wakes up one goroutine that waits for it. While nobody waits one wake-up is
// kept.
type Signal chan struct{}

// NewSignal returns a Signal.
func NewSignal() Signal { return make(Signal, 1) }

// Send wakes up who waits.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}
