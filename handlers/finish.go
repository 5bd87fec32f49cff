package handlers

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"piecework/handlers/upkeep"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// finish decides what becomes of the unit, writes the end of the run into Postgres and
// announces it.
func (a *attempt) finish() error {
	claimed, unit, log := a.claimed, a.claimed.ID, a.log()
	if !a.called && a.ran.Metadata.TotalCostUSD == nil {
		a.ran.Metadata.TotalCostUSD = new(0.0)
	}
	cause := context.Cause(a.ctx)
	if cause == nil && claimed.Losses <= maxShortageLosses {
		if cause = lacked(a.ran.Result, a.w.disk.Full); cause != nil {
			log.Error("the unit goes back to the queue: "+cause.Error(), "data", a.w.Data, "error", a.ran.Error)
		}
	}
	finish := outcome(claimed, a.ran, cause, a.ownFault())
	finish.ToolCalls, finish.Denials = a.rec.steps.ToolCalls(), new(a.rec.steps.Denials())
	finish.RenderedPrompt = a.w.redact(a.ran.prompt)
	finish.OutputFiles = a.ran.files
	finish.Cache, finish.CacheKey = a.look.came, a.look.key
	if a.look.from != nil {
		finish.CachedFrom = &a.look.from.RunID
	}
	if len(finish.Implausible) > 0 {
		a.rec.steps.Add(transcript.Step{Type: transcript.SystemText, IsError: true,
			Text: "The backend reported figures that cannot be true. They are left out: " + strings.Join(finish.Implausible, ", ") + "."})
	}
	a.rec.close(&finish)
	redact(&finish, a.w.redact)
	if finish.CachedFrom == nil {
		a.learn(finish)
	}

	finish, verdict, err := a.w.record(finish)
	if err != nil {
		log.Error("run ended and is not in Postgres yet: it is handed in later", "err", err)
		return err
	}
	a.w.metrics.finished(claimed.Backend, finish, verdict, time.Since(a.begun))
	if finish.Error != nil {
		log = log.With("error", finish.Error)
	}
	log.Info("run ended", "status", finish.Status, "verdict", verdict, "next", finish.Next)
	a.forgetAnswer(finish)
	a.w.announce(unit)
	if claimed.BatchID != nil && finish.Next.Final() {
		a.w.batches.Changed(*claimed.BatchID)
	}
	if finish.Next == work.Queued && finish.Delay == 0 && verdict == store.Recorded {
		a.enqueue()
	}
	if finish.Error != nil {
		return fmt.Errorf("unit %s attempt %d: %w", unit, claimed.RunCount, finish.Error)
	}
	return nil
}

// ownFault tells whether a unit whose credentials were refused before has only
// itself to blame: others were answered since.
func (a *attempt) ownFault() bool {
	c := a.claimed
	return c.Error != nil && c.Error.Class.Follow() == work.FollowPause && c.NotBefore != nil &&
		a.w.health.Of(c.Backend).AnsweredSince(*c.NotBefore)
}

// learn tells the backend's breaker how the run ended.
func (a *attempt) learn(f store.Finish) {
	w, c := a.w, a.claimed
	if f.Next == work.Failed && f.Error != nil && f.Error.Class.Follow() == work.FollowPause {
		return // its own fault
	}
	answered := f.Status == work.RunSucceeded || f.Usage.OutputTokens > 0
	changed := w.health.Of(c.Backend).Ended(c.Model, a.begun, answered, f.Error)
	if changed.Limited {
		w.metrics.limited.WithLabelValues(c.Backend).Inc()
		w.Log.Warn("rate limit: units of this model wait", "backend", c.Backend, "model", c.Model,
			"account", f.Error.WholeAccount, "unit", c.ID, "error", f.Error)
	}
	if changed.Paused {
		w.metrics.paused.WithLabelValues(c.Backend, string(f.Error.Class)).Inc()
		w.Log.Error("BACKEND PAUSED: its units wait until one of them is answered again",
			"backend", c.Backend, "unit", c.ID, "error", f.Error, "mend", f.Error.Class.Advice())
	}
	if changed.Resumed {
		w.Log.Warn("backend goes on", "backend", c.Backend, "unit", c.ID)
		w.wakeUp.Send()
	}
}

// record writes the end of a run into Postgres, again and again until it
// is known to be there: the run number makes repeats harmless. Meanwhile it is
// on disk. It returns what was written. After an error the run stays in the
// spool: nobody gives it up.
func (w *Worker) record(f store.Finish) (store.Finish, store.Verdict, error) {
	ctx, cancel := context.WithTimeout(context.Background(), upkeep.Patience)
	defer cancel()
	defer w.drain.Bound(cancel)()
	keep := sync.OnceFunc(func() { w.spool.Keep(f) })
	late := time.AfterFunc(upkeep.SpoolAfter, keep)
	written, verdict, begun := f, store.Verdict(""), time.Now()
	err := until(ctx, func() (err error) {
		if written, verdict, err = w.spool.Record(ctx, f, begun); err != nil {
			w.Log.Warn("the finished run is not in Postgres yet", "unit", f.UnitID, "err", err)
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
	w.spool.Recorded(f.RunID)
	return written, verdict, nil
}

// enqueue saves a unit that may run again at once the reconciler's round.
func (a *attempt) enqueue() {
	d := store.MessageOf(a.claimed.Unit)
	d.Number++ // the finish took this number
	if err := a.w.Queue.Enqueue(context.Background(), d); err != nil {
		a.w.Log.Debug("enqueue again", "unit", a.claimed.ID, "err", err)
	}
}

// redact takes secrets out of what is stored beside the transcript, and what
// Postgres cannot hold.
func redact(f *store.Finish, secrets func(string) string) {
	clean := func(s string) string { return secrets(work.Clean(s)) }
	f.RenderedPrompt = clean(f.RenderedPrompt)
	f.Model, f.SessionID = clean(f.Model), clean(f.SessionID)
	var cut bool
	if f.Result, cut = work.Cut(clean(f.Result), maxResult); cut {
		f.Result += "\n… [cut: the output was longer than 32 MiB]"
	}
	if f.Error != nil {
		e := *f.Error
		e.Message, _ = work.Cut(clean(e.Message), 16<<10)
		f.Error = &e
	}
	for i := range f.OutputFiles {
		f.OutputFiles[i].Name = clean(f.OutputFiles[i].Name)
	}
}

// maxResult bounds an output that is kept.
const maxResult = 32 << 20
