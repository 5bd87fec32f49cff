package upkeep

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

const (
	// probeTimeout is how long a backend may take to say whether it is there.
	probeTimeout = 20 * time.Second
	// startTimeout is how long the start of a worker process waits for that.
	startTimeout = 150 * time.Millisecond
	// notProbed is why a unit cannot begin before its backend has said so.
	notProbed = "not looked at yet"
	// probeAll is how many rounds of probes go by until one is of every backend. The
	// rest are of those that were not there or have failed: to start a program only
	// to ask whether it starts is not free.
	probeAll = 10
)

// Health is what a worker process knows of its backends.
type Health struct {
	breakers []*Breaker
	wakeUp   Signal
	log      *slog.Logger
	rounds   int
}

// NewHealth returns the health of backends. None was probed yet. wakeUp ends the wait
// for work when a backend can be used again.
func NewHealth(backends []backend.Backend, wakeUp Signal, log *slog.Logger) *Health {
	h := &Health{wakeUp: wakeUp, log: log}
	for _, b := range backends {
		h.breakers = append(h.breakers, NewBreaker(b))
	}
	return h
}

// FirstProbe probes all backends. It returns when each has said whether it is
// there, or after startTimeout: one agent takes seconds to tell its version, and
// the others need not wait for it. Then late is closed when all have.
func (h *Health) FirstProbe(ctx context.Context, loops *sync.WaitGroup) (late <-chan struct{}) {
	done := make(chan struct{})
	loops.Go(func() {
		defer close(done)
		h.probe(ctx, everyBackend)
	})
	select {
	case <-done:
		return nil
	case <-time.After(startTimeout):
		return done
	}
}

// Probe is one round: a program is installed, a key is set, a server comes back.
// The next heartbeat tells Postgres.
func (h *Health) Probe(ctx context.Context) error {
	which := (*Breaker).needsProbe
	if h.rounds++; h.rounds%probeAll == 0 {
		which = everyBackend
	}
	h.probe(ctx, which)
	return nil
}

// ProbeAll probes all backends.
func (h *Health) ProbeAll(ctx context.Context) { h.probe(ctx, everyBackend) }

func everyBackend(*Breaker) bool { return true }

// probe probes some backends at once and notes in their breakers whether they
// can run here. A change ends the wait for work.
func (h *Health) probe(ctx context.Context, which func(*Breaker) bool) {
	var probes sync.WaitGroup
	for _, b := range h.breakers {
		if !which(b) {
			continue
		}
		probes.Go(func() {
			missing, version := probe(ctx, b.Backend)
			if ctx.Err() != nil {
				return // a probe that was broken off has seen nothing
			}
			if !b.Probed(missing, version) {
				return
			}
			h.wakeUp.Send()
			if missing != "" {
				h.log.Info("backend not available", "backend", b.Backend.Name(), "reason", missing)
			}
		})
	}
	probes.Wait()
}

func probe(ctx context.Context, b backend.Backend) (missing, version string) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := b.Available(ctx)
	if err != nil {
		return err.Error(), ""
	}
	return "", version
}

// Of is the breaker of a backend, nil when this process does not have it.
func (h *Health) Of(name string) *Breaker {
	for _, b := range h.breakers {
		if b.Backend.Name() == name {
			return b
		}
	}
	return nil
}

// names lists the backends that satisfy which.
func (h *Health) names(which func(*Breaker) bool) []string {
	var names []string
	for _, b := range h.breakers {
		if which(b) {
			names = append(names, b.Backend.Name())
		}
	}
	slices.Sort(names)
	return names
}

// All lists the backends of this process.
func (h *Health) All() []string { return h.names(everyBackend) }

// Available lists the backends that can run here, paused ones among them.
func (h *Health) Available() []string {
	return h.names(func(b *Breaker) bool { return b.Offer().Available })
}

// Ready lists the backends that a unit may begin on now.
func (h *Health) Ready() []string {
	return h.names(func(b *Breaker) bool { return b.Wait() == 0 })
}

// Offers is what others may know of the backends.
func (h *Health) Offers() []work.Offer {
	offers := make([]work.Offer, 0, len(h.breakers))
	for _, b := range h.breakers {
		offers = append(offers, b.Offer())
	}
	return offers
}

// Limited tells whether any model of any backend has met a rate limit.
func (h *Health) Limited() bool { return slices.ContainsFunc(h.breakers, (*Breaker).Limited) }

// ShutModels lists the models whose units may not begin now.
func (h *Health) ShutModels() []store.ModelOf {
	var shut []store.ModelOf
	for _, b := range h.breakers {
		for _, limit := range b.Offer().Limits {
			if limit.Until != nil {
				shut = append(shut, store.ModelOf{Backend: b.Backend.Name(), Model: limit.Model})
			}
		}
	}
	return shut
}
