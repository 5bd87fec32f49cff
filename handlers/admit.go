package handlers

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// maxDelayed bounds the units that wait in memory for their place, which is a
// moment ahead; Postgres brings back those beyond it.
const maxDelayed = 1000

// admit tells whether a unit may begin as far as the rate limit of its model is
// concerned. If not, it comes again by itself: in a moment from here, or when
// the reconciler dispatches it anew. No slot and no message waits for it.
func (w *Worker) admit(unit uuid.UUID) (bool, error) {
	if !w.health.Limited() {
		return true, nil // Postgres need not be asked for the model
	}
	if w.isDelayed(unit) {
		return false, nil // it was dispatched twice
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.Lease)
	defer cancel()
	of, err := w.Store.Units.ModelOf(ctx, unit)
	if err != nil {
		return false, err
	}
	b := w.health.Of(of.Backend)
	if b == nil {
		return true, nil // the claim declines it
	}
	at, admitted := b.Admit(of.Model)
	wait := time.Until(at)
	switch {
	case admitted && wait <= 0:
		return true, nil
	case admitted && w.delay(unit, wait):
		return false, nil
	}
	if err := w.Store.Queues.Defer(ctx, unit, w.id, wait); err != nil {
		w.Log.Warn("put off a unit whose model is shut; it is dispatched anew within a minute", "unit", unit, "err", err)
		return false, err
	}
	return false, nil
}

// delay runs a unit that has been admitted a moment later, and tells whether
// there was room for it.
func (w *Worker) delay(unit uuid.UUID, wait time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.delayed) >= maxDelayed {
		return false
	}
	w.delayed[unit] = true
	w.later.Go(func() {
		if err := w.runDelayed(unit, wait); err != nil {
			w.Log.Debug("run a unit that waited for its model", "unit", unit, "err", err)
		}
	})
	return true
}

func (w *Worker) runDelayed(unit uuid.UUID, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	over := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.delayed, unit)
	}
	select {
	case <-timer.C:
	case <-w.drain.Done():
		over()
		return w.requeue(unit)
	}
	select {
	case w.slots <- struct{}{}:
	case <-w.drain.Done():
		over()
		return w.requeue(unit)
	}
	defer func() { <-w.slots }()
	over()
	return w.runAdmitted(unit)
}

func (w *Worker) isDelayed(unit uuid.UUID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.delayed[unit]
}
