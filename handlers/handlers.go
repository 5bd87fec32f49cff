// Package handlers is a worker process: it takes messages from the queue, claims
// their units in Postgres, runs them on backends, and writes down how they ended.
// (They are Asynq's handlers, not HTTP's.) What it holds can be lost at any line, and
// Postgres will find out; finished runs that Postgres has not taken yet are on its
// disk (spool), and are handed in later. What it does beside its runs is in
// handlers/upkeep.
//
// One run, in reading order:
//
//	handlers.go  Worker: what it consists of; start, drain, stop
//	server.go    messages from Redis
//	poll.go      work without Redis
//	admit.go     whether a unit may begin here just now; units that wait for the rate limit of their model
//	claim.go     a unit from its message to its run
//	run.go       one run: prepare, execute, finish
//	prepare.go   a claimed unit made ready for its backend
//	files.go     uploaded files on their way in
//	cache.go     results taken over from earlier runs
//	answer.go    what a provider's batch answered its unit
//	accept.go    whether a result is what its unit asked for
//	recorder.go  steps on their way to Postgres
//	outputs.go   output files on their way out
//	outcome.go   what becomes of a unit after a run
//	finish.go    the end of a run on its way to Postgres
//	metrics.go   what is counted
package handlers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/handlers/upkeep"
	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/process"
	"piecework/internal/roots"
	"piecework/internal/transcript"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

// Options is what a worker process needs to know.
type Options struct {
	Store      *store.Store
	Queue      *queue.Client
	Backends   []backend.Backend
	Queues     map[string]int // name → weight
	Slots      int            // units at once
	Lease      time.Duration  // silence after which others take its units
	Beat       time.Duration  // between two heartbeats
	Probe      time.Duration  // between two probes of the backends
	Pack       time.Duration  // between two rounds of the provider batches
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
	Ready   chan<- struct{} // closed when units are taken; may be nil

	Keep jobs.Retention // how long what is over is kept

	// The tests set these.
	full      func() bool   // there is no room for another run
	short     func() bool   // room is to be made
	diskEvery time.Duration // between two looks at the disk; 0: upkeep.DiskEvery
	find      time.Duration // a provider's batch is looked for, before it is sent again; 0: as long as a transfer may take
	packMost  int           // bytes of the lines of one provider batch; 0: backend.MaxBatchBytes
}

// Worker is one worker process.
type Worker struct {
	Options
	id      uuid.UUID
	slots   chan struct{}
	taken   atomic.Int64  // messages of units that Asynq was given and that are not done
	wakeUp  upkeep.Signal // there may be work
	metrics metrics
	redact  func(string) string
	files   *files

	drain     *upkeep.Drain
	runs      *upkeep.Runs
	health    *upkeep.Health
	pauses    *upkeep.Pauses
	spool     *upkeep.Spool
	disk      *upkeep.Disk
	heartbeat *upkeep.Heartbeat
	peers     *upkeep.Peers
	batches   *upkeep.Batches
	provider  *upkeep.ProviderBatches
	delivery  *upkeep.Deliveries

	alone     sync.RWMutex  // held by each run, and by a suspect for itself
	isolating atomic.Bool   // a suspect runs alone, or waits to
	aloneTime time.Duration // a suspect waits for the others to end

	mu      sync.Mutex
	delayed map[uuid.UUID]bool // units that begin in a moment, when their model's limiter lets them
	later   sync.WaitGroup     // of these
}

// New makes a worker process; Run starts it.
func New(o Options) *Worker {
	w := &Worker{
		Options: o, id: uuid.Must(uuid.NewV7()), slots: make(chan struct{}, o.Slots), wakeUp: upkeep.NewSignal(),
		metrics: newMetrics(o.Metrics), redact: transcript.Redactor(o.Secrets),
		drain: upkeep.NewDrain(o.Grace), aloneTime: 30 * time.Second, delayed: map[uuid.UUID]bool{},
	}
	w.runs = upkeep.NewRuns(w.drain)
	w.health = upkeep.NewHealth(o.Backends, w.wakeUp, o.Log)
	w.pauses = &upkeep.Pauses{Health: w.health, WakeUp: w.wakeUp, Log: o.Log}
	w.spool = upkeep.NewSpool(o.Store, filepath.Join(o.Data, "spool"), w.announce, o.Log)
	w.disk = &upkeep.Disk{
		Store: o.Store, Log: o.Log, Process: w.id, Data: o.Data, Spool: w.spool,
		Changed: w.roomChanged, Full: o.full, Short: o.short,
	}
	w.disk.Init(o.Metrics)
	w.delivery = &upkeep.Deliveries{
		Store: o.Store, Queue: o.Queue, Log: o.Log, Process: w.id, Sender: o.Sender, Redact: w.redact, Drain: w.drain,
	}
	w.delivery.Init(o.Metrics)
	w.heartbeat = &upkeep.Heartbeat{
		Store: o.Store, Log: o.Log, Process: w.id, Version: o.Version, Slots: o.Slots, Queues: w.queueNames(), Lease: o.Lease,
		Every: o.Beat,
		Runs:  w.runs, Spool: w.spool, Health: w.health, Pauses: w.pauses, Disk: w.disk,
		WakeUps: []upkeep.Signal{w.wakeUp, w.delivery.WakeUp},
	}
	w.heartbeat.Init()
	w.delivery.Heartbeat = w.heartbeat
	w.peers = &upkeep.Peers{Store: o.Store, Log: o.Log, Process: w.id, Dir: filepath.Join(o.Data, "processes"), Spool: w.spool}
	w.batches = upkeep.NewBatches(o.Store, o.Queue, o.Log)
	w.provider = &upkeep.ProviderBatches{
		Store: o.Store, Log: o.Log, Process: w.id, Health: w.health, Heartbeat: w.heartbeat, Drain: w.drain,
		Every: o.Pack, Line: w.batchLine, FindFor: o.find, MaxSize: o.packMost,
	}
	w.files = &files{
		store: o.Store, blobs: o.Files, roots: o.Roots, policy: o.FilePolicy, redact: w.redact, drain: w.drain, log: o.Log,
		storeTime: 2 * time.Minute,
	}
	return w
}

// duties is what this worker process does again and again beside its runs.
func (w *Worker) duties() []upkeep.Duty {
	return []upkeep.Duty{
		{Name: "send a heartbeat", Every: w.Beat, Bound: w.Lease, Do: w.heartbeat.Beat, Retry: w.Beat / 10},
		{Name: "stop runs before the lease ends", Every: w.Beat / 2, Bound: w.Beat, Do: w.heartbeat.Guard},
		{Name: "look for dead worker processes", Every: w.Beat, Bound: w.Lease + time.Minute, Do: w.peers.Check},
		{Name: "hand in finished runs", Every: upkeep.SpoolEvery, Bound: upkeep.Patience, Do: w.spool.HandIn},
		{Name: "look at the disk", Every: cmp.Or(w.diskEvery, upkeep.DiskEvery), Bound: time.Hour, Do: w.disk.Check, AtOnce: true},
		{Name: "remove old directories", Every: upkeep.PruneEvery, Bound: upkeep.PruneEvery, Do: w.disk.Prune, AtOnce: true},
		{Name: "see to provider batches", Every: w.Pack, Do: w.provider.Round, AtOnce: true, Until: w.drain.Done()},
		{Name: "deliver without redis", Every: pollEvery, Bound: time.Minute, Do: w.delivery.Poll, Until: w.drain.Done()},
	}
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
	late := w.health.FirstProbe(life, &loops)
	if err := os.MkdirAll(w.disk.Units(), 0o711); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	defer w.peers.Lock()()
	if err := w.takeUp(ctx); err != nil {
		return err
	}
	for _, d := range w.duties() {
		loops.Go(func() { d.Run(life, w.Log) })
	}
	for _, loop := range []func(context.Context){w.batches.Advance, w.heartbeat.Watch, w.poll, w.listen,
		(&jobs.Janitor{Store: w.Store, Files: w.Files, Log: w.Log, Keep: w.Keep, Metrics: w.Metrics}).Run} {
		loops.Go(func() { loop(life) })
	}
	loops.Go(func() { w.probe(life, late) })
	units, err := w.serveUnits()
	if err != nil {
		return err
	}
	deliveries, err := w.serveDeliveries()
	if err != nil {
		return err
	}
	if w.Ready != nil {
		close(w.Ready)
	}
	w.Log.Info("worker process ready", "id", w.id, "slots", w.Slots, "backends", w.health.Available())
	<-ctx.Done()
	var delivered sync.WaitGroup
	delivered.Go(func() {
		deliveries.stop()
		w.delivery.Close()
		deliveries.shutdown()
	})
	w.finishAll(context.Cause(ctx), units)
	delivered.Wait()
	end()
	loops.Wait()
	w.later.Wait()
	if w.heartbeat.CutOff() {
		return nil // Postgres would not learn of it
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := w.Store.Processes.Stop(bye, w.id); err != nil {
		w.Log.Warn("sign off", "err", err)
	}
	return nil
}

// takeUp makes this process known, and sees to what others have left here.
func (w *Worker) takeUp(ctx context.Context) error {
	upkeep.SweepDead(w.Log)
	if err := w.heartbeat.Register(ctx); err != nil {
		return err
	}
	if err := w.spool.HandIn(ctx); err != nil { // before a lease that such a run needs is ended
		w.Log.Warn("hand in finished runs", "err", err)
	}
	if err := w.heartbeat.Beat(ctx); err != nil {
		return err
	}
	if err := w.heartbeat.FirstCheck(ctx); err != nil { // before a message is taken that a pause should keep
		return err
	}
	return w.peers.Check(ctx)
}

// probe looks at the backends again and again. The end of a first probe that the
// start did not wait for is reported at once.
func (w *Worker) probe(ctx context.Context, late <-chan struct{}) {
	if late != nil {
		<-late
		if err := w.heartbeat.Beat(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("the backends are reported with the next heartbeat", "err", err)
		}
	}
	upkeep.Duty{Name: "probe backends", Every: w.Probe, Do: w.health.Probe}.Run(ctx, w.Log)
}

func (w *Worker) queueNames() []string { return slices.Sorted(maps.Keys(w.Queues)) }

// finishAll takes no new unit, waits for the grace period, and then stops what is
// left. Every run is finished when it returns.
func (w *Worker) finishAll(why error, units server) {
	w.drain.Begin(why)
	units.stop()
	w.Log.Info("draining", "running", w.runs.Count(), "grace", w.Grace)
	done := make(chan struct{})
	go func() { defer close(done); w.runs.Wait() }()
	grace := time.NewTimer(w.Grace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
		w.runs.StopAll(work.ErrShutdown)
		<-done
	}
	units.shutdown()
}

// roomChanged takes in that there is room on the disk again, or none any more.
func (w *Worker) roomChanged() {
	w.heartbeat.CheckSoon()
	w.wakeUp.Send()
}

// Blocked says why this worker process takes no units at all; empty: it takes
// them.
func (w *Worker) Blocked() string { return w.disk.Blocked() }
