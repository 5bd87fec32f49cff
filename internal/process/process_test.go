package process

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kept is what Main gives a program.
var kept Supervisor

// by returns a supervisor that contains by one kind only.
func by(kind Containment) Supervisor {
	return Supervisor{program: kept.program, kinds: []Containment{kind}}
}

// eachContainment runs a test by every kind that this machine allows.
func eachContainment(t *testing.T, test func(*testing.T, Supervisor)) {
	for _, kind := range kept.containments() {
		t.Run(string(kind), func(t *testing.T) {
			if got := by(kind).Containment(); got != kind {
				t.Skipf("%s cannot be had here", kind)
			}
			test(t, by(kind))
		})
	}
}

// As a worker process, the test binary starts a child that leaves others
// behind, and waits to be killed.
func TestMain(m *testing.M) {
	kept = Main(os.Args, os.Environ())
	if script := os.Getenv("PROCESS_TEST_WORKER"); script != "" {
		lease, err := NewLease(Uptime() + testLease)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() {
			for lease.Renew(Uptime() + testLease) {
				time.Sleep(testLease / 10)
			}
		}()
		child, err := Start(Command{
			Lease: lease,
			Path:  "/bin/sh", Args: []string{"-c", script}, Env: testEnv(), Mark: NewMark(os.Getenv("PROCESS_TEST_RUN")),
			Supervisor: by(cmp.Or(Containment(os.Getenv("PROCESS_TEST_KIND")), MarksOnly)),
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_, _ = io.Copy(os.Stdout, child.Stdout)
		select {}
	}
	// Who is started in a script's background ignores SIGINT, and so would our
	// children. A program hears it, as worker processes do, and they do not.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	go func() {
		<-interrupts
		os.Exit(130)
	}()
	// What an earlier, broken test run has left would be taken for our own.
	if _, err := SweepDead(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testEnv() []string { return []string{"PATH=" + os.Getenv("PATH")} }

func shell(t *testing.T, k Supervisor, script string, stdin io.Reader) *Process {
	t.Helper()
	child, err := Start(Command{
		Path: "/bin/sh", Args: []string{"-c", script}, Env: testEnv(), Mark: NewMark(t.Name()), Stdin: stdin, Supervisor: k,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Release() })
	return child
}

// left returns the processes that a test's child has left.
func left(run string) []int {
	return Marked(func(mark string) bool { return strings.HasPrefix(mark, run+"@") })
}

// firstLine waits until the child says that it is ready.
func firstLine(t *testing.T, child *Process) string {
	t.Helper()
	line, err := bufio.NewReader(child.Stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("reading the first line: %v", err)
	}
	return strings.TrimSpace(line)
}

// shut closes the child and sees that nothing is left, and that its supervisor did
// not have to be killed for that.
func shut(t *testing.T, child *Process) *State {
	t.Helper()
	state := shutByForce(t, child)
	if child.link != nil && !child.cmd.ProcessState.Success() {
		t.Errorf("the supervisor ended by %v", child.cmd.ProcessState)
	}
	return state
}

// shutByForce does not ask how the supervisor ended.
func shutByForce(t *testing.T, child *Process) *State {
	t.Helper()
	state, err := child.Close()
	if err != nil {
		t.Errorf("Close: %v", err)
	}
	if pids := left(t.Name()); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
	return state
}

func TestOutputAndExitCode(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		child := shell(t, k, "cat; echo err >&2; exit 3", strings.NewReader("in"))
		out, _ := io.ReadAll(child.Stdout)
		errs, _ := io.ReadAll(child.Stderr)
		<-child.Exited()
		if state := shut(t, child); state.String() != "exit status 3" {
			t.Errorf("ended with %v, want exit status 3", state)
		}
		if string(out) != "in" || string(errs) != "err\n" {
			t.Errorf("stdout %q stderr %q", out, errs)
		}
	})
}

// A file is followed while it grows, and ends with the child and all it left.
func TestStdoutInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout")
	child, err := Start(Command{
		Path: "/bin/sh", Args: []string{"-c", "echo one; read go; head -c 3000000 /dev/zero; sleep 1000 & echo end"}, Env: testEnv(),
		Mark: NewMark(t.Name()), Stdin: strings.NewReader("go\n"), StdoutFile: path,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(child.Release)
	from := bufio.NewReader(child.Stdout)
	if line, err := from.ReadString('\n'); line != "one\n" {
		t.Errorf("the first line is %q, %v", line, err)
	}
	rest := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(from)
		rest <- all
	}()
	<-child.Exited()
	shut(t, child)
	if all := <-rest; len(all) != 3_000_004 || !bytes.HasSuffix(all, []byte("end\n")) {
		t.Errorf("%d bytes came", len(all))
	}
	if _, err := Start(Command{Path: "/bin/sh", StdoutFile: "/nonexistent/dir/stdout"}); err == nil {
		t.Error("no error for a file that cannot be made")
	}
}

func TestLargeInputIsWrittenWhileOutputIsRead(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		in := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB, beyond any pipe
		child := shell(t, k, "cat", bytes.NewReader(in))
		out, err := io.ReadAll(child.Stdout)
		if err != nil || !bytes.Equal(out, in) {
			t.Errorf("%d bytes came back, err %v", len(out), err)
		}
		shut(t, child)
	})
}

func TestUnreadInputIsNoFailure(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		child := shell(t, k, "exit 0", bytes.NewReader(make([]byte, 1<<20)))
		<-child.Exited()
		if state := shut(t, child); !state.Success() {
			t.Errorf("ended with %v", state)
		}
	})
}

func TestStartFails(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		if _, err := Start(Command{Path: "/nonexistent/program", Mark: "x", Supervisor: k}); err == nil {
			t.Error("a program that is not there was started")
		}
	})
}

// Everything that a tool can leave behind is gone after Close, also when the
// child itself ended well.
func TestCloseLeavesNothing(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		for name, script := range map[string]string{
			"background":    "sleep 1000 & echo ready",
			"own session":   "setsid sleep 1000 & echo ready",
			"double fork":   "(setsid sh -c 'sleep 1000 & sleep 1000 &' &) ; echo ready",
			"holds stdout":  "setsid sh -c 'trap \"\" INT TERM HUP; while :; do sleep 1; done' & echo ready",
			"nohup":         "nohup sleep 1000 >/dev/null 2>&1 & echo ready",
			"no mark":       "(env -i sh -c 'echo ready; exec sleep 1000' &)",
			"still running": "env -i setsid sh -c 'echo ready; exec sleep 1000' & exec sleep 1000",
		} {
			t.Run(name, func(t *testing.T) {
				child := shell(t, k, script, nil)
				firstLine(t, child)
				if name != "still running" {
					<-child.Exited()
				}
				session := child.tree.root
				shut(t, child)
				rest, err := io.ReadAll(child.Stdout)
				if err != nil {
					t.Errorf("stdout does not end: %v after %q", err, rest)
				}
				for _, p := range processes() {
					if p.session == session && !p.zombie {
						t.Errorf("process %d of the child's session is left", p.pid)
					}
				}
			})
		}
	})
}

// An orphan in another session, without the mark, whose parent is gone cannot
// be found: its stdout must not block us.
func TestHiddenOrphanDoesNotBlock(t *testing.T) {
	child := shell(t, Supervisor{}, "(env -i setsid sh -c 'echo $$; exec sleep 1000' &)", nil)
	orphan, err := strconv.Atoi(firstLine(t, child))
	if err != nil {
		t.Fatal(err)
	}
	<-child.Exited()
	shut(t, child)
	_, _ = io.ReadAll(child.Stdout)
	if err := syscall.Kill(orphan, syscall.SIGKILL); err != nil {
		t.Errorf("it blocked for as long as the orphan lived: %v", err)
	}
}

// A reader that is busy when the child ends still gets all that was written,
// even if an orphan holds the pipe.
func TestSlowReaderLosesNothing(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		child := shell(t, k, "head -c 60000 /dev/zero; (env -i setsid sh -c 'echo ready >&2; exec sleep 8' &)", nil)
		if _, err := bufio.NewReader(child.Stderr).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		<-child.Exited()
		shut(t, child)
		<-time.After(2 * emptyWait) // the reader is busy
		if out, err := io.ReadAll(child.Stdout); len(out) != 60000 || err != nil {
			t.Errorf("%d bytes, %v", len(out), err)
		}
	})
}

func TestStopFollowsItsPolicy(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		const short = 300 * time.Millisecond // for one that does not follow
		for _, test := range []struct {
			name, trap string
			signal     syscall.Signal
			policy     StopPolicy
			atLeast    time.Duration
		}{
			{"follows SIGINT", "trap 'exit 7' INT", 0, StopPolicy{slack, slack}, 0},
			{"ignores SIGINT", "trap '' INT", syscall.SIGTERM, StopPolicy{short, slack}, short},
			{"ignores both", "trap '' INT TERM", syscall.SIGKILL, StopPolicy{short, short}, 2 * short},
		} {
			t.Run(test.name, func(t *testing.T) {
				child := shell(t, k, test.trap+"; sleep 1000 & echo ready; wait", nil) // a loop of sleeps would now and then lose a signal while it forks
				firstLine(t, child)
				started := time.Now()
				child.Stop(test.policy)
				if took := time.Since(started); took < test.atLeast {
					t.Errorf("it took %v, want at least %v", took, test.atLeast)
				}
				state := shut(t, child)
				status := state.status
				if test.signal != 0 && status.Signal() != test.signal || test.signal == 0 && status.ExitStatus() != 7 {
					t.Errorf("ended by %v", state)
				}
			})
		}
	})
}

func TestOtherChildrenLive(t *testing.T) {
	eachContainment(t, func(t *testing.T, k Supervisor) {
		a, err := Start(Command{Path: "/bin/sleep", Args: []string{"1000"}, Env: testEnv(), Mark: NewMark("neighbour"), Supervisor: k})
		if err != nil {
			t.Fatal(err)
		}
		b := shell(t, k, "setsid sleep 1000 & echo ready", nil)
		firstLine(t, b)
		shut(t, b)
		if n, err := SweepDead(); n != 0 || err != nil {
			t.Errorf("SweepDead found %d, %v, and every worker process lives", n, err)
		}
		select {
		case <-a.Exited():
			t.Error("the neighbour was killed")
		default:
		}
		if state, _ := a.Close(); state.status.Signal() != syscall.SIGKILL {
			t.Errorf("the neighbour ended by %v", state)
		}
		a.Release()
	})
}

func TestSweepDeadFindsTheKilledWorkersOrphans(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	worker := exec.Command(self)
	worker.Env = append(testEnv(), "PROCESS_TEST_RUN="+t.Name(),
		"PROCESS_TEST_WORKER=setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000 &' &) ; echo ready; sleep 1000")
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
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait()
	orphans := left(t.Name())
	for deadline := time.Now().Add(5 * time.Second); len(orphans) < 3; orphans = left(t.Name()) {
		if time.Now().After(deadline) {
			t.Fatalf("the worker left only %v", orphans)
		}
	}
	found, err := SweepDead()
	if err != nil || found < 3 {
		t.Errorf("SweepDead found %d of %v: %v", found, orphans, err)
	}
	if pids := left(t.Name()); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
}

func TestChildDiesWithTheWorker(t *testing.T) {
	self, _ := os.Executable()
	worker := exec.Command(self)
	worker.Env = append(testEnv(), "PROCESS_TEST_RUN="+t.Name(), "PROCESS_TEST_WORKER=echo $$; exec sleep 1000")
	stdout, _ := worker.StdoutPipe()
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(stdout)
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = worker.Process.Kill()
	_ = worker.Wait()
	deadline := time.Now().Add(5 * time.Second)
	for len(left(t.Name())) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the child outlives the worker process")
		}
	}
}

func TestMarks(t *testing.T) {
	mark := NewMark("run")
	if !strings.HasPrefix(mark, "run@") || orphaned(mark) {
		t.Errorf("mark %q, orphaned %v", mark, orphaned(mark))
	}
	here := "run@" + pidNamespace() + "@"
	for _, gone := range []string{fmt.Sprintf("%s%d-1", here, os.Getpid()), here + "999999999-5"} {
		if !orphaned(gone) {
			t.Errorf("%q is not seen as orphaned", gone)
		}
	}
	for _, foreign := range []string{
		"", "run", "run@", here, here + "x-1", here + "12", here + "-1-2", here + "12-",
		"run@999999999-5", "run@pid:[1]@999999999-5",
	} {
		if orphaned(foreign) {
			t.Errorf("%q is taken for a mark of ours", foreign)
		}
	}
}
