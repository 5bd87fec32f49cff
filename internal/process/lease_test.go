package process

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"piecework/internal/testkit/fakecli"
)

// testLease is how long the children of a worker process in these tests live
// without a sign of life of it.
const testLease = 2 * time.Second

func newTestLease(t *testing.T, lasts time.Duration) *Lease {
	t.Helper()
	lease, err := NewLease(Uptime() + lasts)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func leasedShell(t *testing.T, kind Containment, lease *Lease, script string) *Process {
	t.Helper()
	child, err := Start(Command{
		Path: "/bin/sh", Args: []string{"-c", script}, Env: testEnv(), Mark: NewMark(t.Name()), Supervisor: by(kind), Lease: lease,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(child.Release)
	return child
}

// slack is for a busy machine: nothing here promises how fast anything is.
const slack = 2 * time.Minute

// Without a sign of life everything ends, and not before its time.
func TestLeaseRunsOut(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		t.Parallel()
		const lasts = time.Second
		begun := time.Now()
		lease := newTestLease(t, lasts)
		script, seconds := hiding()
		child := leasedShell(t, kind, lease, script+"; trap '' INT TERM; echo ready; while :; do sleep 0.1; done")
		firstLine(t, child)
		select {
		case <-child.Exited():
		case <-time.After(lasts + slack):
			t.Error("nobody ended it")
		}
		if took := time.Since(begun); took < lasts {
			t.Errorf("it was ended after %v of %v", took, lasts)
		}
		if !child.Lapsed() {
			t.Error("nobody says that it was the lease")
		}
		wantNobodyAsleep(t, seconds, slack) // before Close
		if state := shut(t, child); state.String() != "signal: killed" {
			t.Errorf("the child ended by %v", state)
		}
	})
}

// While the lease is renewed nothing ends, also when everybody wants to work.
func TestLeaseIsRenewed(t *testing.T) {
	for range runtime.NumCPU() {
		busy := exec.Command("/bin/sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	}
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		t.Parallel()
		const lasts, beat = 5 * time.Second, time.Second // a fifth of a worker process's own
		lease := newTestLease(t, lasts)
		child := leasedShell(t, kind, lease, "echo ready; exec sleep 1000")
		firstLine(t, child)
		for range 7 {
			time.Sleep(beat) // a beat, not a wait for something
			if !lease.Renew(Uptime() + lasts) {
				t.Fatal("the lease ran out between two beats")
			}
		}
		if done(child.Exited()) {
			t.Error("the child was ended")
		}
		shut(t, child)
		if child.Lapsed() {
			t.Error("it lapsed")
		}
	})
}

// What was to begin under a lease that has run out does not, however alive the
// worker process is again.
func TestLapsedLease(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		lease := newTestLease(t, 0)
		if lease.Renew(Uptime()+time.Hour) || !lease.Lapsed() || lease.Renew(Uptime()+time.Hour) {
			t.Error("a lease that has run out was renewed")
		}
		began := t.TempDir() + "/began"
		child, err := Start(Command{
			Path: "/bin/sh", Args: []string{"-c", "touch " + began}, Env: testEnv(), Mark: NewMark(t.Name()), Supervisor: by(kind), Lease: lease,
		})
		if !errors.Is(err, ErrLapsed) {
			t.Errorf("Start: %v", err)
		}
		if err == nil {
			shut(t, child)
		}
		if _, err := os.Stat(began); err == nil {
			t.Error("the child began")
		}
	})
}

// A child that ended by itself has not lapsed, whatever its lease does later.
func TestEndBeforeTheLease(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		child := leasedShell(t, kind, newTestLease(t, time.Hour), "exit 3")
		<-child.Exited()
		if state := shut(t, child); state.String() != "exit status 3" || child.Lapsed() {
			t.Errorf("ended with %v, lapsed %v", state, child.Lapsed())
		}
	})
}

// A supervisor knows nothing of its lease that its agent could take.
func TestLeaseIsNotInherited(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		child := leasedShell(t, kind, newTestLease(t, time.Hour), "ls -l /proc/self/fd /proc/$PPID/fd")
		out, _ := io.ReadAll(child.Stdout)
		<-child.Exited()
		shut(t, child)
		if len(out) == 0 || strings.Contains(string(out), "run-lease") {
			t.Errorf("the child sees %s", out)
		}
	})
}

// A worker process that is stopped cannot end its agents; their supervisors do.
func TestFrozenWorkerLosesItsAgents(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		t.Parallel()
		script, seconds := hiding()
		worker := startWorker(t, kind, script+"; setsid sleep 1000 & echo ready; exec sleep 1000")
		t.Cleanup(func() {
			_ = worker.Process.Kill()
			_ = worker.Wait()
		})
		awaitHidden(t, seconds)
		// It lives as long as its worker process does.
		time.Sleep(2 * testLease) // two leases, not a wait for something
		if len(left(t.Name())) == 0 || len(fakecli.Asleep(t, seconds)) == 0 {
			t.Fatal("the agent ended while its worker process was well")
		}
		if err := worker.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		wantNobodyAsleep(t, seconds, testLease+slack)
		for deadline := time.Now().Add(slack); len(left(t.Name())) > 0; {
			if time.Now().After(deadline) {
				t.Fatalf("processes %v live on beside a frozen worker process", left(t.Name()))
			}
		}
	})
}
