// Package cli runs command-line agents. Each agent has an adapter in a package
// below: its arguments, its events, its result. Adapters import this package and
// never each other.
//
//	cli.go          runs one process: limits, how it is stopped
//	parser.go       its events by an adapter's parser
//	output.go       its stdout by lines of any length, the end of its stderr
//	options.go      what an operator sets; the program and its version
//	unit.go         one unit: program, home, arguments, environment
//	session.go      a unit's processes: start, resume, ask once more
//	home.go         the unit's own directory
//	files.go        attached files as text, as images, by name
//	schema.go       output_schema in the words of agents
//	mcp_server.go   MCP servers as agents are told of them
//	project.go      instructions and settings in the working directory
//	events.go       events that are kept as they came
//	failure.go      failures that agents tell in words only
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"piecework/internal/backend"
	"piecework/internal/process"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// What a command-line agent may take and give before it is stopped, unless
// the request says otherwise.
const (
	defaultStartup = 60 * time.Second
	checkEvery     = time.Second      // an agent may do much without a word
	defaultGrace   = 10 * time.Second // from the agent's final result to its end
	MaxLine        = 32 << 20
	maxOutput      = 512 << 20
	maxStderr      = 64 << 10
)

// Invocation is one start of an agent's program.
type Invocation struct {
	Command    process.Command
	StopPolicy process.StopPolicy // how it is best asked to stop; zero: the usual way
	name       string
}

// limits bound one run of an agent.
type limits struct {
	startup, idle, grace time.Duration
	stop                 process.StopPolicy
	maxLine, maxOutput   int64
}

func limitsOf(req backend.Request) limits {
	l := limits{
		startup: cmp.Or(req.StartupTimeout, defaultStartup), idle: req.IdleTimeout, grace: defaultGrace,
		stop: process.DefaultStopPolicy, maxLine: MaxLine, maxOutput: maxOutput,
	}
	if l.idle <= 0 {
		l.idle = work.DefaultIdle.Duration()
	}
	return l
}

// Ending is how an agent's process came to its end.
type Ending struct {
	State  *process.State // nil when it could not be killed
	Stderr string         // the end of it
	Silent bool           // nothing came on stdout, not one byte
	Missed int64          // the size of a line that may have been the answer and was too long to be taken; 0: none
	// Stopped is why the runner ended it, nil when it ended by itself or after
	// its final result.
	Stopped error
}

// errNotStarted: there was no process at all.
var errNotStarted = errors.New("the agent's process could not be started")

// The runner has reasons of its own to stop an agent; those of the context are others.
type limitReached struct{ failure *work.Failure }

func (r limitReached) Error() string { return r.failure.Message }

type outputLimit struct{ limit int64 }

func (f outputLimit) Error() string { return fmt.Sprintf("more than %d MiB of output", f.limit>>20) }

// run starts an agent, reads all it writes, and leaves nothing of it alive.
func run(ctx context.Context, a Invocation, h *Handler, l limits, steps *transcript.Writer) (backend.Result, error) {
	child, err := process.Start(a.Command)
	if errors.Is(err, process.ErrLapsed) {
		return NotStarted(), err
	}
	if err != nil {
		return NotStarted(), fmt.Errorf("%w: %w", errNotStarted, err)
	}
	out := newOutputReader(child.Stdout, h.Line, l)
	out.skipped = func(size int64) {
		h.skip(size)
		steps.Add(transcript.Step{Type: transcript.SystemText, IsError: true,
			Text: fmt.Sprintf("(a line of %d bytes from %s was left out: longer than %d bytes)", size, a.name, l.maxLine)})
	}
	errs := &tail{limit: maxStderr}
	drained := make(chan struct{})
	go out.read()
	go func() { _, _ = io.Copy(errs, child.Stderr); close(drained) }()

	why := supervise(ctx, child, out, l, h.Check)
	state, swept := child.Close()
	<-out.done
	<-drained
	child.Release()
	if swept != nil {
		swept = fmt.Errorf("stop what %s started: %w", a.name, swept)
	}
	end := Ending{State: state, Stderr: steps.Redact(errs.String()), Silent: !out.state().started, Stopped: why}
	if errors.Is(why, work.ErrFenced) && out.state().final {
		end.Stopped = nil // an answer that had been given counts
	}
	result := h.Result(end)
	if result.Error != nil {
		end.Stopped = why // that it was ended is no answer
	}
	applyStopReason(&result, end)
	backend.Sanitize(&result, steps)
	if errors.Is(why, process.ErrLapsed) {
		swept = errors.Join(why, swept)
	}
	return result, swept
}

// NotStarted is the result of a run that certainly reached no model.
func NotStarted() backend.Result {
	return backend.Result{Metadata: backend.Metadata{TotalCostUSD: new(0.0)}}
}

// supervise waits until the child has ended, and makes it end when it must. It
// returns the reason, nil when the child said all it had to say.
func supervise(ctx context.Context, child *process.Process, out *outputReader, l limits, check func() *work.Failure) error {
	started := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-child.Exited():
			if child.Lapsed() && !out.state().final {
				return process.ErrLapsed
			}
			return nil
		case <-ctx.Done():
			if out.state().final {
				out.discard() // what it says on being stopped does not count
				child.Stop(l.stop)
				return nil
			}
			cause := context.Cause(ctx)
			if errors.Is(cause, work.ErrFenced) {
				l.stop = process.StopPolicy{} // another may begin any moment: no time to ask
			}
			child.Stop(l.stop)
			return cause
		case <-out.changed:
		case <-timer.C:
		}
		if f := check(); f != nil && !out.state().final {
			child.Stop(l.stop)
			return limitReached{f}
		}
		now := time.Now()
		due, why := deadline(out.state(), started, l)
		if now.Before(due) && !errors.As(why, new(outputLimit)) {
			timer.Reset(min(due.Sub(now), checkEvery))
			continue
		}
		if why == nil {
			out.discard()
		}
		child.Stop(l.stop)
		return why
	}
}

// deadline tells when an agent will have been silent for too long, and what
// that means. A nil reason is no failure: the work is done.
func deadline(p outputState, started time.Time, l limits) (time.Time, error) {
	switch {
	case p.flooded:
		return started, outputLimit{l.maxOutput}
	case p.final:
		return p.last.Add(l.grace), nil
	case !p.started:
		return started.Add(l.startup), backend.Silence{What: fmt.Sprintf("no output at all for %v after the start", l.startup)}
	case p.closed:
		return p.last.Add(l.grace), backend.Silence{What: fmt.Sprintf("closed its output and did not end within %v", l.grace)}
	}
	return p.last.Add(l.idle), backend.Silence{What: fmt.Sprintf("no output for %v", l.idle)}
}

// applyStopReason puts the runner's own reasons into the result. Where the caller ended
// the run on purpose there is no failure to tell: the caller knows the cause.
func applyStopReason(r *backend.Result, end Ending) {
	var f outputLimit
	var h backend.Silence
	var reached limitReached
	switch why := end.Stopped; {
	case why == nil:
		return
	case errors.As(why, &reached):
		r.Error = reached.failure
	case errors.As(why, &h):
		r.Error = work.Fail(work.ClassHang, h.What+WithStderr(end.Stderr))
	case errors.As(why, &f):
		r.Error = work.Fail(work.ClassInvalidRequest, f.Error()+answerInFileHint+WithStderr(end.Stderr))
	default:
		r.Error = backend.Interrupted(why)
	}
	r.Success = false
}
