package handlers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"piecework/internal/backend"
	"piecework/internal/process"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"

	"github.com/google/uuid"
)

// attempt is a claimed unit on its way through a worker process.
//
// Thousands of attempts wait for their models at once, and a stack that is
// in use by more than a quarter never shrinks. So whatever is bulky lies here,
// and the functions that wait, from runUnit to call, have small frames.
type attempt struct {
	w       *Worker
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

// ran is a backend's result with what this process knows beside it.
type ran struct {
	backend.Result
	prompt  string
	files   []work.OutputFile
	overdue bool // the unit's deadline has stopped it
}

func (w *Worker) attempt(c *store.Claimed) *attempt {
	a := &attempt{w: w, claimed: c}
	w.health.Of(c.Backend).Began(c.Model)
	a.log().Info("run begins")
	w.announce(c.ID)
	r := w.runs.Get(c.RunID)
	written := func() { w.Queue.Stepped(c.ID) }
	a.ctx, a.lease = r.Ctx, r.Lease
	a.rec = newRecorder(w.Store, c.RunID, w.redact, written, w.Log)
	a.rec.steps.TellDrafts(r.Watched, func(kind, text string, rev int) {
		w.Queue.Drafted(queue.Draft{Unit: c.ID, Attempt: c.RunCount, Rev: rev, Type: kind, Text: text})
	})
	a.begun = time.Now()
	return a
}

// log is a log about one unit. It takes a KB, so nobody keeps it.
func (a *attempt) log() *slog.Logger {
	c := a.claimed
	return a.w.Log.With("unit", c.ID, "attempt", c.RunCount, "backend", c.Backend)
}

// execute prepares the unit and runs its backend under the run's timeout.
func (a *attempt) execute() {
	defer a.survive()
	a.timeout = a.claimed.Timeout.Duration()
	if a.claimed.Left != nil {
		a.timeout = min(a.timeout, *a.claimed.Left)
	}
	ctx, cancel := context.WithTimeoutCause(a.ctx, a.timeout, work.ErrTimeout)
	defer cancel()
	defer a.prep.tidy()
	if a.ready(ctx) && !a.fromCache(ctx) {
		a.returned(ctx, a.callAccepted(ctx))
		a.keepable()
	}
}

// ready prepares the unit, and tells whether it can be run.
func (a *attempt) ready(ctx context.Context) bool {
	var failure *work.Failure
	a.prep, failure = a.w.prepare(ctx, a.claimed)
	if failure == nil {
		failure = a.answered(ctx)
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
func (a *attempt) call(ctx context.Context) (err error) {
	req := a.prep.req
	if req.Lease = a.lease; req.Lease.Lapsed() {
		return process.ErrLapsed // this process was frozen, perhaps
	}
	if a.prep.accept == nil {
		a.prep.req.Payload, a.claimed.Payload = nil, nil // nobody asks for it again
	}
	a.called = true
	a.ran.Result, err = a.w.health.Of(a.claimed.Backend).Backend.Execute(ctx, req, a.rec.steps)
	return err
}

// returned completes what the backend returned.
func (a *attempt) returned(ctx context.Context, err error) {
	result := &a.ran.Result
	if errors.Is(err, process.ErrLapsed) {
		a.w.runs.Stop(a.claimed.RunID, work.ErrFenced)
	}
	if err != nil && result.Error == nil {
		result.Success = false
		result.Error = work.Fail(work.ClassInfra, fmt.Sprintf("the %s backend could not run: %v", a.claimed.Backend, err))
	}
	if !result.Success && (result.Error == nil || result.Error.Class == work.ClassTimeout) &&
		errors.Is(context.Cause(ctx), work.ErrTimeout) {
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
	a.ran.files = a.w.files.outputs(ctx, a.prep, a.w.redact)
}

// survive makes a crash of the run's own of a panic. It is deferred.
func (a *attempt) survive() {
	if p := recover(); p != nil {
		a.w.Log.Error("backend panicked", "unit", a.claimed.ID, "panic", p, "stack", string(debug.Stack()))
		a.ran.Result = backend.Result{Error: work.Fail(work.ClassCrash, fmt.Sprintf("the %s backend panicked: %v", a.claimed.Backend, p))}
	}
}

func (w *Worker) announce(unit uuid.UUID) {
	if err := w.Queue.Changed(context.Background(), unit); err != nil {
		w.Log.Debug("announce", "err", err)
	}
}
