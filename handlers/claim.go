package handlers

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"piecework/handlers/upkeep"
	"piecework/internal/work"
	"piecework/store"
)

// claimPatience is how long a claim that has no answer may go on when the shutdown
// begins: nothing is lost with it.
const claimPatience = 2 * time.Second

// runUnit takes one unit through this worker process: admit, claim, run, finish. It
// returns the failure of a failed run, and nil when there was nothing to claim.
func (w *Worker) runUnit(unit uuid.UUID) error {
	if admitted, err := w.admit(unit); err != nil || !admitted {
		return err
	}
	return w.runAdmitted(unit)
}

func (w *Worker) runAdmitted(unit uuid.UUID) error {
	if w.disk.Full() || w.isolating.Load() || !w.alone.TryRLock() {
		return w.requeue(unit) // there is no room, or a suspect is to run alone
	}
	claimed, err := w.claim(unit, false)
	if errors.Is(err, store.ErrSuspect) {
		w.alone.RUnlock()
		return w.runAlone(unit)
	}
	defer w.alone.RUnlock()
	return w.runClaimed(claimed, err)
}

// runAlone runs a suspect when no other run is left here, and keeps new ones
// out until it has ended. Nobody has claimed it while it waits: another worker
// process may, and it can be cancelled. When a run here takes longer than
// aloneTime the others' turn comes first; the reconciler enqueues the suspect
// again.
func (w *Worker) runAlone(unit uuid.UUID) error {
	if !w.isolating.CompareAndSwap(false, true) {
		return w.requeue(unit) // another suspect was here first
	}
	defer w.wakeUp.Send()
	defer w.isolating.Store(false)
	w.Log.Warn("unit is to run alone: worker processes died while it ran", "unit", unit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); !w.alone.TryLock(); {
		if time.Since(begun) > w.aloneTime {
			return nil
		}
		select {
		case <-w.drain.Done():
			return w.requeue(unit)
		case <-tick.C:
		}
	}
	defer w.alone.Unlock()
	return w.runClaimed(w.claim(unit, true))
}

func (w *Worker) runClaimed(claimed *store.Claimed, err error) error {
	if err != nil || claimed == nil {
		return err
	}
	defer w.runs.End(claimed.RunID)
	if claimed.Losses > 0 {
		upkeep.SweepDead(w.Log) // the lost run's agent may still be at work in the same directory
	}
	a := w.attempt(claimed)
	a.execute()
	return a.finish()
}

// claim asks for the unit until there is an answer. It asks for the same run
// each time, so an answer that was lost on the way comes again.
func (w *Worker) claim(unit uuid.UUID, alone bool) (*store.Claimed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), w.Lease)
	defer cancel()
	defer w.drain.Shorten(claimPatience, cancel)()
	if w.heartbeat.Late() {
		// What is claimed on a lease that has run out would be taken away again at
		// once.
		if err := w.heartbeat.Beat(ctx); err != nil {
			return nil, err
		}
	}
	lease := w.heartbeat.Current() // before the question: if it has run out, whatever the answer, others may ask
	c := store.Claim{UnitID: unit, RunID: uuid.Must(uuid.NewV7()), Process: w.id, SessionID: uuid.NewString(),
		Backends: w.health.Available(), Alone: alone}
	defer w.runs.Claiming(c.RunID)()
	var claimed *store.Claimed
	err := untilAnswered(ctx, func() (err error) {
		claimed, err = w.Store.Runs.Claim(ctx, c)
		return err
	})
	if claimed != nil {
		w.runs.Begin(c.RunID, unit, lease)
	}
	return claimed, err
}

// untilAnswered repeats ask while Postgres is away.
func untilAnswered(ctx context.Context, ask func() error) error {
	return until(ctx, ask, isAway)
}

// isAway tells whether an error says that Postgres is away.
func isAway(err error) bool { return errors.As(err, new(*work.Unavailable)) }

// until repeats ask, ever more slowly, while its error is worth it.
func until(ctx context.Context, ask func() error, again func(error) bool) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := ask()
		if err == nil || !again(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}
