// Package handlers is what happens when the bell rings: a worker process. It
// claims units from the ledger, runs them on backends, and writes down how
// they ended. (They are Asynq's handlers, not HTTP's.) What it holds can
// be lost at any line, and the ledger will find out; finished runs that Postgres
// has not taken yet are on its disk (spool), and are handed in later.
//
//	handlers.go  Worker: start, hear, drain, stop
//	unit.go      one unit: claim, prepare, execute, settle, announce
//	prepare.go   a claimed unit made ready for its backend
//	file.go      uploaded files on their way in, output files on their way out
//	accept.go    whether a result is what its unit asked for
//	cache.go     results taken over from earlier runs
//	outcome.go   what becomes of a unit after a run
//	batch.go     batches of which a unit has ended here
//	batch_lane.go  calls that go through a provider's own batches
//	batch_answer.go  what these were answered: for a run, or for its cost
//	lane.go      whether a unit of a backend may begin here just now
//	limiter.go   the rate limit of one model, or of one account
//	admit.go     units that wait for the rate limit of their model
//	pause.go     what operators have paused
//	probe.go     which backends there are, looked at again and again
//	recorder.go  steps on their way to the ledger
//	beat.go      signs of life, and what comes back with them
//	neighbour.go worker processes of this machine that have died
//	metrics.go   what is counted
//	poll.go      work without Redis
//	delivery.go  messages to receivers of webhooks
//	courier.go   which receivers have a message on its way
//	settle.go    the end of a run on its way to the ledger
//	spool.go     finished runs on disk while Postgres is away
//	disk.go      no room for a run, and how it is made
//	prune.go     directories of units on this disk that are old
package handlers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/process"
	"piecework/internal/roots"
	"piecework/internal/transcript"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// Options is what a worker process needs to know.
type Options struct {
	Store      *store.Store
	Bell       *jobs.Bell
	Backends   []backend.Backend
	Queues     map[string]int // name → weight
	Slots      int            // units at once
	Lease      time.Duration  // silence after which others take its units
	Beat       time.Duration  // between two signs of life
	Probe      time.Duration  // between two looks at the backends
	Pack       time.Duration  // between two rounds of the batch lane
	Grace      time.Duration  // for runs to end by themselves at shutdown
	Data       string         // directory for what units need on disk
	Roots      roots.Roots
	Files      *blob.Store
	Sender     *webhook.Sender // of messages to receivers of webhooks
	FilePolicy work.FilePolicy
	Secrets    []string // values that must not be stored

	MCPServers     map[string]backend.MCPServer // that units may name
	AcceptCommands bool                         // acceptance checks of units may be commands
	CommandEnv     []string                     // of these, as NAME=VALUE
	Supervisor     process.Supervisor

	Version string
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Hears   chan<- struct{} // closed when units are taken; may be nil

	Keep jobs.Retention // how long what is over is kept

	full      func() bool   // there is no room for another run; the tests set it
	short     func() bool   // room is to be made; the tests set it
	diskEvery time.Duration // between two looks at the disk; 0: shortagePause
	find      time.Duration // a provider's batch is looked for, before it is sent again; 0: findFor
	packMost  int           // bytes of the lines of one provider batch; 0: backend.MaxBatchBytes
}

// Worker is one worker process.
type Worker struct {
	Options
	id       uuid.UUID
	batches  *marks  // of which a unit has ended here
	lanes    []*lane // one for each backend
	slots    chan struct{}
	taken    atomic.Int64 // messages of units that Asynq was given and that are not done
	rung     chan struct{}
	news     chan struct{}   // there is something to hear
	draining context.Context // ends when no new unit is taken
	letGo    context.CancelCauseFunc
	metrics  metrics
	alone    sync.RWMutex // held by each run, and by a suspect for itself
	secluded atomic.Bool  // a suspect runs alone, or waits to

	courier      *courier
	deliveryRung chan struct{}

	aloneTime time.Duration // a suspect waits for the others to end
	keepTime  time.Duration // for storing a run's output files
	redact    func(string) string

	mu       sync.Mutex
	drainsAt time.Time              // when the drain began
	running  map[uuid.UUID]*running // by run
	asking   map[uuid.UUID]bool     // runs whose claim is not answered yet
	idle     *sync.Cond             // running has become empty
	// finished runs that the ledger has not taken
	unsettled map[uuid.UUID]unsettled
	held      map[held]bool      // what operators have paused
	delayed   map[uuid.UUID]bool // units that begin in a moment, when their model's limiter lets them
	later     sync.WaitGroup     // of these
	beatAt    time.Duration      // process.Uptime when the last confirmed sign of life was sent
	lease     *process.Lease     // of the runs that are claimed from now on
}

type running struct {
	unit  uuid.UUID
	ctx   context.Context
	stop  context.CancelCauseFunc
	lease *process.Lease // that the run was claimed under

	watched atomic.Int64 // until then, by process.Uptime, somebody watches its unit
}

// New makes a worker process; Run starts it.
func New(o Options) *Worker {
	w := &Worker{
		Options: o, id: uuid.Must(uuid.NewV7()),
		slots: make(chan struct{}, o.Slots), rung: make(chan struct{}, 1), news: make(chan struct{}, 1),
		metrics: newMetrics(o.Metrics), redact: transcript.Redactor(o.Secrets), running: map[uuid.UUID]*running{}, delayed: map[uuid.UUID]bool{}, asking: map[uuid.UUID]bool{},
		unsettled: map[uuid.UUID]unsettled{},
		batches:   newMarks(), deliveryRung: make(chan struct{}, 1), keepTime: 2 * time.Minute, aloneTime: 30 * time.Second,
	}
	w.courier = newCourier(w.deliverNext)
	if w.full == nil {
		w.full = func() bool { return diskFull(o.Data) }
	}
	if w.short == nil {
		w.short = func() bool { return diskShort(o.Data) }
	}
	w.diskEvery = cmp.Or(w.diskEvery, shortagePause)
	for _, b := range o.Backends {
		w.lanes = append(w.lanes, &lane{backend: b, missing: notLooked})
	}
	w.draining, w.letGo = context.WithCancelCause(context.Background())
	w.idle = sync.NewCond(&w.mu)
	return w
}

// Run works until ctx ends, then drains: it takes no new unit, lets runs end
// for the grace period, stops the rest and puts their units back. When it
// returns, no process that it started is alive.
func (w *Worker) Run(ctx context.Context) error {
	// What must outlive ctx until the drain is over.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var loops sync.WaitGroup
	defer loops.Wait()
	defer end()
	looked := w.firstLook(life, &loops)
	if err := os.MkdirAll(w.unitsDir(), 0o711); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	unlock, err := process.LockFile(w.processesDir(), w.id.String())
	if err != nil {
		w.Log.Warn("no lock file: if this process dies, other containers see it when its lease is over", "err", err)
	} else {
		defer unlock()
	}
	w.sweep()
	if err := w.register(ctx); err != nil {
		return err
	}
	w.unspool(ctx) // before a lease that such a run needs is ended
	if err := w.beatOnce(ctx); err != nil {
		return err
	}
	<-w.news                                // which the beat has asked for
	if err := w.newsOnce(ctx); err != nil { // before a bell is heard that a pause should keep
		return err
	}
	if err := w.buryNeighbours(ctx); err != nil {
		return err
	}
	for _, loop := range []func(context.Context){w.advanceBatches, w.beat, w.watchNews, w.watchNeighbours, w.watchLease, w.watchBatchLane, w.watchSpool, w.poll, w.pollDeliveries, w.hear, w.prune, w.watchDisk,
		(&jobs.Janitor{Store: w.Store, Files: w.Files, Log: w.Log, Keep: w.Keep, Metrics: w.Metrics}).Run} {
		loops.Go(func() { loop(life) })
	}
	loops.Go(func() { w.watchBackends(life, looked) })
	stop, err := w.serve(w.Bell.Lanes(w.Queues, w.laneNames(everyLane)))
	if err != nil {
		return err
	}
	stopDeliveries, err := w.serveDeliveries()
	if err != nil {
		return err
	}
	if w.Hears != nil {
		close(w.Hears)
	}
	w.Log.Info("worker process ready", "id", w.id, "slots", w.Slots, "backends", w.available())
	<-ctx.Done()
	var delivered sync.WaitGroup
	delivered.Go(stopDeliveries)
	w.drain(context.Cause(ctx), stop)
	delivered.Wait()
	end()
	loops.Wait()
	w.later.Wait()
	if w.cutOff() {
		return nil // nobody would hear it
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := w.Store.Processes.Stop(bye, w.id); err != nil {
		w.Log.Warn("sign off", "err", err)
	}
	return nil
}

// sweep kills what dead worker processes of this machine left running.
func (w *Worker) sweep() {
	if swept, err := process.SweepDead(); err != nil || swept > 0 {
		w.Log.Warn("swept processes of a dead worker process", "count", swept, "err", err)
	}
}

func (w *Worker) queueNames() []string { return slices.Sorted(maps.Keys(w.Queues)) }

// serve starts the Asynq server on the lanes and returns its two stops: one
// that takes no more tasks, one that ends it.
func (w *Worker) serve(lanes map[string]int) (stops [2]func(), err error) {
	if len(lanes) == 0 {
		return [2]func(){func() {}, func() {}}, nil
	}
	client := w.Bell.ServerClient(len(lanes), jobs.Gate{Wait: w.laneWait, Took: w.dequeued, Spare: w.spare}, w.rung)
	server := asynq.NewServerFromRedisClient(client, asynq.Config{
		Concurrency:       w.Slots,
		Queues:            lanes,
		TaskCheckInterval: jobs.CheckInterval, DelayedTaskCheckInterval: jobs.SweepInterval, JanitorInterval: jobs.SweepInterval,
		ShutdownTimeout: time.Second, // nothing is left to wait for after our own drain
		Logger:          asynqLog{w.Log},
		LogLevel:        asynq.WarnLevel,
	})
	if err := server.Start(asynq.HandlerFunc(w.ProcessTask)); err != nil {
		return stops, fmt.Errorf("start asynq server: %w", err)
	}
	halt := func() {
		client.Release()
		w.asynqEnds(server.Stop)
	}
	return [2]func(){halt, func() { w.asynqEnds(server.Shutdown) }}, nil
}

// asynqEnds waits for a stop of Asynq's server, but not for a Redis that says
// nothing: the server asks for each of its lanes in turn. What it leaves undone its
// own recovery does, as after a crash.
func (w *Worker) asynqEnds(stop func()) {
	ended := make(chan struct{})
	go func() { defer close(ended); stop() }()
	select {
	case <-ended:
	case <-time.After(asynqPatience):
		w.Bell.LeaveOpen() // Asynq's server still uses it
		w.Log.Warn("redis does not answer; not waiting for it")
	}
}

// asynqPatience is how long a stop of Asynq's server may take: it waits a second
// for its handlers, which have all ended.
const asynqPatience = 2 * time.Second

// ProcessTask hears one bell. It does not return before the run's process
// tree is dead, whatever Asynq's own context says. The error of a failed run
// is for Asynqmon's counters; the ledger has it already.
func (w *Worker) ProcessTask(_ context.Context, t *asynq.Task) error {
	defer w.taken.Add(-1)
	var task jobs.Task
	if err := json.Unmarshal(t.Payload(), &task); err != nil {
		return fmt.Errorf("read task: %w", err)
	}
	select {
	case w.slots <- struct{}{}:
	case <-w.draining.Done():
		return w.passOn(task.Unit)
	}
	defer func() { <-w.slots }()
	return w.runUnit(task.Unit)
}

// passOn rings again for a unit whose bell was heard too late to run it here.
func (w *Worker) passOn(unit uuid.UUID) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	bells, err := w.Store.Queues.Redispatch(ctx, []uuid.UUID{unit})
	if err != nil {
		return err
	}
	return w.Bell.Ring(ctx, bells...)
}

// hear turns notices into action: a bell ends the wait for work; a cancel of a
// unit that runs here, a pause and a resume have the news read at once. A notice
// may be late or wrong, so it cancels nothing itself: Postgres says whether the
// run that goes on now was asked to stop.
func (w *Worker) hear(ctx context.Context) {
	w.Bell.Listen(ctx, func(n jobs.Notice) {
		switch n.Kind {
		case jobs.NoticeCancel:
			if w.runsUnit(n.Unit) {
				w.askForNews()
			}
		case jobs.NoticeWatch:
			w.watch(n.Units)
		case jobs.NoticePause:
			w.askForNews()
		default:
			if n.Lane == w.Bell.DeliveryLane() {
				w.wakeDeliveries()
				return
			}
			w.wake()
		}
	}, jobs.NoticeWake, jobs.NoticeCancel, jobs.NoticePause, jobs.NoticeWatch)
}

// drain takes no new unit, waits for the grace period, and then stops what is
// left. Every unit is settled when it returns.
func (w *Worker) drain(why error, stops [2]func()) {
	w.mu.Lock()
	w.drainsAt = time.Now()
	w.mu.Unlock()
	w.letGo(why)
	stops[0]()
	w.Log.Info("draining", "running", w.count(), "grace", w.Grace)
	done := make(chan struct{})
	go func() {
		w.mu.Lock()
		for len(w.running) > 0 {
			w.idle.Wait()
		}
		w.mu.Unlock()
		close(done)
	}()
	grace := time.NewTimer(w.Grace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
		w.stopAll(work.ErrShutdown)
		<-done
	}
	stops[1]()
}

// drains is when the drain began.
func (w *Worker) drains() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.drainsAt
}

func (w *Worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.running)
}

// claims notes that a run is being asked for, and returns the function that
// takes the note back.
func (w *Worker) claims(run uuid.UUID) func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asking[run] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.asking, run)
	}
}

// knows tells whether this process runs a run, or asks for it.
func (w *Worker) knows(run uuid.UUID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[run] != nil || w.asking[run]
}

// begin enters a run among the running.
func (w *Worker) begin(run, unit uuid.UUID, lease *process.Lease) {
	ctx, stop := context.WithCancelCause(context.Background())
	w.mu.Lock()
	w.running[run] = &running{unit: unit, ctx: ctx, stop: stop, lease: lease}
	w.mu.Unlock()
	if w.draining.Err() != nil {
		// Claimed in the very moment of shutdown: the drain may have looked
		// already.
		stop(work.ErrShutdown)
	}
}

// runs is what a run lives in.
func (w *Worker) runs(run uuid.UUID) *running {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[run]
}

func (w *Worker) end(run uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[run].stop(nil)
	delete(w.running, run)
	if len(w.running) == 0 {
		w.idle.Broadcast()
	}
}

func (w *Worker) runsUnit(unit uuid.UUID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.running {
		if r.unit == unit {
			return true
		}
	}
	return false
}

// watchTime is how long a word that somebody watches counts.
const watchTime = 5 * time.Second

// watch notes which of the runs here somebody watches.
func (w *Worker) watch(units []uuid.UUID) {
	until := int64(process.Uptime() + watchTime)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.running {
		if slices.Contains(units, r.unit) {
			r.watched.Store(until)
		}
	}
}

func (r *running) isWatched() bool { return int64(process.Uptime()) < r.watched.Load() }

func (w *Worker) stopAll(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.running {
		r.stop(why)
	}
}

// asynqLog gives Asynq's few words to our log.
type asynqLog struct{ log *slog.Logger }

func (l asynqLog) Debug(args ...any) { l.log.Debug(fmt.Sprint(args...), "from", "asynq") }
func (l asynqLog) Info(args ...any)  { l.log.Debug(fmt.Sprint(args...), "from", "asynq") }
func (l asynqLog) Warn(args ...any)  { l.log.Debug(fmt.Sprint(args...), "from", "asynq") }
func (l asynqLog) Error(args ...any) { l.log.Warn(fmt.Sprint(args...), "from", "asynq") }
func (l asynqLog) Fatal(args ...any) { l.log.Error(fmt.Sprint(args...), "from", "asynq") }
