package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// What a command-line agent may take and give before it is stopped, unless
// the request says otherwise.
const (
	defaultStartup = 60 * time.Second
	checkEvery     = time.Second      // an agent may do much without a word
	defaultGrace   = 10 * time.Second // from the agent's last word to its end
	maxLine        = 32 << 20
	maxOutput      = 512 << 20
	maxStderr      = 64 << 10
)

// agent is what differs between command-line agents.
type agent struct {
	name    string
	command process.Command
	ladder  process.Ladder // how it is best asked to stop; zero: the usual way
	// line takes one line of stdout and tells whether the agent has said its
	// last word. It may say more and take that back.
	line func(line []byte) (final bool)
	// missed, if there is one, is the size of the newest line that was too long
	// to be taken; the adapter makes it 0 when an answer comes after that.
	missed *atomic.Int64
	// check, if there is one, is asked now and then whether the agent has
	// reached a limit of the request that it does not keep by itself.
	check func() *work.Failure
	// result makes the run's result of the lines seen. It is asked once, at the
	// end, and sets no Error for a run that the runner itself stopped.
	result func(ending) Result
}

// limits bound one run of an agent.
type limits struct {
	startup, idle, grace time.Duration
	ladder               process.Ladder
	maxLine, maxOutput   int64
}

func limitsOf(req Request) limits {
	l := limits{
		startup: cmp.Or(req.StartupTimeout, defaultStartup), idle: req.IdleTimeout, grace: defaultGrace,
		ladder: process.DefaultLadder, maxLine: maxLine, maxOutput: maxOutput,
	}
	if l.idle <= 0 {
		l.idle = work.DefaultIdle.Duration()
	}
	return l
}

// ending is how an agent's process came to its end.
type ending struct {
	state  *process.State // nil when it could not be killed
	stderr string         // its last words
	silent bool           // nothing came on stdout, not one byte
	missed int64          // the size of a line that may have been the answer and was too long to be taken; 0: none
	// stopped is why the runner ended it, nil when it ended by itself or after
	// its last word.
	stopped error
}

// errNotStarted: there was no process at all.
var errNotStarted = errors.New("the agent's process could not be started")

// The runner's own reasons to stop an agent. The context's causes are others.
type hang struct{ what string }

func (h hang) Error() string { return h.what }

type limitReached struct{ failure *work.Failure }

func (r limitReached) Error() string { return r.failure.Message }

type flood struct{ limit int64 }

func (f flood) Error() string { return fmt.Sprintf("more than %d MiB of output", f.limit>>20) }

// run starts an agent, hears it out, and leaves nothing of it alive.
func run(ctx context.Context, a agent, l limits, steps *transcript.Writer) (Result, error) {
	child, err := process.Start(a.command)
	if errors.Is(err, process.ErrLapsed) {
		return notBegun(), err
	}
	if err != nil {
		return notBegun(), fmt.Errorf("%w: %w", errNotStarted, err)
	}
	out := newListener(child.Stdout, a.line, l)
	missed := cmp.Or(a.missed, new(atomic.Int64))
	out.skipped = func(size int64) {
		missed.Store(size)
		steps.Add(transcript.Step{Type: transcript.SystemText, IsError: true,
			Text: fmt.Sprintf("(a line of %d bytes from %s was left out: longer than %d bytes)", size, a.name, l.maxLine)})
	}
	errs := &tail{limit: maxStderr}
	drained := make(chan struct{})
	go out.listen()
	go func() { _, _ = io.Copy(errs, child.Stderr); close(drained) }()

	why := attend(ctx, child, out, l, a.check)
	state, swept := child.Close()
	<-out.done
	<-drained
	child.Release()
	if swept != nil {
		swept = fmt.Errorf("stop what %s started: %w", a.name, swept)
	}
	end := ending{state: state, stderr: steps.Redact(errs.String()), silent: !out.pulse().spoken, missed: missed.Load(), stopped: why}
	if errors.Is(why, work.ErrFenced) && out.pulse().final {
		end.stopped = nil // an answer that had been given counts
	}
	result := a.result(end)
	if result.Error != nil {
		end.stopped = why // that it was ended is no answer
	}
	settle(&result, end)
	tidy(&result, steps)
	if errors.Is(why, process.ErrLapsed) {
		swept = errors.Join(why, swept)
	}
	return result, swept
}

// notBegun is the result of a run that certainly reached no model.
func notBegun() Result { return Result{Metadata: Metadata{TotalCostUSD: new(0.0)}} }

// attend waits until the child has ended, and makes it end when it must. It
// returns the reason, nil when the child said all it had to say.
func attend(ctx context.Context, child *process.Process, out *listener, l limits, check func() *work.Failure) error {
	if check == nil {
		check = func() *work.Failure { return nil }
	}
	started := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-child.Exited():
			if child.Lapsed() && !out.pulse().final {
				return process.ErrLapsed
			}
			return nil
		case <-ctx.Done():
			if out.pulse().final {
				out.deafen() // what it says on being stopped does not count
				child.Stop(l.ladder)
				return nil
			}
			cause := context.Cause(ctx)
			if errors.Is(cause, work.ErrFenced) {
				l.ladder = process.Ladder{} // another may begin any moment: no time to ask
			}
			child.Stop(l.ladder)
			return cause
		case <-out.news:
		case <-timer.C:
		}
		if f := check(); f != nil && !out.pulse().final {
			child.Stop(l.ladder)
			return limitReached{f}
		}
		now := time.Now()
		due, why := deadline(out.pulse(), started, l)
		if now.Before(due) && !errors.As(why, new(flood)) {
			timer.Reset(min(due.Sub(now), checkEvery))
			continue
		}
		if why == nil {
			out.deafen()
		}
		child.Stop(l.ladder)
		return why
	}
}

// deadline tells when an agent will have been silent for too long, and what
// that means. A nil reason is no failure: the work is done.
func deadline(p pulse, started time.Time, l limits) (time.Time, error) {
	switch {
	case p.flooded:
		return started, flood{l.maxOutput}
	case p.final:
		return p.last.Add(l.grace), nil
	case !p.spoken:
		return started.Add(l.startup), hang{fmt.Sprintf("no output at all for %v after the start", l.startup)}
	case p.closed:
		return p.last.Add(l.grace), hang{fmt.Sprintf("closed its output and did not end within %v", l.grace)}
	}
	return p.last.Add(l.idle), hang{fmt.Sprintf("no output for %v", l.idle)}
}

// settle puts the runner's own reasons into the result. Where the caller ended
// the run on purpose there is no failure to tell: the caller knows the cause.
func settle(r *Result, end ending) {
	var f flood
	var h hang
	var reached limitReached
	switch why := end.stopped; {
	case why == nil:
		return
	case errors.As(why, &reached):
		r.Error = reached.failure
	case errors.As(why, &h):
		r.Error = work.Fail(work.ClassHang, h.what+withStderr(end.stderr))
	case errors.As(why, &f):
		r.Error = work.Fail(work.ClassInvalidRequest, f.Error()+answerInFile+withStderr(end.stderr))
	default:
		r.Error = interrupted(why)
	}
	r.Success = false
}

// interrupted is the failure of a run whose context ended: a timeout is one,
// anything else is the caller's own doing.
func interrupted(cause error) *work.Failure {
	if errors.Is(cause, work.ErrTimeout) || errors.Is(cause, context.DeadlineExceeded) {
		return work.Fail(work.ClassTimeout, "the run took longer than its timeout")
	}
	return nil
}

// maxMessage bounds the message of a failure.
const maxMessage = 8 << 10

// tidy makes a result's texts fit to be stored.
func tidy(r *Result, steps *transcript.Writer) {
	r.Output = steps.Redact(work.Clean(r.Output))
	r.Metadata.SessionID, r.Metadata.Model = work.Clean(r.Metadata.SessionID), work.Clean(r.Metadata.Model)
	if r.Error != nil {
		r.Error.Message, _ = work.Cut(steps.Redact(work.Clean(r.Error.Message)), maxMessage)
	}
}

const (
	stderrLines = 10
	stderrBytes = 2 << 10
)

// withStderr returns the last lines of stderr as an addition to a message.
func withStderr(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := strings.Join(lines[max(0, len(lines)-stderrLines):], "\n")
	if last == "" {
		return ""
	}
	if len(last) > stderrBytes {
		last = "…" + last[len(last)-stderrBytes:]
	}
	return "\nstderr: " + last
}
