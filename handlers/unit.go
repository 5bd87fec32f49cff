package handlers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// attempt is a claimed unit on its way through the house.
//
// Thousands of attempts wait for their models at once, and a stack that is
// in use by more than a quarter never shrinks. So whatever is bulky lies here,
// and the functions that wait, from runUnit to call, have small frames.
type attempt struct {
	claimed *store.Claimed
	ctx     context.Context // of the run
	lease   *process.Lease
	rec     *recorder
	begun   time.Time
	timeout time.Duration
	prep    prepared
	look    cacheLook
	called  bool // the backend was
	ran     ran
}

// runUnit takes one unit through the house: claim, prepare, execute, settle,
// announce. It returns the failure of a failed run, and nil when there was
// nothing to claim.
func (w *Worker) runUnit(unit uuid.UUID) error {
	if admitted, err := w.admit(unit); err != nil || !admitted {
		return err
	}
	return w.runAdmitted(unit)
}

func (w *Worker) runAdmitted(unit uuid.UUID) error {
	if w.full() || w.secluded.Load() || !w.alone.TryRLock() {
		return w.passOn(unit) // there is no room, or a suspect is to run alone
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
// aloneTime the others' turn comes first; the reconciler rings for the suspect
// again.
func (w *Worker) runAlone(unit uuid.UUID) error {
	if !w.secluded.CompareAndSwap(false, true) {
		return w.passOn(unit) // another suspect was here first
	}
	defer w.wake()
	defer w.secluded.Store(false)
	w.Log.Warn("unit is to run alone: worker processes died while it ran", "unit", unit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); !w.alone.TryLock(); {
		if time.Since(begun) > w.aloneTime {
			return nil
		}
		select {
		case <-w.draining.Done():
			return w.passOn(unit)
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
	defer w.end(claimed.RunID)
	if claimed.Losses > 0 {
		w.sweep() // the lost run's agent may still be at work in the same directory
	}
	a := w.attempt(claimed)
	w.execute(a)
	return w.conclude(a)
}

func (w *Worker) attempt(c *store.Claimed) *attempt {
	w.lane(c.Backend).began(c.Model)
	w.logOf(c).Info("run begins")
	w.announce(c.ID)
	r := w.runs(c.RunID)
	told := func() { w.Bell.Stepped(c.ID) }
	rec := newRecorder(w.Store, c.RunID, w.redact, told, w.Log)
	rec.steps.TellDrafts(r.isWatched, func(kind, text string, rev int) {
		w.Bell.Drafted(jobs.Draft{Unit: c.ID, Attempt: c.RunCount, Rev: rev, Type: kind, Text: text})
	})
	return &attempt{claimed: c, ctx: r.ctx, lease: r.lease, rec: rec, begun: time.Now()}
}

// logOf is a log about one unit. It takes a KB, so nobody keeps it.
func (w *Worker) logOf(c *store.Claimed) *slog.Logger {
	return w.Log.With("unit", c.ID, "attempt", c.RunCount, "backend", c.Backend)
}

// conclude writes the end of an attempt into the ledger and announces it.
func (w *Worker) conclude(a *attempt) error {
	claimed, unit, log := a.claimed, a.claimed.ID, w.logOf(a.claimed)
	if !a.called && a.ran.Metadata.TotalCostUSD == nil {
		a.ran.Metadata.TotalCostUSD = new(0.0)
	}
	cause := context.Cause(a.ctx)
	if cause == nil && claimed.Losses <= maxShortageLosses {
		if cause = w.lacked(a.ran.Result); cause != nil {
			log.Error("the unit goes back to the queue: "+cause.Error(), "data", w.Data, "error", a.ran.Error)
		}
	}
	finish := outcome(claimed, a.ran, cause, w.ownFault(claimed))
	finish.ToolCalls, finish.Denials = a.rec.steps.ToolCalls(), new(a.rec.steps.Denials())
	finish.RenderedPrompt = w.redact(a.ran.prompt)
	finish.OutputFiles = a.ran.files
	finish.Cache, finish.CacheKey = a.look.came, a.look.key
	if a.look.from != nil {
		finish.CachedFrom = &a.look.from.RunID
	}
	if len(finish.Implausible) > 0 {
		a.rec.steps.Add(transcript.Step{Type: transcript.SystemText, IsError: true,
			Text: "The backend told figures that cannot be true. They are left out: " + strings.Join(finish.Implausible, ", ") + "."})
	}
	a.rec.close(&finish)
	redact(&finish, w.redact)
	if finish.CachedFrom == nil {
		w.learn(claimed, a.begun, finish)
	}

	finish, verdict, err := w.settle(finish)
	if err != nil {
		log.Error("run ended and is not in the ledger yet: it is handed in later", "err", err)
		return err
	}
	w.metrics.finished(claimed.Backend, finish, verdict, time.Since(a.begun))
	if finish.Error != nil {
		log = log.With("error", finish.Error)
	}
	log.Info("run ended", "status", finish.Status, "verdict", verdict, "next", finish.Next)
	w.forgetAnswer(a, finish)
	w.announce(unit)
	if claimed.BatchID != nil && finish.Next.Final() {
		w.batches.mark(*claimed.BatchID)
	}
	if finish.Next == work.Queued && finish.Delay == 0 && verdict == store.Recorded {
		w.ringAgain(unit, claimed)
	}
	if finish.Error != nil {
		return fmt.Errorf("unit %s attempt %d: %w", unit, claimed.RunCount, finish.Error)
	}
	return nil
}

// ownFault tells whether a unit whose credentials were refused before has only
// itself to blame: others were answered since.
func (w *Worker) ownFault(c *store.Claimed) bool {
	return c.Error != nil && c.Error.Class.Follow() == work.FollowPause && c.NotBefore != nil &&
		w.lane(c.Backend).answeredSince(*c.NotBefore)
}

// learn tells the backend's lane how a run of it ended.
func (w *Worker) learn(c *store.Claimed, begun time.Time, f store.Finish) {
	if f.Next == work.Failed && f.Error != nil && f.Error.Class.Follow() == work.FollowPause {
		return // its own fault
	}
	answered := f.Status == work.RunSucceeded || f.Usage.OutputTokens > 0
	changed := w.lane(c.Backend).ended(c.Model, begun, answered, f.Error)
	if changed.limited {
		w.metrics.limited.WithLabelValues(c.Backend).Inc()
		w.Log.Warn("rate limit: units of this model wait", "backend", c.Backend, "model", c.Model, "account", f.Error.WholeAccount, "unit", c.ID, "error", f.Error)
	}
	if changed.paused {
		w.metrics.paused.WithLabelValues(c.Backend, string(f.Error.Class)).Inc()
		w.Log.Error("BACKEND PAUSED: its units wait until one of them is answered again",
			"backend", c.Backend, "unit", c.ID, "error", f.Error, "mend", f.Error.Class.Advice())
	}
	if changed.opened {
		w.Log.Warn("backend goes on", "backend", c.Backend, "unit", c.ID)
		w.wake()
	}
}

// claim asks for the unit until there is an answer. It asks for the same run
// each time, so an answer that was lost on the way comes again.
func (w *Worker) claim(unit uuid.UUID, alone bool) (*store.Claimed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), w.Lease)
	defer cancel()
	stopWaiting := context.AfterFunc(w.draining, func() { time.AfterFunc(claimPatience, cancel) })
	defer stopWaiting()
	if process.Uptime()-w.confirmed() > w.Lease/2 {
		// Perhaps this process was frozen. What it claims on a lease that has
		// run out would be taken away again at once.
		if err := w.beatOnce(ctx); err != nil {
			return nil, err
		}
	}
	lease := w.leased() // before the question: if it has run out, whatever the answer, others may ask
	c := store.Claim{UnitID: unit, RunID: uuid.Must(uuid.NewV7()), Process: w.id, SessionID: uuid.NewString(),
		Backends: w.available(), Alone: alone}
	defer w.claims(c.RunID)()
	var claimed *store.Claimed
	err := w.untilAnswered(ctx, func() (err error) {
		claimed, err = w.Store.Runs.Claim(ctx, c)
		return err
	})
	if claimed != nil {
		w.begin(c.RunID, unit, lease)
	}
	return claimed, err
}

// untilAnswered repeats ask while the ledger is away.
func (w *Worker) untilAnswered(ctx context.Context, ask func() error) error {
	return until(ctx, ask, func(err error) bool { return errors.As(err, new(*work.Unavailable)) })
}

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

// ran is a backend's result with what the house knows beside it.
type ran struct {
	backend.Result
	prompt  string
	files   []work.OutputFile
	overdue bool // the unit's deadline has stopped it
}

// execute prepares the unit and runs its backend under the run's timeout.
func (w *Worker) execute(a *attempt) {
	defer w.survive(a)
	a.timeout = a.claimed.Timeout.Duration()
	if a.claimed.Left != nil {
		a.timeout = min(a.timeout, *a.claimed.Left)
	}
	ctx, cancel := context.WithTimeoutCause(a.ctx, a.timeout, work.ErrTimeout)
	defer cancel()
	defer a.prep.tidy()
	if w.ready(ctx, a) && !w.fromCache(ctx, a) {
		w.returned(ctx, a, w.callAccepted(ctx, a))
		a.keepable()
	}
}

// ready prepares the unit, and tells whether it can be run.
func (w *Worker) ready(ctx context.Context, a *attempt) bool {
	var failure *work.Failure
	a.prep, failure = w.prepare(ctx, a.claimed)
	if failure == nil {
		failure = w.answered(ctx, a)
	}
	a.ran.prompt = a.prep.req.Prompt
	if failure != nil {
		a.ran.Error = failure
		return false
	}
	a.rec.prompt(a.prep.req.Prompt)
	return true
}

// call is where an attempt spends its life.
func (w *Worker) call(ctx context.Context, a *attempt) (err error) {
	req := a.prep.req
	if req.Lease = a.lease; req.Lease.Lapsed() {
		return process.ErrLapsed // this process was frozen, perhaps
	}
	if a.prep.accept == nil {
		a.prep.req.Payload, a.claimed.Payload = nil, nil // nobody asks for it again
	}
	a.called = true
	a.ran.Result, err = w.lane(a.claimed.Backend).backend.Execute(ctx, req, a.rec.steps)
	return err
}

// returned completes what the backend returned.
func (w *Worker) returned(ctx context.Context, a *attempt, err error) {
	result := &a.ran.Result
	if errors.Is(err, process.ErrLapsed) {
		w.stopRun(a.claimed.RunID, work.ErrFenced)
	}
	if err != nil && result.Error == nil {
		result.Success = false
		result.Error = work.Fail(work.ClassInfra, fmt.Sprintf("the %s backend could not run: %v", a.claimed.Backend, err))
	}
	if !result.Success && (result.Error == nil || result.Error.Class == work.ClassTimeout) && errors.Is(context.Cause(ctx), work.ErrTimeout) {
		a.ran.overdue = a.timeout < a.claimed.Timeout.Duration()
		result.Error = work.Fail(work.ClassTimeout, fmt.Sprintf("the run took longer than its timeout of %s", a.timeout))
		if a.ran.overdue {
			result.Error.Message = fmt.Sprintf("the deadline passed %s after the run began", a.timeout.Round(time.Millisecond))
		}
	}
	if result.Success {
		result.Error = denied(a.claimed.OnDenied, a.rec.steps)
		result.Success = result.Error == nil
	}
	a.ran.files = w.outputFiles(ctx, a.prep, w.redact)
}

// survive makes a crash of the run's own of a panic. It is deferred.
func (w *Worker) survive(a *attempt) {
	if p := recover(); p != nil {
		w.Log.Error("backend panicked", "unit", a.claimed.ID, "panic", p, "stack", string(debug.Stack()))
		a.ran.Result = backend.Result{Error: work.Fail(work.ClassCrash, fmt.Sprintf("the %s backend panicked: %v", a.claimed.Backend, p))}
	}
}

func (w *Worker) announce(unit uuid.UUID) {
	if err := w.Bell.Changed(context.Background(), unit); err != nil {
		w.Log.Debug("announce", "err", err)
	}
}

// ringAgain saves a unit that may run again at once the reconciler's round.
func (w *Worker) ringAgain(unit uuid.UUID, c *store.Claimed) {
	d := store.MessageOf(c.Unit)
	d.Number++ // the finish took this number
	if err := w.Bell.Ring(context.Background(), d); err != nil {
		w.Log.Debug("ring again", "unit", unit, "err", err)
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
