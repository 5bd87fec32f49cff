package handlers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/internal/work"
	"piecework/store"
)

func (w *Worker) register(ctx context.Context) error {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	sent := process.Uptime()
	err = w.Store.Processes.Register(ctx, work.Process{
		ID: w.id, Hostname: hostname, PID: os.Getpid(), Identity: process.Self(), Version: w.Version,
		Slots: w.Slots, Queues: w.queueNames(), Backends: w.offers(),
	}, w.Lease)
	if err != nil {
		return err
	}
	return w.confirm(sent)
}

// beat gives a sign of life at every beat, and soon again when one did not come
// through. It waits for nothing else.
func (w *Worker) beat(ctx context.Context) {
	timer := time.NewTimer(w.Beat)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		next := w.Beat
		if err := w.beatOnce(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("no sign of life given", "err", err)
			next = w.Beat / 10
		}
		timer.Reset(next)
	}
}

func (w *Worker) beatOnce(ctx context.Context) error {
	sent, cut, mine := process.Uptime(), w.cutOff(), w.runIDs()
	err := w.Store.Processes.Heartbeat(ctx, w.id, w.Lease, len(mine), w.offers())
	switch {
	case errors.Is(err, work.ErrNotFound):
		if err = w.register(ctx); err != nil {
			err = fmt.Errorf("register again: %w", err)
		}
		for _, run := range mine { // the lease that they were claimed under has been ended
			w.stopRun(run, work.ErrFenced)
		}
	case err == nil:
		err = w.confirm(sent)
	}
	if err != nil {
		return err
	}
	if cut {
		w.Log.Info("signs of life come through again; units are taken")
		w.wake()
		w.wakeDeliveries()
	}
	w.askForNews()
	return nil
}

// cutOff tells whether this process seems to have lost Postgres: a write has no
// answer, or signs of life are late. Whatever it took from Redis then, others
// would have to wait for.
func (w *Worker) cutOff() bool {
	return process.Uptime()-w.confirmed() > 2*w.Beat || w.Store.Trouble() != nil
}

// watchNews reads what has become of the work here after each sign of life, and
// when there is something to hear.
func (w *Worker) watchNews(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.news:
		}
		if err := w.newsOnce(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("no news of the runs here", "err", err)
		}
	}
}

// askForNews has the news read at once.
func (w *Worker) askForNews() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// newsOnce acts on what has become of the work here: runs that were asked to
// stop, and runs that belong to another by now.
func (w *Worker) newsOnce(ctx context.Context) error {
	// Taken before the question, so that a run claimed in between is not
	// missing in the answer.
	mine := w.runIDs()
	news, err := w.Store.Processes.Assignments(ctx, w.id)
	if err != nil {
		return err
	}
	w.heed(news.Pauses)
	theirs := map[uuid.UUID]bool{}
	for _, o := range news.Owned {
		theirs[o.RunID] = true
		if !w.knows(o.RunID) {
			w.disown(ctx, o)
		}
		if o.Cancel {
			w.stopRun(o.RunID, work.ErrCancelled)
		}
	}
	for _, run := range mine {
		if !theirs[run] {
			w.stopRun(run, work.ErrFenced)
		}
	}
	return nil
}

// disown gives back a run that the ledger counts as ours and that does not run
// here. When its end is still to be handed in, that is what happens. Otherwise
// this process knows nothing of it: the answer to its claim never came. If it has
// just ended, this changes nothing.
func (w *Worker) disown(ctx context.Context, o store.Owned) {
	left, ended := w.leftover(o.RunID)
	var err error
	switch {
	case left.finish != nil:
		err = w.handIn(ctx, *left.finish, time.Now())
	case !left.gone && w.spooled(o.RunID):
		err = w.handInFile(ctx, o.RunID)
	case ended && !left.gone:
		w.gone(o.RunID) // somebody has taken it from the disk: if he handed it in, the next sign of life tells
	default:
		if err = w.Store.Runs.GiveUp(ctx, w.id, o, left.gone); err == nil {
			w.settled(o.RunID)
		}
	}
	if err != nil {
		w.Log.Warn("settle a run that does not run here", "unit", o.UnitID, "run", o.RunID, "err", err)
	}
}

// spooled tells whether the end of a run is on disk.
func (w *Worker) spooled(run uuid.UUID) bool {
	_, err := os.Stat(w.spoolPath(run))
	return !errors.Is(err, fs.ErrNotExist) // when in doubt it is
}

// watchLease stops every run before the lease ends, on this machine's clock,
// when no sign of life came through: by then another may start the same units.
func (w *Worker) watchLease(ctx context.Context) {
	ticker := time.NewTicker(w.Beat / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if silent := process.Uptime() - w.confirmed(); silent > w.Lease-w.margin() && w.count() > 0 {
			w.Log.Error("no sign of life came through; stopping all runs before the lease ends", "silent", silent)
			w.stopAll(work.ErrFenced)
		}
	}
}

// margin is kept between stopping the runs and the end of the lease. When half
// of it is over the runs' keepers end what is still there, because this process
// is frozen.
func (w *Worker) margin() time.Duration { return w.Lease / 3 }

// confirm notes that a sign of life came through that was sent at that Uptime.
// Postgres counts the lease from a later moment.
func (w *Worker) confirm(sent time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beatAt = max(w.beatAt, sent)
	until := w.beatAt + w.Lease - w.margin()/2
	if w.lease != nil && w.lease.Renew(until) {
		return nil
	}
	fresh, err := process.NewLease(until)
	if err == nil {
		w.lease = fresh
	}
	return err
}

// leased is the lease for what is claimed now.
func (w *Worker) leased() *process.Lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lease
}

func (w *Worker) confirmed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beatAt
}

func (w *Worker) runIDs() []uuid.UUID {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]uuid.UUID, 0, len(w.running))
	for id := range w.running {
		ids = append(ids, id)
	}
	return ids
}

func (w *Worker) stopRun(run uuid.UUID, why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.running[run]; r != nil {
		r.stop(why)
	}
}
