package handlers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// How long a finished run is kept in memory when the ledger does not take it:
// while this process works, and after the grace period of its shutdown. Then the
// spool has it. A ledger that answers all that time, and refuses for a reason that
// nobody knows, gets the bare end of the run. A claim that has no answer when the
// shutdown begins is given up sooner: nothing is lost with it.
const (
	patience      = 10 * time.Minute
	lastPatience  = 3 * time.Second
	claimPatience = 2 * time.Second
)

// lastly calls cancel when the grace period and a little more have passed since
// the drain began, at once when there is nothing to wait for. The function it returns takes that back.
func (w *Worker) lastly(cancel func()) (stop func() bool) {
	return context.AfterFunc(w.draining, func() {
		if errors.Is(context.Cause(w.draining), work.ErrLedgerGone) {
			cancel() // what has ended is on disk, or will be
			return
		}
		time.AfterFunc(w.Grace+lastPatience-time.Since(w.drains()), cancel)
	})
}

// settle writes the end of a run into the ledger, again and again until it
// is known to be there: the run number makes repeats harmless. Meanwhile it is
// on disk. It returns what was written. After an error the run stays among the
// unsettled: nobody gives it up.
func (w *Worker) settle(f store.Finish) (store.Finish, store.Verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stopWaiting := w.lastly(cancel)
	defer stopWaiting()
	keep := sync.OnceFunc(func() {
		if err := w.spool(f); err != nil {
			w.Log.Error("finished run is in memory only", "unit", f.UnitID, "err", err)
			w.setUnsettled(f.RunID, &f)
			return
		}
		w.setUnsettled(f.RunID, nil)
	})
	late := time.AfterFunc(spoolAfter, keep)
	written, verdict, begun := f, store.Verdict(""), time.Now()
	err := until(ctx, func() (err error) {
		if written, verdict, err = w.record(ctx, f, begun); err != nil {
			w.Log.Warn("the finished run is not in the ledger yet", "unit", f.UnitID, "err", err)
			keep()
		}
		return err
	}, func(error) bool { return true })
	if !late.Stop() {
		keep() // waits if it is at it just now
	}
	if err != nil {
		return written, verdict, err
	}
	w.settled(f.RunID)
	if err := os.Remove(w.spoolPath(f.RunID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.Log.Warn("take a finished run from the spool", "err", err) // handing it in again changes nothing
	}
	return written, verdict, nil
}

// record writes a finish into the ledger and returns what was written. One that
// the ledger refuses twice is written bare, as failed with its cost, and so is one
// that it has refused since begun, for patience, for another reason than being away.
func (w *Worker) record(ctx context.Context, f store.Finish, begun time.Time) (store.Finish, store.Verdict, error) {
	verdict, err := w.Store.Runs.Finish(ctx, f)
	if store.Refused(err) {
		verdict, err = w.Store.Runs.Finish(ctx, f)
	}
	hopeless := store.Refused(err) || err != nil && ctx.Err() == nil && time.Since(begun) > patience && !errors.As(err, new(*work.Unavailable))
	if !hopeless {
		return f, verdict, err
	}
	w.Log.Error("THE LEDGER REFUSES THE END OF A RUN: it is written bare, as failed, and what it came to is kept on disk",
		"unit", f.UnitID, "run", f.RunID, "file", w.spoolPath(f.RunID)+refusedEnd, "err", err)
	if err := w.spoolAs(f, refusedEnd); err != nil {
		w.Log.Error("what the run came to is lost", "unit", f.UnitID, "run", f.RunID, "err", err)
	}
	bare := f.Bare(err)
	verdict, err = w.Store.Runs.Finish(ctx, bare)
	return bare, verdict, err
}

// unsettled is where the end of a run is that the ledger does not have.
type unsettled struct {
	finish *store.Finish // nil: it is on disk
	gone   bool          // it was on disk, and is not there any more
}

func (w *Worker) setUnsettled(run uuid.UUID, f *store.Finish) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsettled[run] = unsettled{finish: f}
}

func (w *Worker) settled(run uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.unsettled, run)
}

// gone notes that the end of a run that had come to its end here is lost.
func (w *Worker) gone(run uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ours := w.unsettled[run]; ours {
		w.unsettled[run] = unsettled{gone: true}
	}
}

// leftover is what this process still has of a run that it does not run.
func (w *Worker) leftover(run uuid.UUID) (left unsettled, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left, any = w.unsettled[run]
	return left, any
}

// inMemory are the finished runs that neither the ledger nor the disk has taken.
func (w *Worker) inMemory() (list []store.Finish) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, left := range w.unsettled {
		if left.finish != nil {
			list = append(list, *left.finish)
		}
	}
	return list
}
