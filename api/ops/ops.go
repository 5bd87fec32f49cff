// Package ops answers what operators ask: why a unit waits, which backends and
// queues run, what happened lately, whether the server is ready. It pauses and
// resumes queues and backends for them.
//
//	ops.go      Operations, which does all of it
//	explain.go  why a unit waits
//	backend.go  which backends can run just now
//	queue.go    what waits and runs in the queues
//	pause.go    pause and resume queues and backends
//	health.go   liveness, readiness
//	stats.go    what happened in an hour, a day, a month
//	cached.go   answers about very many rows, kept for some seconds
package ops

import (
	"log/slog"

	"piecework/internal/process"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// Operations answer what operators ask, and pause and resume for them.
type Operations struct {
	store *store.Store
	bell  *queue.Client
	log   *slog.Logger

	// Containment is how this process holds agents together; empty when it runs
	// none.
	Containment process.Containment

	counted    map[string]*cached[counted] // by the name of the window
	unitCounts cached[unitCounts]          // of all units
}

// New makes them.
func New(s *store.Store, bell *queue.Client, log *slog.Logger, containment process.Containment) *Operations {
	o := &Operations{store: s, bell: bell, log: log, Containment: containment, counted: map[string]*cached[counted]{}}
	for _, w := range work.Windows {
		o.counted[w.Name] = &cached[counted]{}
	}
	return o
}
