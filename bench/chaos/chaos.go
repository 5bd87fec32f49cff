// Package chaos runs the real Piecework while processes die, networks break and
// servers forget, and then checks what was promised: nothing lost, nothing
// twice.
//
// A run has three parts that know little of each other. The load submits units
// and writes down every answer it got. The faults break things by a seed. The
// checker reads what both wrote and the tables, and nothing else. The same seed
// breaks the same things at the same times; what they meet there is never the
// same twice.
//
//	chaos.go     Plan and Execute: one run from the first process to the last
//	load.go      units and the clients that submit them
//	batch.go     batches, which are paused and resumed
//	sink.go      the receivers of webhooks, who do not always take what comes
//	fault.go     what breaks, and how it is mended
//	process.go   the processes under test, started again when they end
//	disk.go      file systems that can be filled
//	stall.go     when the machine itself stood still
//	agent.go     the command-line agent, which notes when it is not alone
//	proxy.go     the network between them and their servers
//	history.go   what was seen from outside
//	ledger.go    what the tables say
//	promises.go  the promises, where they are written, and what looks at each
//	check.go     the checker: units, runs and agents
//	told.go      batches and messages
//	limits.go    times, causes, windows, budgets, results that are reused
//	leak.go      secrets and prompts where they should not be
//	figures.go   how long recovery took
package chaos

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"piecework/internal/testkit"
)

// Plan is what one run does.
type Plan struct {
	Seed     uint64
	Binary   string        // piecework
	Out      string        // directory for the history and the logs
	Duration time.Duration // of load and faults
	Units    int
	Faults   int
	Only     []string      // names of faults; empty: all
	Agents   float64       // share of units that an agent runs
	Stretch  float64       // of the units' own times
	Lease    time.Duration // of worker processes
	Slots    int           // of each worker process
	Drain    time.Duration // for what was accepted to end after the last fault
	NoRedis  bool          // it is away all the time
	Cancels  bool          // every unit is endless, and cancelled
}

const (
	workers = 3
	apis    = 2
	grace   = time.Second

	// How long to wait for what must come. A slow machine is no broken promise,
	// so these only tell that it never will.
	startLimit  = 5 * time.Minute  // for a process to be ready
	exitLimit   = 2 * time.Minute  // for it to end after SIGTERM
	orphanLimit = 30 * time.Second // for what an agent left behind to die
)

// Execute carries a plan out and returns what the history and the tables say.
func Execute(t testing.TB, plan Plan) (History, Ledger) {
	t.Helper()
	redis := testkit.StartRedis(t)
	if !redis.Real() {
		t.Skip("there is no redis-server to break")
	}
	book, err := newBook(filepath.Join(plan.Out, "history.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer book.close()
	random := rand.New(rand.NewPCG(plan.Seed, 0))
	sink := newSink(book)
	defer sink.close()
	w := &world{plan: plan, book: book, redis: redis, disks: map[string]*disk{}}
	w.mount(t)
	if d := w.disks["postgres"]; d != nil {
		w.postgres = testkit.OwnPostgresIn(t, d.dir, migrate(plan.Binary))
	} else {
		w.postgres = testkit.OwnPostgres(t, migrate(plan.Binary))
	}
	w.forgetful()
	if w.data, err = watch(t.Context(), w.postgres.URL, sink.secret); err != nil {
		t.Fatal(err)
	}
	agents := agentsIn(t, plan.Out)
	if err := w.start(t.Context(), agents.program); err != nil {
		t.Fatal(err)
	}
	defer w.kill()

	load := newLoad(plan, book, w.doors(), sink, agents, rand.New(rand.NewPCG(plan.Seed, 1)))
	going, stop := context.WithCancel(t.Context())
	defer stop()
	go noteStalls(going, book, plan.Lease/6)
	if plan.NoRedis {
		w.redis.Stop()
	}
	load.start(going)
	w.play(schedule(plan, random))
	w.thawPostgres()
	book.write(Event{Kind: KindCalm})
	calm := time.Now()
	load.finish(plan.Drain)
	open, err := awaitFinal(t.Context(), w.postgres.URL, calm.Add(plan.Drain))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range open {
		book.write(Event{Kind: KindOpen, Unit: id})
	}
	book.write(Event{Kind: KindDrained, Seconds: time.Since(calm).Seconds()})
	stop()
	load.asking.Wait() // a request without an answer ends now, and was slow
	load.looking.Wait()
	w.stop(t.Context())
	agents.report(book)
	w.leaks()
	ledger, err := readLedger(t.Context(), w.postgres.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := save(filepath.Join(plan.Out, "ledger.json"), ledger); err != nil {
		t.Fatal(err)
	}
	log.Printf("seed %d: %d units, batches and messages open, %v after the last fault", plan.Seed, len(open), time.Since(calm).Round(100*time.Millisecond))
	return book.all(), ledger
}

// world is everything that can break.
type world struct {
	plan     Plan
	book     *book
	redis    *testkit.RedisServer
	postgres *testkit.PostgresServer
	data     string // the directory of Postgres
	frozen   []int  // processes of Postgres that are stopped
	crew     []*server
	links    map[string]*link // by "NAME/redis" and "NAME/postgres"
	disks    map[string]*disk // of the worker processes and of "postgres"; none unless we are root
}

// mount gives what can run out of disk a small one.
func (w *world) mount(t testing.TB) {
	sizes := map[string]string{"postgres": postgresDisk}
	for i := range workers {
		sizes[workerName(i)] = workerDisk
	}
	for name, size := range sizes {
		d, err := mount(t, size)
		if err != nil {
			log.Printf("SKIPPED: no disk of %s can run full: %v", name, err)
			continue
		}
		w.disks[name] = d
	}
}

func workerName(i int) string { return fmt.Sprintf("worker%d", i+1) }

// start starts the processes, each behind links of its own, and waits until all
// are ready.
func (w *world) start(ctx context.Context, claude string) error {
	w.links = map[string]*link{}
	files := "file://" + filepath.Join(w.plan.Out, "files")
	for i := range apis + workers {
		name, command := fmt.Sprintf("api%d", i+1), "api"
		if i >= apis {
			name, command = workerName(i-apis), "worker"
		}
		redis, err := newLink(socketOf(w.redis.URL), apiKey, private)
		if err != nil {
			return err
		}
		postgres, err := newLink(socketOf(w.postgres.URL))
		if err != nil {
			return err
		}
		w.links[name+"/redis"], w.links[name+"/postgres"] = redis, postgres
		data := filepath.Join(w.plan.Out, name)
		log := data + ".log"
		if d := w.disks[name]; d != nil {
			data = d.dir
		} else if err := os.MkdirAll(data, 0o711); err != nil {
			return err
		}
		p := &server{name: name, command: command, book: w.book, binary: w.plan.Binary, log: log, env: []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + data, "TMPDIR=" + os.TempDir(),
			"DATABASE_URL=postgres://piecework@" + postgres.addr() + "/piecework?sslmode=disable",
			"REDIS_URL=redis://" + redis.addr() + "/0",
			"PIECEWORK_DATA=" + data, "PIECEWORK_LISTEN=127.0.0.1:0", "PIECEWORK_CLAUDE_PATH=" + claude,
			fmt.Sprintf("PIECEWORK_CONCURRENCY=%d", w.plan.Slots), "PIECEWORK_QUEUES=" + serving, "PIECEWORK_LEASE=" + w.plan.Lease.String(),
			"PIECEWORK_HEARTBEAT=" + (w.plan.Lease / 6).String(), "PIECEWORK_GRACE=" + grace.String(), "PIECEWORK_PROBE=1s",
			"ANTHROPIC_API_KEY=" + apiKey, "PIECEWORK_WEBHOOK_ALLOW=127.0.0.0/8", "PIECEWORK_FILES=" + files,
		}}
		p.start()
		w.crew = append(w.crew, p)
	}
	for _, p := range w.crew {
		if err := p.awaitReady(ctx, startLimit); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the worker processes as a deploy does, looks for what they left,
// and ends the rest. One that has only just started could not hear the signal.
func (w *world) stop(ctx context.Context) {
	for _, p := range w.crew {
		if err := p.awaitReady(ctx, startLimit); err != nil {
			w.book.write(Event{Kind: KindProcess, Target: p.name, What: "stuck", Seconds: startLimit.Seconds(), Error: err.Error()})
		}
	}
	for _, p := range w.of("worker") {
		p.quit()
	}
	for _, p := range w.of("worker") {
		p.awaitEnd(exitLimit)
	}
	reportOrphans(w.book, orphanLimit)
	for _, p := range w.of("api") {
		p.quit()
	}
	for _, p := range w.of("api") {
		p.awaitEnd(exitLimit)
	}
}

// kill ends whatever still runs, and the network with it.
func (w *world) kill() {
	for _, p := range w.crew {
		p.end()
	}
	for _, l := range w.links {
		l.close()
	}
}

func (w *world) of(command string) []*server {
	var found []*server
	for _, p := range w.crew {
		if p.command == command {
			found = append(found, p)
		}
	}
	return found
}

func (w *world) doors() []*server { return w.of("api") }
