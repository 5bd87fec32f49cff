package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/handlers"
	"piecework/internal/backend"
	"piecework/internal/backend/model"
	"piecework/internal/backend/model/anthropic"
	"piecework/internal/backend/model/openai"
	proc "piecework/internal/process"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

const (
	inFlight = 5000             // units that wait for a model at once
	held     = 20 * time.Second // how long they are held before memory is read
	perUnit  = 60               // KB that a unit may take
)

// TestInFlight holds many units in flight in one worker process, from the
// ledger and the bell to a slow model in another process, and tells what each
// takes of the worker process's memory above what it took when idle. All of
// them must succeed.
func TestInFlight(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < inFlight+200 {
		t.Skipf("too few file descriptors: %d (%v)", limit.Cur, err)
	}
	for _, name := range []string{"openai", "anthropic"} {
		t.Run(name, func(t *testing.T) { holdInFlight(t, name) })
	}
}

func holdInFlight(t *testing.T, name string) {
	database, redis := testkit.DB(t, migrate), testkit.Redis(t)
	ledger, err := store.Open(t.Context(), database, 20)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	bell, err := queue.Connect(redis, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	model, url := startPart(t, "model")
	worker, _ := startPart(t, "worker", "DATABASE="+database, "REDIS="+redis, "MODEL="+url, "DATA="+t.TempDir(), "BACKEND="+name)

	var idle, full, freed memory
	worker.ask("free", &idle)
	submitted := time.Now()
	submit(t, ledger, bell, name)
	var now streams
	testkit.Eventually(t, "all units in flight", func() bool {
		model.ask("streams", &now)
		return now.Open == inFlight
	})
	t.Logf("%d in flight after %.1f s", inFlight, time.Since(submitted).Seconds())
	time.Sleep(held)
	worker.ask("look", &full)
	worker.ask("free", &freed)
	model.ask("end", &now)
	if now.Most != inFlight {
		t.Errorf("%d streams at once, want %d", now.Most, inFlight)
	}
	wantSuccesses(t, database)
	t.Logf("idle:           %v", idle)
	t.Logf("in flight:      %v", full)
	t.Logf("after freeing:  %v", freed)
	t.Logf("KB per unit:    resident %.1f; heap in use %.1f, stacks %.1f; %.1f goroutines", full.kb(idle, memory.resident),
		full.kb(idle, memory.heap), full.kb(idle, memory.stack), float64(full.Goroutines-idle.Goroutines)/inFlight)
	t.Logf("after freeing:  resident %.1f; heap in use %.1f, stacks %.1f", freed.kb(idle, memory.resident),
		freed.kb(idle, memory.heap), freed.kb(idle, memory.stack))
	if got := full.kb(idle, memory.resident); got > perUnit {
		t.Errorf("a unit in flight takes %.1f KB, more than %d", got, perUnit)
	}
}

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, url)
	return err
}

// submit accepts the units as an API does.
func submit(t *testing.T, ledger *store.Store, bell *queue.Client, name string) {
	t.Helper()
	var callers sync.WaitGroup
	for range inFlight / 100 {
		callers.Go(func() {
			for range 100 {
				if err := acceptFor(t.Context(), ledger, bell, name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
}

func acceptFor(ctx context.Context, ledger *store.Store, bell *queue.Client, name string) error {
	unit, _, err := ledger.Units.Accept(ctx, store.NewUnit{Unit: work.Unit{
		ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "Summarise lorem",
		Spec: work.Spec{
			Backend: name, Model: "slow", Prompt: "Summarise {text}",
			Payload: json.RawMessage(`{"text":"` + strings.Repeat("lorem ipsum ", 85) + `"}`), Labels: json.RawMessage(`{}`),
			Timeout: work.DefaultTimeout, IdleTimeout: work.DefaultIdle, MissingKey: "fail", Queue: "default", Priority: 5,
		},
	}})
	if err != nil {
		return err
	}
	return bell.Enqueue(ctx, store.MessageOf(unit))
}

func wantSuccesses(t *testing.T, database string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	count := func(condition string) (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM work_units WHERE "+condition).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	testkit.Eventually(t, "all units ended", func() bool { return count("state IN ('queued', 'running')") == 0 })
	if n := count("state = 'succeeded' AND run_count = 1"); n != inFlight {
		t.Errorf("%d of %d units succeeded at their first run", n, inFlight)
	}
}

// memory is what a process takes, in bytes.
type memory struct{ Resident, Heap, Stack, Sys, Goroutines int64 }

func (m memory) resident() int64 { return m.Resident }
func (m memory) heap() int64     { return m.Heap }
func (m memory) stack() int64    { return m.Stack }

func (m memory) kb(idle memory, what func(memory) int64) float64 {
	return float64(what(m)-what(idle)) / inFlight / 1024
}

func (m memory) String() string {
	return fmt.Sprintf("%.1f MB resident; %.1f MB of heap in use, %.1f MB of stacks, %.1f MB from the system; %d goroutines",
		float64(m.Resident)/1e6, float64(m.Heap)/1e6, float64(m.Stack)/1e6, float64(m.Sys)/1e6, m.Goroutines)
}

// beWorker is a worker process as `piecework worker` wires one.
func beWorker() {
	defer proc.TuneGC()()
	ctx, stop := context.WithCancel(context.Background())
	log := slog.New(slog.NewTextHandler(io.Discard, nil)) // formatted, as in production
	ledger, err := store.Open(ctx, os.Getenv("DATABASE"), 40)
	if err != nil {
		panic(err)
	}
	bell, err := queue.Connect(os.Getenv("REDIS"), log)
	if err != nil {
		panic(err)
	}
	hears := make(chan struct{})
	worker := handlers.New(handlers.Options{
		Store: ledger, Queue: bell, Backends: []backend.Backend{modelAt(os.Getenv("BACKEND"), os.Getenv("MODEL"))},
		Queues: map[string]int{"default": 1}, Slots: inFlight, Lease: 30 * time.Second, Beat: 5 * time.Second, Probe: 30 * time.Second, Pack: time.Minute,
		Grace: time.Second, Data: os.Getenv("DATA"), Log: log, Secrets: []string{strings.Repeat("postgres", 4), strings.Repeat("sk-secret", 6)}, Metrics: prometheus.NewRegistry(), Ready: hears,
	})
	var loops sync.WaitGroup
	loops.Go(func() { bell.WatchRedis(ctx) })
	loops.Go(func() { (&jobs.Reconciler{Store: ledger, Queue: bell, Log: log}).Run(ctx) })
	loops.Go(func() {
		if err := worker.Run(ctx); err != nil {
			panic(err)
		}
	})
	<-hears
	fmt.Println("ready")
	eachWord(look)
	stop()
	loops.Wait()
}

func modelAt(name, url string) backend.Backend {
	prices, err := backend.ReadPrices(nil)
	if err != nil {
		panic(err)
	}
	if name == "anthropic" {
		return &anthropic.Backend{Options: model.Options{BaseURL: url, Prices: prices}}
	}
	return &openai.Backend{Options: model.Options{BaseURL: url + "/v1", Prices: prices}}
}

// look reads this process's memory. Told to free, it first gives back what is
// not in use.
func look(word string) any {
	if word == "free" {
		for range 3 { // a stack shrinks by half each time
			debug.FreeOSMemory()
		}
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	profile(word)
	return memory{
		Resident: resident(), Heap: int64(stats.HeapInuse), Stack: int64(stats.StackInuse), Sys: int64(stats.Sys - stats.HeapReleased),
		Goroutines: int64(runtime.NumGoroutine()),
	}
}

func resident() int64 {
	status, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		panic(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(status))[1], 10, 64)
	if err != nil {
		panic(err)
	}
	return pages * int64(os.Getpagesize())
}

// profile leaves profiles of the heap and of goroutines in a directory that
// PIECEWORK_BENCH_PROFILES names.
func profile(word string) {
	dir := os.Getenv("PIECEWORK_BENCH_PROFILES")
	if dir == "" {
		return
	}
	for _, kind := range []string{"heap", "goroutine"} {
		out, err := os.Create(filepath.Join(dir, os.Getenv("BACKEND")+"-"+word+"."+kind))
		if err != nil {
			panic(err)
		}
		if err := pprof.Lookup(kind).WriteTo(out, 0); err != nil {
			panic(err)
		}
		_ = out.Close()
	}
}
