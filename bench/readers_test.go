package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"piecework/internal/testkit"
)

var readersFlag = flag.Int("readers", 1000, "how many readers TestReaders has")

const (
	followed  = 10               // units that they follow
	minute    = 60 * time.Second // that each of the units lasts
	perReader = 45               // KB of the API that a reader may take
)

// TestReaders has many readers follow units on one API process for a minute,
// two of them frozen, and tells what each takes of the API's memory. Whoever
// keeps up hears every step once, in order.
func TestReaders(t *testing.T) {
	readers := *readersFlag
	calls := max(300*1000/readers, 10) // of each unit: 10,000 events a second for all readers
	readersSteps := 2*calls + 2        // what the unit is, each call with its answer, the result
	database, redis, dir := testkit.DB(t, migrate), testkit.Redis(t), t.TempDir()
	binary := buildProgram(t, dir)
	env := append(os.Environ(), "DATABASE_URL="+database, "REDIS_URL="+redis, "PIECEWORK_DATA="+dir, "PIECEWORK_LISTEN=127.0.0.1:0",
		"PIECEWORK_CONCURRENCY="+strconv.Itoa(followed))
	api, url := startServer(t, binary, "api", env)
	startServer(t, binary, "worker", env)

	var units []string
	for range followed {
		units = append(units, submitTo(t, url, fmt.Sprintf(`{"backend":"mock","prompt":"Count","payload":{"a":1,"mock":{"steps":%d,"sleep":%d}}}`, calls, int(minute.Seconds()))))
	}
	follow(t, url, units[0], func(event, _ string) bool { return event != "step" }) // warm, and running
	idle := residentOf(t, api)

	var open, done sync.WaitGroup
	var mu sync.Mutex
	var late []time.Duration
	open.Add(readers)
	for i := range readers {
		done.Go(func() {
			last, first := 0, true
			follow(t, url, units[i%followed], func(event, data string) bool {
				if first {
					first = false
					open.Done()
				}
				if event != "step" {
					return event != "end"
				}
				var step struct {
					Rev  int       `json:"rev"`
					Time time.Time `json:"time"`
				}
				if err := json.Unmarshal([]byte(data), &step); err != nil || step.Rev != last+1 {
					t.Errorf("after step %d of unit %d came %d (%v)", last, i%followed, step.Rev, err)
					return false
				}
				if last = step.Rev; i%50 == 0 {
					mu.Lock()
					late = append(late, time.Since(step.Time))
					mu.Unlock()
				}
				return true
			})
			if last != readersSteps {
				t.Errorf("reader %d heard %d steps of %d", i, last, readersSteps)
			}
		})
	}
	open.Wait()
	for range 2 {
		frozen := exec.Command("curl", "-sN", url+"/work-units/"+units[0]+"/events")
		if err := frozen.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = frozen.Process.Kill(); _ = frozen.Wait() }()
		if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	began, before := time.Now(), transactions(t, database)
	time.Sleep(minute / 3)
	asked := float64(transactions(t, database)-before) / time.Since(began).Seconds()
	full := residentOf(t, api)
	done.Wait()
	slices.Sort(late)
	// The steps that were there when a reader came are older than their way.
	fresh := late[:len(late)*9/10]
	t.Logf("%d readers on one API process: %.1f KB each (%.1f MB without them, %.1f MB with)", readers,
		float64(full-idle)/float64(readers)/1024, float64(idle)/1e6, float64(full)/1e6)
	t.Logf("%.1f statements a second, those of the worker process and of its %d units too", asked, followed)
	t.Logf("from a step's time until a reader has it: p50 %s, p90 %s", late[len(late)/2].Round(time.Millisecond), fresh[len(fresh)-1].Round(time.Millisecond))
	if float64(full-idle)/float64(readers)/1024 > perReader {
		t.Errorf("a reader takes more than %d KB", perReader)
	}
}

// transactions is how many Postgres has committed in a database: as many as there
// were statements, where each is alone.
func transactions(t *testing.T, database string) (n int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// buildProgram builds piecework, from its own module: this one does not know all
// that it needs.
func buildProgram(t *testing.T, dir string) string {
	t.Helper()
	binary := filepath.Join(dir, "piecework")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/piecework")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// startServer starts a part of Piecework until the test ends.
func startServer(t *testing.T, binary, command string, env []string) (pid int, url string) {
	t.Helper()
	cmd := exec.Command(binary, command)
	var log bytes.Buffer
	cmd.Env, cmd.Stderr = env, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", command, err, log.String())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if err != nil || !ok {
		t.Fatalf("%s is not ready: %q, %v", command, line, err)
	}
	return cmd.Process.Pid, url
}

func submitTo(t *testing.T, url, body string) string {
	t.Helper()
	answer, err := http.Post(url+"/work-units", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var unit struct{ ID string }
	if err := json.NewDecoder(answer.Body).Decode(&unit); err != nil || unit.ID == "" {
		t.Fatalf("%s: %v", answer.Status, err)
	}
	return unit.ID
}

// follow hears a unit's events until heard has enough.
func follow(t *testing.T, url, unit string, heard func(event, data string) bool) {
	answer, err := http.Get(url + "/work-units/" + unit + "/events")
	if err != nil {
		t.Error(err)
		return
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	event := ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "event":
			event = value
		case "data":
			if !heard(event, value) {
				return
			}
		}
	}
	t.Errorf("the stream of unit %s broke off: %v", unit, lines.Err())
}

// residentOf is what a process takes of the memory, in bytes, without what it
// has mapped of its own binary.
func residentOf(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kb * 1024
}
