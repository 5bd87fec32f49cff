package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/backend/cli"
	"piecework/internal/process"
	"piecework/internal/testkit/backendtest"
	"piecework/internal/testkit/fakecli"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

var kills = flag.Int("kills", 60, "kills at random moments in the tests that kill")

// killLimit is how long after a run's end, or after its worker process's, a
// process of it may still be seen.
const killLimit = backendtest.RunLimit

// unruly is a unit that does all it can to survive its run.
type unruly struct {
	dialect string
	req     backend.Request
	hidden  []int // the seconds that its hidden daemons sleep, one of a kind
}

func newUnruly(t *testing.T, dialect string) unruly {
	u := unruly{dialect: dialect, hidden: []int{1e6 + rand.IntN(1e9), 1e6 + rand.IntN(1e9)}}
	u.req = backendtest.NewRequest(t, backendtest.Script("ignore", "init", "daemon", fmt.Sprint("hide ", u.hidden[0]), "holdstdout setsid", "setsid", "text there",
		fmt.Sprint("hide ", u.hidden[1]), "spawn", "result fine", "hang"))
	return u
}

// left returns what lives of it.
func (u unruly) left(t *testing.T) []int {
	t.Helper()
	pids := process.Marked(func(mark string) bool { return strings.HasPrefix(mark, u.req.RunID.String()+"@") })
	for _, seconds := range u.hidden {
		pids = append(pids, fakecli.Asleep(t, seconds)...)
	}
	return pids
}

// wantDead sees that nothing of it lives, at the latest by the limit.
func (u unruly) wantDead(t *testing.T) {
	t.Helper()
	ended := time.Now()
	for left := u.left(t); len(left) > 0; left = u.left(t) {
		if time.Since(ended) < killLimit {
			continue
		}
		t.Errorf("%s: processes %v live %v after the end", u.dialect, left, killLimit)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return
	}
}

// moment is some time in the life of an unruly agent: before it has begun,
// while it hides its daemons, after its last word.
func moment() time.Duration { return time.Duration(rand.Int64N(int64(600 * time.Millisecond))) }

func requireContainment(t *testing.T) {
	t.Helper()
	kind := backendtest.Supervisor.Containment()
	if kind == process.MarksOnly {
		t.Skip("this machine cannot hold hidden processes together")
	}
	t.Logf("%d kills, held by %s", *kills, kind)
}

// Runs are killed at random moments, for every reason that there is. When one
// has ended nothing of it is left.
func TestRunsKilledAtRandomMoments(t *testing.T) {
	t.Parallel()
	requireContainment(t)
	causes := []error{work.ErrTimeout, work.ErrCancelled, work.ErrShutdown, work.ErrFenced}
	var late atomic.Int32 // kills after the first daemon had hidden
	var workers sync.WaitGroup
	for w := range 2 {
		workers.Go(func() {
			for i := w; i < *kills; i += 2 {
				u := newUnruly(t, dialects[i%len(dialects)])
				ctx, cancel := context.WithCancelCause(t.Context())
				timer := time.AfterFunc(moment(), func() { cancel(causes[i%len(causes)]) })
				agent := fakeAs(t, u.dialect, func(c *cli.Options) {
					c.StopPolicy = process.StopPolicy{Interrupt: 20 * time.Millisecond, Terminate: 20 * time.Millisecond}
				})
				steps := transcript.NewWriter(nil, nil)
				if _, err := agent.Execute(ctx, u.req, steps); err != nil {
					t.Error(err)
				}
				if (backendtest.Run{Steps: steps.Steps()}).Said("there") {
					late.Add(1)
				}
				timer.Stop()
				cancel(nil)
				u.wantDead(t)
			}
		})
	}
	workers.Wait()
	if late.Load() == 0 {
		t.Error("every kill came before an agent had hidden anything")
	}
	t.Logf("%d kills came after an agent had hidden a daemon", late.Load())
}

// killsPerWorker is how many runs each worker process has when it is killed.
const killsPerWorker = 6

// Worker processes are killed with kill -9 at random moments. Nothing of their
// runs is left, and another finds nothing to sweep.
func TestWorkersKilledAtRandomMoments(t *testing.T) {
	t.Parallel()
	requireContainment(t)
	late := 0 // kills after the first daemon had hidden
	for range (*kills + killsPerWorker - 1) / killsPerWorker {
		units := make([]unruly, killsPerWorker)
		for i := range units {
			units[i] = newUnruly(t, dialects[i%len(dialects)])
		}
		worker := startWorker(t, units)
		<-time.After(moment())
		for _, u := range units {
			late += len(fakecli.Asleep(t, u.hidden[0]))
		}
		if err := worker.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = worker.Wait()
		if rand.IntN(2) == 0 { // its successor may come at once, or never
			if _, err := process.SweepDead(); err != nil {
				t.Error(err)
			}
		}
		for _, u := range units {
			u.wantDead(t)
		}
	}
	if late == 0 {
		t.Error("every kill came before an agent had hidden anything")
	}
	t.Logf("%d kills came after an agent had hidden a daemon", late)
}

// asWorker makes the test binary a worker process for the runs on its stdin.
const asWorker = "BACKEND_TEST_WORKER"

type job struct {
	Name, Path string
	Req        backend.Request
}

func startWorker(t *testing.T, units []unruly) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var jobs strings.Builder
	for _, u := range units {
		encoded, err := json.Marshal(job{u.dialect, fakecli.BuildAs(t, u.dialect), u.req})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&jobs, "%s\n", encoded)
	}
	worker := exec.Command(self)
	worker.Env = append(os.Environ(), asWorker+"=1")
	worker.Stdin, worker.Stderr = strings.NewReader(jobs.String()), os.Stderr
	out, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the worker said %q: %v", line, err)
	}
	return worker
}

// beWorker runs what stdin asks for, all at once, and then waits to be killed.
func beWorker() {
	var runs sync.WaitGroup
	for decoder := json.NewDecoder(os.Stdin); ; {
		var j job
		if err := decoder.Decode(&j); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			panic(err)
		}
		j.Req.Payload, j.Req.OutputSchema = nil, nil // not null
		runs.Go(func() {
			_, _ = backendAs(j.Name, backendtest.FakeOptions(j.Path)).Execute(context.Background(), j.Req, transcript.NewWriter(nil, nil))
		})
	}
	fmt.Println("at work")
	runs.Wait()
	select {}
}
