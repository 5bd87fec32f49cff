package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"piecework/api"
	"piecework/api/ops"
	"piecework/handlers"
	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/process"
	"piecework/internal/roots"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

// APICommand is `piecework api`.
type APICommand struct {
	Base
	Door
	Pricing
}

// Run serves until the context ends.
func (c *APICommand) Run(app *App) error {
	if err := c.needURLs(); err != nil {
		return err
	}
	var err error
	if c.Known, err = c.prices(); err != nil {
		return err
	}
	return runHouse(app, &c.Base, &c.Door, nil, "")
}

// WorkerCommand is `piecework worker`.
type WorkerCommand struct {
	Base
	Listen string `env:"PIECEWORK_LISTEN" default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Address to serve /healthz and /metrics (${default}); port 0 picks one."`
	Crew
}

// Run works until the context ends, then drains.
func (c *WorkerCommand) Run(app *App) error {
	if err := c.needURLs(); err != nil {
		return err
	}
	var err error
	if c.Known, err = c.prices(); err != nil {
		return err
	}
	return runHouse(app, &c.Base, nil, &c.Crew, c.Listen)
}

// MigrateCommand is `piecework migrate`.
type MigrateCommand struct {
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" required:"" placeholder:"URL" help:"Postgres, which holds the state."`
}

// Run migrates and says what it did.
func (c *MigrateCommand) Run(app *App) error {
	applied, err := store.Migrate(app.Ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	for _, name := range applied {
		fmt.Fprintln(app.Stdout, "applied", name)
	}
	fmt.Fprintln(app.Stdout, "schema up to date")
	return nil
}

// startWait is how long a server waits for Postgres when it starts.
const startWait = time.Minute

// migrate brings the schema up to date. It waits for a Postgres that does not
// answer yet: after a restart of the machine nobody knows who is first.
func migrate(ctx context.Context, url string, log *slog.Logger) error {
	end := time.Now().Add(startWait)
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 4*time.Second) {
		_, err := store.Migrate(ctx, url)
		var away *work.Unavailable
		if err == nil || !errors.As(err, &away) || time.Until(end) < pause {
			return err
		}
		log.Warn("waiting for postgres", "at_most", time.Until(end).Round(time.Second), "err", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped while waiting for postgres: %w", err)
		case <-time.After(pause):
		}
	}
}

// house is the parts of a running server.
type house struct {
	log      *slog.Logger
	registry *prometheus.Registry
	store    *store.Store
	bell     *queue.Client
	roots    roots.Roots
	files    *blob.Store
	policy   work.FilePolicy

	mcpServers map[string]backend.MCPServer
	submitter  *jobs.Submitter

	sealer   webhook.Sealer
	webhooks webhook.Guard
	// containment is how the worker process holds agents together; empty
	// without one.
	containment process.Containment
}

// runHouse wires the parts and runs them until the context ends: an API when
// there is a door, a worker process when there is a crew. It reads from top to
// bottom.
func runHouse(app *App, base *Base, door *Door, crew *Crew, health string) error {
	log := base.logger(app)
	var gear gear
	if crew != nil {
		var err error
		if gear, err = crew.gear(app.Getenv, app.Supervisor); err != nil {
			return err
		}
	}
	if app.Getenv("GOGC") == "" {
		defer process.TuneGC()()
	}
	if door != nil {
		if err := door.check(); err != nil {
			return err
		}
	}
	buckets, err := blob.ParseBuckets(base.Buckets)
	if err != nil {
		return usagef("--buckets: %w", err)
	}
	named, err := base.prepare()
	if err != nil {
		return err
	}
	files, policy, err := base.open(app.Ctx, base.Data)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }()
	sealer, err := base.sealer()
	if err != nil {
		return err
	}
	mcpServers, err := base.mcpServers()
	if err != nil {
		return err
	}
	guard, err := base.webhooks()
	if err != nil {
		return err
	}
	logConfig(log, base, door, crew)

	if err := migrate(app.Ctx, base.DatabaseURL, log); err != nil {
		return err
	}
	conns := 20
	if crew != nil {
		conns += min(crew.Concurrency, 20)
	}
	var options []store.Option
	if !base.PrepareStatements {
		options = append(options, store.Unprepared)
	}
	ledger, err := store.Open(app.Ctx, base.DatabaseURL, conns, options...)
	if err != nil {
		return err
	}
	defer func() { _ = ledger.Close() }()
	bell, err := queue.Connect(base.RedisURL, log)
	if err != nil {
		return usagef("%w", err)
	}
	defer func() { _ = bell.Close() }()
	id, err := ledger.Queues.Epoch(app.Ctx, uuid.NewString())
	if err != nil {
		return err
	}
	bell.OfDatabase(id)
	h := house{log: log, registry: newRegistry(), store: ledger, bell: bell, roots: named, files: files, policy: policy, webhooks: guard,
		sealer: sealer, mcpServers: mcpServers}
	h.submitter = jobs.NewSubmitter(&jobs.Rules{
		Store: ledger, Roots: named, Files: files, Buckets: buckets, FilePolicy: policy, AcceptCommands: base.AcceptCommands,
		ProjectSettings: base.ProjectSettings, MCPServers: slices.Sorted(maps.Keys(mcpServers)), Webhooks: guard, Prices: base.Known,
	}, bell, log, h.registry)
	if err := bell.Probe(app.Ctx); err != nil {
		log.Warn("redis is away; units are accepted and claimed from postgres", "err", err)
	}

	group, ctx := errgroup.WithContext(app.Ctx)
	until, endLoops := context.WithCancel(context.WithoutCancel(app.Ctx))
	var loops sync.WaitGroup
	defer loops.Wait() // before the ledger and the bell are closed
	defer endLoops()
	loops.Go(func() { bell.WatchRedis(until) })
	loops.Go(func() { (&jobs.Reconciler{Store: ledger, Queue: bell, Log: log}).Run(until) })

	blocked := func() string { return "" }
	shift := shift{hears: make(chan struct{}), drained: make(chan struct{})}
	if crew != nil {
		h.containment = app.Supervisor.Containment()
		log.Info("processes of agents are held together", "by", h.containment)
		loops.Go(func() { jobs.NewEnumerator(h.submitter).Run(until); h.submitter.Wait() })
		worker := h.worker(app, base, crew, gear, shift.hears)
		blocked = worker.Blocked
		group.Go(func() error { defer close(shift.drained); return worker.Run(ctx) })
	} else {
		close(shift.hears)
		close(shift.drained)
	}
	if door != nil {
		group.Go(func() error { return h.serveAPI(ctx, app, door, shift) })
	}
	if health != "" {
		group.Go(func() error { return h.serveHealth(ctx, app, health, shift, blocked) })
	}
	return group.Wait()
}

// shift is the worker process of this house in two moments; without one both
// have passed.
type shift struct {
	hears   chan struct{} // closed when it takes units
	drained chan struct{} // closed when it has let go of them
}

func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func (h house) worker(app *App, base *Base, crew *Crew, gear gear, hears chan struct{}) *handlers.Worker {
	sender := webhook.NewSender(h.webhooks, "piecework/"+app.Version, webhook.Timeout)
	return handlers.New(handlers.Options{
		Store: h.store, Queue: h.bell, Backends: gear.backends, Queues: gear.queues, Slots: crew.Concurrency,
		Lease: crew.Lease, Beat: crew.Heartbeat, Probe: crew.Probe, Pack: crew.Pack, Grace: crew.Grace, Data: base.Data, Roots: h.roots,
		Files: h.files, FilePolicy: h.policy, Sender: sender, MCPServers: h.mcpServers, AcceptCommands: base.AcceptCommands,
		CommandEnv: gear.env, Supervisor: app.Supervisor,
		Secrets: slices.Concat(gear.secrets, serverSecrets(h.mcpServers), base.secrets(), base.Storage.secrets(app.Getenv)),
		Version: app.Version, Log: h.log, Metrics: h.registry, Ready: hears,
		Keep: crew.retention(),
	})
}

// serverSecrets are what MCP servers are given that must not be shown.
func serverSecrets(servers map[string]backend.MCPServer) (secrets []string) {
	for _, s := range servers {
		secrets = append(secrets, s.Secrets()...)
	}
	return secrets
}

// serveAPI answers until ctx ends and the worker process of this house has
// drained: its units can be watched to the last.
func (h house) serveAPI(ctx context.Context, app *App, door *Door, shift shift) error {
	listener, err := door.listen(ctx)
	if err != nil {
		return err
	}
	if door.PublicURL != "" {
		if err := h.store.Endpoints.SetPublicURL(ctx, strings.TrimRight(door.PublicURL, "/")); err != nil {
			return err
		}
	}
	front := api.New(api.Options{
		Submitter: h.submitter, Queue: h.bell, Version: app.Version, MaxBody: door.MaxBody, Sealer: h.sealer,
		Hosts: door.hosts(), Log: h.log, Registry: h.registry, Containment: h.containment,
	})
	watch, unwatch := context.WithCancel(context.WithoutCancel(ctx)) // as long as there are event streams
	var watching sync.WaitGroup
	defer watching.Wait()
	defer unwatch()
	watching.Go(func() { front.Watch(watch) })
	return h.serveHTTP(ctx, app, listener, front, front.EndStreams, shift)
}

func (h house) serveHealth(ctx context.Context, app *App, address string, shift shift, blocked func() string) error {
	door := Door{Listen: address, NoAuth: true} // it tells nothing that needs a key
	listener, err := door.listen(ctx)
	if err != nil {
		return err
	}
	return h.serveHTTP(ctx, app, listener, ops.Health(h.registry, h.store, h.bell, h.containment, blocked), func() {}, shift)
}

// serveHTTP serves, says so on stdout once units are taken too, and ends when
// ctx has ended and the worker process has drained. It calls ending when it
// begins to end, for answers that would go on for ever.
func (h house) serveHTTP(ctx context.Context, app *App, listener net.Listener, handler http.Handler, ending func(), shift shift) error {
	limit := newConnLimit(listener, mostConns(), h.log)
	server := &http.Server{
		ConnState: limit.track,
		Handler:   handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		WriteTimeout:   10 * time.Minute, // held answers and slow readers both end some time
		MaxHeaderBytes: 64 << 10,
		BaseContext:    func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	server.RegisterOnShutdown(ending)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(limit) }()
	ready := shift.hears
	for ctx.Err() == nil {
		select {
		case <-ready:
			fmt.Fprintf(app.Stdout, "ready http://%s\n", listener.Addr())
			ready = nil
		case err := <-failed:
			return fmt.Errorf("serve: %w", err)
		case <-ctx.Done():
		}
	}
	<-shift.drained
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(bye); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}
