package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
)

// stage is where a scenario plays: the servers and processes of a run of chaos
// without the network between them, and a client that notes what fails.
type stage struct {
	*world
	t      *testing.T
	http   *http.Client
	tables *pgxpool.Pool
	memory *redis.Client
	claude string   // the agent's program
	agents agents   // where it notes that it began
	env    []string // of every process
	begun  int      // processes that were added, also those that are gone
	failed atomic.Int64
	first  atomic.Value // of the failures
}

// newStage starts the servers, two APIs and some worker processes with these
// settings.
func newStage(t *testing.T, workers int, env ...string) *stage {
	t.Helper()
	s := &stage{t: t, env: env, http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	redisServer := testkit.StartRedis(t)
	if !redisServer.Real() {
		t.Skip("there is no redis-server to break")
	}
	plan := planOf()
	plan.Out, plan.Binary = outDir(t, ""), build(t)
	book, err := newBook(filepath.Join(plan.Out, "history.jsonl"))
	s.must(err)
	t.Cleanup(book.close)
	s.world = &world{plan: plan, book: book, redis: redisServer, postgres: testkit.OwnPostgres(t, migrate(plan.Binary))}
	s.agents = agentsIn(t, plan.Out)
	s.claude = s.agents.program
	s.forgetful()
	// What the test itself asks must not look like a table read as a whole.
	tables, err := pgxpool.ParseConfig(s.postgres.URL)
	s.must(err)
	tables.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
	s.tables, err = pgxpool.NewWithConfig(t.Context(), tables)
	s.must(err)
	t.Cleanup(s.tables.Close)
	options, err := redis.ParseURL(s.redis.URL)
	s.must(err)
	s.memory = redis.NewClient(options)
	t.Cleanup(func() { _ = s.memory.Close() })
	t.Cleanup(s.kill)
	t.Cleanup(func() {
		if t.Failed() {
			keep(t, plan.Out)
		}
	})
	for range apis {
		s.add("api")
	}
	for range workers {
		s.add("worker")
	}
	return s
}

// add starts one more process and waits until it is ready.
func (s *stage) add(command string, env ...string) *server {
	s.t.Helper()
	s.begun++
	name := fmt.Sprintf("%s%d", command, s.begun) // its data directory is nobody else's
	data := filepath.Join(s.plan.Out, name)
	s.must(os.MkdirAll(data, 0o711))
	p := &server{name: name, command: command, book: s.book, binary: s.plan.Binary, log: data + ".log"}
	p.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + data, "TMPDIR=" + os.TempDir(), "DATABASE_URL=" + s.postgres.URL, "REDIS_URL=" + s.redis.URL,
		"PIECEWORK_DATA=" + data, "PIECEWORK_LISTEN=127.0.0.1:0", "PIECEWORK_CLAUDE_PATH=" + s.claude, "ANTHROPIC_API_KEY=sk-none",
	}, append(s.env, env...)...)
	p.start()
	s.crew = append(s.crew, p)
	s.must(p.awaitReady(s.t.Context(), time.Minute))
	return p
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// until waits for what must come, at most for limit.
func (s *stage) until(limit time.Duration, what string, done func() bool) {
	s.t.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%v have passed without: %s", limit, what)
		}
	}
}

// count asks the tables for one number.
func (s *stage) count(query string, args ...any) int {
	s.t.Helper()
	var n int
	s.must(s.tables.QueryRow(s.t.Context(), query, args...).Scan(&n))
	return n
}

// inState counts units of a label.
func (s *stage) inState(part string, states ...string) int {
	s.t.Helper()
	return s.count(`SELECT count(*) FROM work_units WHERE tenant = 'default' AND labels @> jsonb_build_object('part', $1::text) AND state = ANY($2)`, part, states)
}

// list asks the tables for one column.
func list[T any](s *stage, query string, args ...any) []T {
	s.t.Helper()
	found, err := s.tables.Query(s.t.Context(), query, args...)
	s.must(err)
	all, err := pgx.CollectRows(found, pgx.RowTo[T])
	s.must(err)
	return all
}

// body is a unit of a scenario's part.
type body map[string]any

func mockUnit(part string, sleep float64) body {
	return body{"backend": "mock", "prompt": "unit", "labels": map[string]string{"part": part}, "payload": map[string]any{"mock": map[string]any{"sleep": sleep}}}
}

func (b body) with(name string, value any) body {
	b[name] = value
	return b
}

// ask sends a request to one of the APIs. Status 0 means that no answer came.
func (s *stage) ask(ctx context.Context, method, path string, b any, header ...string) (int, []byte) {
	doors := s.doors()
	var text []byte
	if b != nil {
		text, _ = json.Marshal(b)
	}
	request, err := http.NewRequestWithContext(ctx, method, doors[rand.IntN(len(doors))].url()+path, bytes.NewReader(text))
	if err != nil {
		return 0, []byte(err.Error())
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := s.http.Do(request)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return answer.StatusCode, text
}

// submit asks for one unit and returns its id; a refusal is noted.
func (s *stage) submit(b body) string {
	status, answer := s.ask(s.t.Context(), http.MethodPost, "/work-units", b)
	s.note(status, http.StatusAccepted, answer)
	var unit struct{ ID string }
	_ = json.Unmarshal(answer, &unit)
	return unit.ID
}

// read looks at one unit; a failure is noted.
func (s *stage) read(id string) {
	status, answer := s.ask(s.t.Context(), http.MethodGet, "/work-units/"+id, nil)
	s.note(status, http.StatusOK, answer)
}

func (s *stage) note(status, want int, answer []byte) {
	if status != want && s.t.Context().Err() == nil {
		s.failed.Add(1)
		s.first.CompareAndSwap(nil, fmt.Sprintf("at %s status %d: %s", time.Now().Format(time.StampMilli), status, answer))
	}
}

// failures is how many requests failed.
func (s *stage) failures() int {
	if n := s.failed.Load(); n > 0 {
		s.t.Errorf("%d requests failed, the first %v", n, s.first.Load())
		return int(n)
	}
	return 0
}

// submitMany submits units over many connections and returns how long it took.
func (s *stage) submitMany(n int, unit func(i int) body) time.Duration {
	s.t.Helper()
	began := time.Now()
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, 64) {
		all.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				s.submit(unit(i))
			}
		})
	}
	all.Wait()
	s.failures()
	return time.Since(began)
}

// customers submit and read all the time until the function that is returned is
// called; it returns how many requests there were. What they submit is in
// a queue that nobody serves.
func (s *stage) customers(n int, pause time.Duration) (end func() int) {
	ctx, stop := context.WithCancel(s.t.Context())
	var all sync.WaitGroup
	var asked atomic.Int64
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				id := s.submit(mockUnit("customer", 0).with("queue", "elsewhere"))
				s.read(id)
				asked.Add(2)
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	return func() int {
		stop()
		all.Wait()
		return int(asked.Load())
	}
}

// figure prints what a scenario came to, in one line.
func (s *stage) figure(format string, args ...any) {
	load, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(load), " ")
	name := s.t.Name()[strings.LastIndexByte(s.t.Name(), '/')+1:]
	fmt.Printf("%s: %s (load %s)\n", name, fmt.Sprintf(format, args...), one)
}

// atMost fails the scenario when a figure is above its promise.
func (s *stage) atMost(what string, got, most time.Duration) {
	s.t.Helper()
	if got > most {
		s.t.Errorf("%s: %v, promised %v", what, got.Round(time.Millisecond), most)
	}
}

// cpuOf is the time that a process has spent on a processor.
func cpuOf(pid int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// residentMB is the memory of a process, in MB.
func residentMB(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		return 0
	}
	kb, _ := strconv.Atoi(fields[0])
	return kb >> 10
}
