package process

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"piecework/internal/testkit/fakecli"
)

// eachSupervisor runs a test by every kind that has a supervisor.
func eachSupervisor(t *testing.T, test func(*testing.T, Containment)) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		if k.kinds[0] == MarksOnly {
			t.Skip("there is no supervisor")
		}
		test(t, k.kinds[0])
	})
}

// hiding is a script that leaves a daemon without mark, session and parent,
// which sleeps for a time of its own.
func hiding() (script string, seconds int) {
	seconds = 1e6 + rand.IntN(1e9)
	return fmt.Sprintf("env -i setsid sh -c \"trap '' INT TERM HUP; /bin/sleep %d </dev/null >/dev/null 2>&1 &\"", seconds), seconds
}

func wantNobodyAsleep(t *testing.T, seconds int, limit time.Duration) {
	t.Helper()
	pids := fakecli.Asleep(t, seconds)
	for deadline := time.Now().Add(limit); len(pids) > 0 && time.Now().Before(deadline); pids = fakecli.Asleep(t, seconds) {
		time.Sleep(time.Millisecond)
	}
	for _, pid := range pids {
		t.Errorf("the hidden process %d lives", pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// awaitHidden waits until the daemon is what it is to be: its shell ends before
// it has become a sleeper.
func awaitHidden(t *testing.T, seconds int) {
	t.Helper()
	for deadline := time.Now().Add(slack); len(fakecli.Asleep(t, seconds)) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody hides: this test shows nothing")
		}
	}
}

func TestSupervisorFindsTheHidden(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		script, seconds := hiding()
		child := shell(t, by(kind), script+"; echo ready", nil)
		firstLine(t, child)
		<-child.Exited()
		awaitHidden(t, seconds)
		shut(t, child)
		wantNobodyAsleep(t, seconds, 0)
	})
}

// What an agent sends to its parent does not end its supervisor.
func TestSupervisorOutlivesSignals(t *testing.T) {
	for _, signal := range []string{"HUP", "INT", "QUIT", "TERM", "USR1", "STOP"} {
		t.Run(signal, func(t *testing.T) {
			eachSupervisor(t, func(t *testing.T, kind Containment) {
				script, seconds := hiding()
				child := shell(t, by(kind), script+"; kill -"+signal+" $PPID; echo ready; exec sleep 1000", nil)
				firstLine(t, child)
				child.Stop(StopPolicy{Interrupt: 30 * time.Second})
				if state := shut(t, child); state.String() != "signal: interrupt" {
					t.Errorf("the child ended by %v", state)
				}
				wantNobodyAsleep(t, seconds, 0)
			})
		})
	}
}

// An agent that kills its supervisor wins nothing where a pid namespace is, and
// elsewhere what the marks do not tell.
func TestSupervisorIsKilled(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		script, seconds := hiding()
		if kind == Subreaper {
			script = "setsid sleep 1000 & (setsid sh -c 'sleep 1000 &' &)"
		}
		// Input comes once the supervisor has said that the child runs. One that is
		// killed before that has not started it, for us.
		child := shell(t, by(kind), script+"; read go; kill -KILL $PPID; echo ready; exec sleep 1000", strings.NewReader("go\n"))
		if kind == PIDNamespace {
			firstLine(t, child)
		} else {
			<-child.Exited()
		}
		if state := shutByForce(t, child); state.String() != "signal: killed" {
			t.Errorf("the child ended by %v", state)
		}
		wantNobodyAsleep(t, seconds, 0)
	})
}

// A process that forks and ends, and its child too, on and on, is never where
// it was seen.
func TestSupervisorCatchesTheRestless(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		dir := t.TempDir()
		relay := filepath.Join(dir, "relay")
		if err := os.WriteFile(relay, []byte("test -e "+dir+" || exit\n/bin/sh "+relay+" &\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		child := shell(t, by(kind), "env -i setsid /bin/sh "+relay+"; echo ready", nil)
		firstLine(t, child)
		shut(t, child)
	})
}

func TestSupervisorReaps(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		child := shell(t, by(kind), "for i in 1 2 3 4 5 6 7 8 9; do (true & true &) ; done; echo ready; exec sleep 1000", nil)
		firstLine(t, child)
		zombies := func() (n int) {
			for _, p := range processes() {
				if p.zombie && p.ppid == child.cmd.Process.Pid {
					n++
				}
			}
			return n
		}
		for deadline := time.Now().Add(slack); zombies() > 0; {
			if time.Now().After(deadline) {
				t.Fatalf("%d zombies stay", zombies())
			}
		}
		shut(t, child)
	})
}

// The child's /proc is that of its own pids.
func TestChildFindsItselfInProc(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		child := shell(t, k, "cat /proc/$$/comm", nil)
		if line := firstLine(t, child); line != "sh" {
			t.Errorf("the child finds %q in its place", line)
		}
		shut(t, child)
	})
}

func startWorker(t *testing.T, kind Containment, script string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	worker := exec.Command(self)
	worker.Env = append(testEnv(), "PROCESS_TEST_RUN="+t.Name(), "PROCESS_TEST_KIND="+string(kind), "PROCESS_TEST_WORKER="+script)
	stdout, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the worker said %q", line)
	}
	return worker
}

// When a worker process is killed, its supervisors end everything by themselves.
func TestHiddenDieWithTheWorker(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		script, seconds := hiding()
		worker := startWorker(t, kind, script+"; setsid sleep 1000 & echo ready; exec sleep 1000")
		_ = worker.Process.Kill()
		_ = worker.Wait()
		wantNobodyAsleep(t, seconds, 10*time.Second)
		for deadline := time.Now().Add(10 * time.Second); len(left(t.Name())) > 0; {
			if time.Now().After(deadline) {
				t.Fatalf("processes %v outlive the worker process", left(t.Name()))
			}
		}
	})
}

// A new worker process does not kill a supervisor that has not done its work yet.
func TestSweepDeadWaitsForSupervisors(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		script, seconds := hiding()
		worker := startWorker(t, kind, script+"; kill -STOP $PPID; echo ready; exec sleep 1000")
		_ = worker.Process.Kill()
		_ = worker.Wait()
		if _, err := SweepDead(); err != nil {
			t.Error(err)
		}
		wantNobodyAsleep(t, seconds, 0)
		if pids := left(t.Name()); len(pids) > 0 {
			t.Errorf("processes %v are left", pids)
		}
	})
}

// Nor does one that is sweeping already when the supervisor's worker process dies.
func TestSweepDeadWaitsForLateSupervisors(t *testing.T) {
	eachSupervisor(t, func(t *testing.T, kind Containment) {
		var over atomic.Bool
		var sweeps sync.WaitGroup
		sweeps.Go(func() {
			for !over.Load() {
				if _, err := SweepDead(); err != nil {
					t.Error(err)
				}
			}
		})
		defer sweeps.Wait()
		defer over.Store(true)
		for range 5 {
			script, seconds := hiding()
			worker := startWorker(t, kind, script+"; kill -STOP $PPID; echo ready; exec sleep 1000")
			_ = worker.Process.Kill()
			_ = worker.Wait()
			for deadline := time.Now().Add(10 * time.Second); len(left(t.Name())) > 0; {
				if time.Now().After(deadline) {
					t.Fatalf("processes %v outlive the worker process", left(t.Name()))
				}
			}
			wantNobodyAsleep(t, seconds, 0)
		}
	})
}

func TestNoSupervisorMeansMarksOnly(t *testing.T) {
	if kind := (Supervisor{}).Containment(); kind != MarksOnly {
		t.Errorf("%s", kind)
	}
	for _, kind := range kept.containments() {
		if !strings.HasPrefix(kind.String(), string(kind)+": ") {
			t.Errorf("%s is explained by %s", string(kind), kind)
		}
	}
}
