package handlers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

func writeFile(dir, name string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600)
}

// What becomes of a unit, for every class of failure and every reason a run
// can be stopped for.
func TestOutcome(t *testing.T) {
	t.Parallel()
	asked := 1
	for _, c := range []struct {
		name   string
		result backend.Result
		cause  error
		unit   work.Unit
		status work.RunStatus
		next   work.State
	}{
		{"success", backend.Result{Success: true}, nil, work.Unit{}, work.RunSucceeded, work.Succeeded},
		{"success though cancelled", backend.Result{Success: true}, work.ErrCancelled, work.Unit{}, work.RunSucceeded, work.Succeeded},
		{"cancelled", backend.Result{}, work.ErrCancelled, work.Unit{}, work.RunCancelled, work.Cancelled},
		{"shutdown", backend.Result{}, work.ErrShutdown, work.Unit{}, work.RunReleased, work.Queued},
		{"no room, retries used up", failed(work.ClassCrash), errDiskFull, work.Unit{Failures: 9, Crashes: 9}, work.RunReleased, work.Queued},
		{"fenced", backend.Result{}, work.ErrFenced, work.Unit{}, work.RunLost, work.Queued},
		{"nothing said", backend.Result{}, nil, work.Unit{}, work.RunFailed, work.Queued},
		{"first infra", failed(work.ClassInfra), nil, work.Unit{}, work.RunFailed, work.Queued},
		{"infra, retries used up", failed(work.ClassInfra), nil, work.Unit{Failures: work.DefaultMaxRetries}, work.RunFailed, work.Failed},
		{"rate limit, retries used up", failed(work.ClassRateLimit), nil, work.Unit{Failures: 9}, work.RunFailed, work.Queued},
		{"timeout", failed(work.ClassTimeout), work.ErrTimeout, work.Unit{}, work.RunTimedOut, work.TimedOut},
		{"timeout, retries asked for", failed(work.ClassTimeout), work.ErrTimeout, work.Unit{Spec: work.Spec{MaxRetries: &asked}}, work.RunTimedOut, work.Queued},
		{"hang", failed(work.ClassHang), nil, work.Unit{}, work.RunTimedOut, work.TimedOut},
		{"third crash", failed(work.ClassCrash), nil, work.Unit{Crashes: 2, Spec: work.Spec{MaxRetries: ptr(50)}}, work.RunFailed, work.Failed},
		{"auth", failed(work.ClassAuth), nil, work.Unit{Failures: 9}, work.RunFailed, work.Queued},
		{"auth, its own fault", failed(work.ClassAuth), nil, work.Unit{}, work.RunFailed, work.Failed},
		{"billing", failed(work.ClassBilling), nil, work.Unit{Failures: 9}, work.RunFailed, work.Queued},
		{"bad request, retries asked for", failed(work.ClassInvalidRequest), nil, work.Unit{Spec: work.Spec{MaxRetries: &asked}}, work.RunFailed, work.Failed},
	} {
		f := outcome(&store.Claimed{Unit: c.unit}, ran{Result: c.result}, c.cause, c.name == "auth, its own fault")
		if f.Status != c.status || f.Next != c.next {
			t.Errorf("%s: run %s, unit %s; want %s, %s", c.name, f.Status, f.Next, c.status, c.next)
		}
		if !work.CanMove(work.Running, f.Next) {
			t.Errorf("%s: running may not become %s", c.name, f.Next)
		}
		if (f.Next == work.Failed || f.Next == work.TimedOut) && f.Error == nil {
			t.Errorf("%s: a failed unit without an error", c.name)
		}
	}
}

func failed(c work.Class) backend.Result { return backend.Result{Error: work.Fail(c, "x")} }

func ptr[T any](v T) *T { return &v }

func TestBackoffGrowsWithJitterAndIsBounded(t *testing.T) {
	t.Parallel()
	different := false
	for n := range 70 {
		d := backoff(n)
		if d < 800*time.Millisecond || d > 6*time.Minute {
			t.Errorf("backoff(%d) is %s", n, d)
		}
		different = different || d != backoff(n)
	}
	if !different {
		t.Error("the backoff has no jitter")
	}
	if d := untilReset(time.Now().Add(1e6*time.Hour), 0); d > 25*time.Hour {
		t.Errorf("a limit that resets in a century holds the unit for %s", d)
	}
	if d := untilReset(time.Now().Add(-time.Hour), 0); d < 0 || d > 2*time.Second {
		t.Errorf("a limit that is over holds the unit for %s", d)
	}
}

// Only a run that was cut off leaves a session to go on with.
func TestResumable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		class  work.Class
		cause  error
		policy string
		want   bool
	}{
		{work.ClassTimeout, work.ErrTimeout, work.Resume, true},
		{work.ClassTimeout, work.ErrTimeout, work.Fresh, false},
		{work.ClassRateLimit, nil, work.Resume, true},
		{work.ClassHang, nil, work.Resume, false},
		{work.ClassCrash, nil, work.Resume, false},
		{"", work.ErrShutdown, work.Resume, true},
		{"", work.ErrShutdown, work.Fresh, false},
		{"", work.ErrFenced, work.Resume, true},
		{"", work.ErrCancelled, work.Resume, false},
	} {
		r := backend.Result{Metadata: backend.Metadata{SessionID: "s"}}
		if test.class != "" {
			r.Error = work.Fail(test.class, "")
		}
		c := &store.Claimed{Unit: work.Unit{Spec: work.Spec{SessionPolicy: test.policy}}}
		if got := outcome(c, ran{Result: r}, test.cause, false).Resumable; got != test.want {
			t.Errorf("%+v: %t", test, got)
		}
		r.Metadata.SessionID = ""
		if outcome(c, ran{Result: r}, test.cause, false).Resumable {
			t.Errorf("%+v: resumes no session", test)
		}
	}
}
