package handlers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"piecework/internal/backend"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// outcome decides what becomes of a unit after a run. cause is why the run's
// context ended, nil if it did not. ownFault: refused credentials are this
// unit's matter alone.
func outcome(c *store.Claimed, r ran, cause error, ownFault bool) store.Finish {
	f := finishOf(c, r.Result)
	var lack *shortage
	switch {
	case r.Success:
		f.Status, f.Next, f.Error = work.RunSucceeded, work.Succeeded, nil
	case errors.Is(cause, work.ErrCancelled):
		f.Status, f.Next, f.Error = work.RunCancelled, work.Cancelled, nil
	case errors.Is(cause, work.ErrShutdown):
		f.Status, f.Next, f.Losses, f.Error = work.RunReleased, work.Queued, 1, nil
	case errors.As(cause, &lack):
		f.Status, f.Next, f.Losses, f.Delay = work.RunReleased, work.Queued, 1, shortagePause
		f.Error = work.Fail(work.ClassInfra, lack.what+"; "+lack.mend+", the unit goes on by itself: "+f.Error.Message)
	case errors.Is(cause, work.ErrFenced):
		f.Status, f.Next, f.Losses = work.RunLost, work.Queued, 1
		f.Error = work.Fail(work.ClassInfra, "the worker process lost its lease and stopped the run")
	default:
		if f.Error == nil {
			f.Error = work.Fail(work.ClassCrash, "the backend ended without a result and without an error")
		}
		follow(&f, c, ownFault)
		if r.overdue {
			f.Next, f.Delay = work.TimedOut, 0 // no run could begin any more
		}
	}
	f.Resumable = resumable(c, f)
	return f.Plausible()
}

// denied is the failure of a run that ended well although tool calls were denied
// and never made good; nil when there were none, or they are only to be noted.
func denied(policy string, steps *transcript.Writer) *work.Failure {
	count, first := steps.Denied()
	if count == 0 || policy == work.OnDeniedNote {
		return nil
	}
	var calls []string
	for _, d := range first {
		calls = append(calls, strings.TrimSpace(d.Tool+" "+d.Args))
	}
	if more := count - len(first); more > 0 {
		calls = append(calls, fmt.Sprintf("%d more", more))
	}
	return work.Fail(work.ClassToolDenied, fmt.Sprintf(
		"the agent answered although %d of its tool calls were denied and did not succeed later: %s; "+
			"the answer is kept, and on_denied=note would accept it",
		count, strings.Join(calls, "; ")))
}

// resumable tells whether the next run may go on with the session of one that
// was cut off in the middle of its work.
func resumable(c *store.Claimed, f store.Finish) bool {
	cutOff := f.Status == work.RunReleased || f.Status == work.RunLost ||
		f.Error != nil && (f.Error.Class == work.ClassTimeout || f.Error.Class == work.ClassRateLimit)
	return cutOff && f.SessionID != "" && c.SessionPolicy != work.Fresh
}

// follow applies the rule of the failure's class.
func follow(f *store.Finish, c *store.Claimed, ownFault bool) {
	class := f.Error.Class
	f.Status, f.Next = work.RunFailed, work.Failed
	if class == work.ClassTimeout || class == work.ClassHang {
		f.Status, f.Next = work.RunTimedOut, work.TimedOut
	}
	if class.Follow() == work.FollowWait || class.Follow() == work.FollowPause && !ownFault {
		f.Next, f.Waits, f.Delay = work.Queued, 1, untilReset(f.Error.ResetAt, c.Waits)
		return
	}
	f.Failures = 1
	if class == work.ClassCrash {
		f.Crashes = 1
	}
	poison := c.Crashes+f.Crashes >= work.MaxCrashes
	if c.Failures < c.Retries(class) && !poison {
		f.Next, f.Delay = work.Queued, backoff(c.Failures)
	}
}

// backoff doubles from a second to five minutes, give or take a fifth, so
// that units which failed together do not return together.
func backoff(before int) time.Duration {
	d := min(time.Second<<min(before, 9), 5*time.Minute)
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// untilReset waits until a limit resets, at most a day; without a known time
// it backs off from five seconds.
func untilReset(reset time.Time, waits int) time.Duration {
	if reset.IsZero() {
		return 5 * backoff(min(waits, 6))
	}
	return min(max(time.Until(reset), 0), 24*time.Hour) + backoff(0)
}

func finishOf(c *store.Claimed, r backend.Result) store.Finish {
	m := r.Metadata
	if m.TotalCostUSD == nil && c.Backend == work.MockBackend {
		m.TotalCostUSD = new(0.0)
	}
	return store.Finish{
		UnitID: c.ID, RunID: c.RunID, Attempt: c.RunCount,
		Result: r.Output, Error: r.Error, Model: m.Model, SessionID: m.SessionID, NumTurns: m.NumTurns,
		Usage: m.Usage, TotalCostUSD: m.TotalCostUSD, CostIncomplete: r.CostIncomplete,
		SessionTotalUSD: m.SessionTotalUSD, SessionResumed: m.SessionResumed,
		DurationMS: m.DurationMS, DurationAPIMS: m.DurationAPIMS, HTTPStatus: m.HTTPStatus, RequestID: m.RequestID,
	}
}

// shortage is why a run failed that its worker process lacked something for. It
// uses up no retry of the unit.
type shortage struct {
	what string
	mend string // what the operator can do
}

func (s *shortage) Error() string { return s.what }

const (
	shortagePause = 5 * time.Second // before a unit is taken again that a process lacked something for
	// maxShortageLosses: a unit with more losses than this pays for a shortage
	// with a retry. It may be what causes it.
	maxShortageLosses = 10
)

var (
	errDiskFull = &shortage{"the disk of the worker process is full", "free some space"}
	errNoFiles  = &shortage{"the worker process has too many files open", "raise its limit (ulimit -n) or lower --concurrency"}
)

// noRoom matches what programs say on a full disk.
var noRoom = regexp.MustCompile(`(?i)no space left on device|ENOSPC|disk quota exceeded|EDQUOT`)

// tooManyFiles matches what the kernel says of the limits of a process and of the
// machine.
var tooManyFiles = regexp.MustCompile(`(?i)too many open files|EMFILE|ENFILE`)

// lacked returns what a failed run lacked: it said so, or it broke off while the
// disk is full. It returns nil when the worker process is not at fault.
func lacked(r backend.Result, diskFull func() bool) error {
	if r.Success || r.Error == nil || r.Error.Class != work.ClassInfra && r.Error.Class != work.ClassCrash {
		return nil
	}
	switch {
	case r.Error.Class == work.ClassInfra && tooManyFiles.MatchString(r.Error.Message): // an agent's own limit is not ours
		return errNoFiles
	case noRoom.MatchString(r.Error.Message) || diskFull():
		return errDiskFull
	}
	return nil
}
