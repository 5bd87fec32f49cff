package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/roots"
	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/jobs/queue"
	"piecework/store"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, url)
	return err
}

// puppet is a backend whose every run the test leads by the hand.
type puppet struct {
	name    string
	started chan *puppetRun
}

type puppetRun struct {
	ctx   context.Context
	req   backend.Request
	steps *transcript.Writer
	end   chan backend.Result
}

func newPuppet(name string) *puppet { return &puppet{name: name, started: make(chan *puppetRun, 100)} }

func (p *puppet) Name() string                    { return p.name }
func (p *puppet) Available(context.Context) error { return nil }

func (p *puppet) Execute(ctx context.Context, req backend.Request, steps *transcript.Writer) (backend.Result, error) {
	run := &puppetRun{ctx: ctx, req: req, steps: steps, end: make(chan backend.Result, 1)}
	p.started <- run
	select {
	case r := <-run.end:
		return r, nil
	case <-ctx.Done():
		return backend.Result{Output: "so far", Metadata: backend.Metadata{SessionID: req.SessionID}}, nil
	}
}

func succeed(output string) backend.Result {
	cost := 0.25
	return backend.Result{Success: true, Output: output, Metadata: backend.Metadata{SessionID: "s", TotalCostUSD: &cost}}
}

// fixture is a store, a queue and worker processes around one puppet.
type fixture struct {
	t        *testing.T
	database string
	store    *store.Store
	redis    *testkit.RedisServer // nil when there are several
	queue    *queue.Client
	puppet   *puppet
	files    *blob.Store
	log      *slog.Logger
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, testkit.DB(t, migrate))
}

func newFixtureOn(t *testing.T, database string) *fixture {
	t.Helper()
	redis := testkit.StartRedis(t)
	h := newFixtureAt(t, database, redis.URL)
	h.redis = redis
	return h
}

func newFixtureAt(t *testing.T, database, redis string) *fixture {
	t.Helper()
	ctx := t.Context()
	s, err := store.Open(ctx, database, 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	q, err := queue.Connect(redis, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	files, err := blob.Open(ctx, blob.Local(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	h := &fixture{t: t, database: database, files: files, store: s, queue: q, puppet: newPuppet("mock"), log: log}
	loops, end := context.WithCancel(context.WithoutCancel(ctx))
	var over []chan struct{}
	for _, loop := range []func(context.Context){q.WatchRedis, (&jobs.Reconciler{Store: s, Queue: q, Log: log}).Run} {
		done := make(chan struct{})
		over = append(over, done)
		go func() { defer close(done); loop(loops) }()
	}
	t.Cleanup(func() {
		end()
		for _, done := range over {
			<-done
		}
	})
	return h
}

// worker is one running worker process.
type worker struct {
	*Worker
	stop func()                  // asks it to shut down
	fail context.CancelCauseFunc // the same, and says why
	done chan struct{}
}

// start runs a worker process; change may alter its options.
func (h *fixture) start(change func(*Options)) *worker {
	h.t.Helper()
	ready := make(chan struct{})
	o := Options{
		Store: h.store, Queue: h.queue, Backends: []backend.Backend{h.puppet}, Queues: map[string]int{"default": 1}, Slots: 4,
		Lease: 3 * time.Second, Beat: 200 * time.Millisecond, Probe: 200 * time.Millisecond, Pack: 50 * time.Millisecond,
		Grace: 50 * time.Millisecond, Data: h.t.TempDir(),
		Roots: roots.Roots{}, Files: h.files, Sender: webhook.NewSender(webhook.Guard{Allow: webhook.Loopback()}, "test", 2*time.Second),
		FilePolicy: work.DefaultFilePolicy(), Log: h.log, Metrics: prometheus.NewRegistry(), Ready: ready,
	}
	if change != nil {
		change(&o)
	}
	ctx, fail := context.WithCancelCause(context.Background())
	stop := func() { fail(nil) }
	w := &worker{Worker: New(o), stop: stop, fail: fail, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		if err := w.Run(ctx); err != nil {
			h.t.Error(err)
		}
	}()
	h.t.Cleanup(func() { stop(); <-w.done })
	<-ready
	return w
}

func (h *fixture) submit(change func(*work.Spec)) uuid.UUID {
	h.t.Helper()
	// The payload is one for which the mock needs a directory: the puppet writes there.
	spec := work.Spec{Backend: "mock", Prompt: "do it", Payload: json.RawMessage(`{"mock": {"files": {"a": ""}}}`), Labels: json.RawMessage(`{}`),
		Timeout: 60, IdleTimeout: 60, MissingKey: "fail", Queue: "default", Priority: 5}
	if change != nil {
		change(&spec)
	}
	u, _, err := h.store.Units.Accept(h.t.Context(), store.NewUnit{Unit: work.Unit{
		ID: uuid.Must(uuid.NewV7()), Tenant: work.DefaultTenant, Title: "t", Spec: spec}})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.queue.Enqueue(h.t.Context(), store.MessageOf(u)); err != nil {
		h.t.Log(err) // the reconciler will
	}
	return u.ID
}

// begun waits for the next run of the puppet.
func (h *fixture) begun() *puppetRun {
	h.t.Helper()
	return h.begunOn(h.puppet)
}

func (h *fixture) begunOn(p *puppet) *puppetRun {
	h.t.Helper()
	select {
	case run := <-p.started:
		return run
	case <-time.After(testkit.Patience):
		h.t.Fatal("no run began")
		return nil
	}
}

func (h *fixture) unit(id uuid.UUID) work.Unit {
	h.t.Helper()
	u, err := h.store.Units.Get(h.t.Context(), work.DefaultTenant, id)
	if err != nil {
		h.t.Fatal(err)
	}
	return u
}

func (h *fixture) runs(id uuid.UUID) []work.Run {
	h.t.Helper()
	runs, err := h.store.Runs.OfUnit(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return runs
}

// becomes waits until a unit is in a state.
func (h *fixture) becomes(id uuid.UUID, state work.State) work.Unit {
	h.t.Helper()
	var u work.Unit
	testkit.Eventually(h.t, "unit "+string(state), func() bool {
		u = h.unit(id)
		return u.State == state
	})
	return u
}

func (h *fixture) steps(run uuid.UUID) []transcript.Step {
	h.t.Helper()
	blob, err := h.store.Transcripts.Open(h.t.Context(), work.DefaultTenant, run)
	if err != nil {
		h.t.Fatal(err)
	}
	steps, err := transcript.Decode(blob)
	if err != nil {
		h.t.Fatal(err)
	}
	return steps
}

func statuses(runs []work.Run) (list []work.RunStatus) {
	for _, r := range runs {
		list = append(list, r.Status)
	}
	return list
}

func TestUnitRunsAndItsStepsAreSeenMeanwhile(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(func(o *Options) { o.Secrets = []string{"hunter2-hunter2"} })
	id := h.submit(func(s *work.Spec) {
		s.Prompt, s.Payload = "Say {word}", json.RawMessage(`{"word":"hunter2-hunter2"}`)
	})
	run := h.begun()
	if run.req.Prompt != "Say hunter2-hunter2" {
		t.Errorf("the backend got the prompt %q", run.req.Prompt)
	}
	run.steps.Add(transcript.Step{Type: transcript.Action, Content: []transcript.Content{
		{Type: transcript.ToolCall, ID: "1", Name: "shell", Args: "{}"}}})
	testkit.Eventually(t, "the step in Postgres while the run goes on", func() bool {
		runs := h.runs(id)
		return len(h.steps(runs[0].ID)) == 1 && runs[0].ToolCalls == 1 && *runs[0].LiveStatus == "shell {}"
	})
	run.end <- succeed("the word is hunter2-hunter2\x00")
	u := h.becomes(id, work.Succeeded)
	if *u.Output != "the word is [redacted]" || u.Known() != 0.25 {
		t.Errorf("output %q, cost %v", *u.Output, u.Known())
	}
	r := h.runs(id)[0]
	if *r.RenderedPrompt != "Say [redacted]" || r.Status != work.RunSucceeded {
		t.Errorf("run %+v", r)
	}
	if steps := h.steps(r.ID); len(steps) != 2 || steps[1].Text != "(no result: the run ended)" {
		t.Errorf("transcript %+v", steps)
	}
}

func TestFailureIsRetriedAndThenFinal(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	one := 1
	id := h.submit(func(s *work.Spec) { s.MaxRetries = &one })
	for range 2 {
		h.begun().end <- backend.Result{Error: work.Fail(work.ClassInfra, "500"), Output: "half"}
	}
	u := h.becomes(id, work.Failed)
	if u.Failures != 2 || u.Error.Class != work.ClassInfra || *u.Output != "half" {
		t.Errorf("unit %+v, error %v", u, u.Error)
	}
	if got := statuses(h.runs(id)); len(got) != 2 || got[0] != work.RunFailed || got[1] != work.RunFailed {
		t.Errorf("runs %v", got)
	}
}

func TestMissingKeyFailsBeforeTheBackendIsAsked(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	id := h.submit(func(s *work.Spec) { s.Prompt = "Say {absent}" })
	u := h.becomes(id, work.Failed)
	if u.Error.Class != work.ClassInvalidRequest || !contains(u.Error.Message, "absent") || len(h.puppet.started) != 0 {
		t.Errorf("error %v, %d runs of the backend", u.Error, len(h.puppet.started))
	}
}

func TestTimeoutStopsTheRun(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	id := h.submit(func(s *work.Spec) { s.Timeout = 0.3 })
	run := h.begun()
	u := h.becomes(id, work.TimedOut)
	if !errors.Is(context.Cause(run.ctx), work.ErrTimeout) || u.Error.Class != work.ClassTimeout || *u.Output != "so far" {
		t.Errorf("cause %v, unit %+v", context.Cause(run.ctx), u)
	}
	if got := statuses(h.runs(id)); len(got) != 1 || got[0] != work.RunTimedOut {
		t.Errorf("runs %v", got)
	}
}

// No run is put off to a time at which the unit cannot begin any more, and it
// says what stopped it.
func TestDeadlineStopsTheRun(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	soon := time.Now().Add(2 * time.Second)
	id := h.submit(func(s *work.Spec) { s.Deadline, s.MaxRetries = &soon, ptr(3) })
	h.begun()
	u := h.becomes(id, work.TimedOut)
	if !contains(u.Error.Message, "the deadline passed 1.") || u.NotBefore != nil || *u.Output != "so far" {
		t.Errorf("error %v, not before %v, output %v", u.Error, u.NotBefore, u.Output)
	}
	if runs := h.runs(id); len(runs) != 1 || !contains(runs[0].Error.Message, "deadline") {
		t.Errorf("runs %+v", runs)
	}
}

func TestCancelStopsARunningUnit(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"by notice", "by heartbeat"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t)
			h.start(nil)
			id := h.submit(nil)
			h.begun()
			if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, id); err != nil {
				t.Fatal(err)
			}
			if name == "by notice" {
				if err := h.queue.Cancelled(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			}
			u := h.becomes(id, work.Cancelled)
			if *u.Output != "so far" {
				t.Errorf("partial output is lost: %v", u.Output)
			}
		})
	}
}

func TestShutdownGivesTheUnitBackWithItsSession(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	data := t.TempDir()
	first := h.start(func(o *Options) { o.Data = data })
	id := h.submit(nil)
	run := h.begun()
	if err := writeFile(run.req.Home, "session"); err != nil {
		t.Fatal(err)
	}
	first.stop()
	<-first.done
	u := h.unit(id)
	if u.State != work.Queued || u.Losses != 1 || u.Failures != 0 {
		t.Fatalf("after shutdown the unit is %s with %d losses, %d failures", u.State, u.Losses, u.Failures)
	}
	h.start(func(o *Options) { o.Data = data })
	again := h.begun()
	if !again.req.Resume || again.req.SessionID != run.req.SessionID || again.req.Dir != run.req.Dir {
		t.Errorf("second run: resume %v, session %s, want %s", again.req.Resume, again.req.SessionID, run.req.SessionID)
	}
	again.end <- succeed("done")
	h.becomes(id, work.Succeeded)
	if got := statuses(h.runs(id)); got[0] != work.RunReleased || got[1] != work.RunSucceeded {
		t.Errorf("runs %v", got)
	}
}

func TestLateFinishIsFenced(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(func(o *Options) { o.Lease, o.Beat = 30*time.Second, 10*time.Second })
	id := h.submit(nil)
	run := h.begun()
	// Everyone takes the process for dead, and it comes back before anyone
	// enqueues it again.
	testkit.Eventually(t, "the reconciler's place", func() bool {
		testkit.Exec(t, h.database, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		once, end := context.WithCancel(t.Context())
		defer end()
		led, err := h.store.Reconciler.Lead(once, nil, func(ctx context.Context) {
			defer end()
			if _, err := h.store.Processes.EndDead(ctx, []uuid.UUID{w.id}); err != nil {
				t.Error(err)
			}
			if n, err := h.store.Runs.ExpireLeases(ctx); err != nil || n != 1 {
				t.Errorf("%d leases expired: %v", n, err)
			}
			if err := w.heartbeat.Register(ctx); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return led
	})
	second := h.begun()
	run.steps.Add(transcript.Step{Type: transcript.SystemText, Text: "late words"})
	run.end <- succeed("too late")
	testkit.Eventually(t, "the first run fenced", func() bool { return h.runs(id)[0].Status == work.RunFenced })
	if u := h.unit(id); u.State != work.Running || u.Known() != 0.25 {
		t.Errorf("after the late finish the unit is %s and has cost %v", u.State, u.Known())
	}
	second.end <- succeed("in time")
	u := h.becomes(id, work.Succeeded)
	if *u.Output != "in time" || u.Losses != 1 || u.Known() != 0.5 {
		t.Errorf("output %q, losses %d, cost %v", *u.Output, u.Losses, u.Known())
	}
	if steps := h.steps(h.runs(id)[0].ID); len(steps) != 1 || steps[0].Text != "late words" {
		t.Errorf("transcript of the fenced run: %+v", steps)
	}
}

func TestRunsThatBelongToAnotherAreStopped(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	id := h.submit(nil)
	run := h.begun()
	if _, err := h.store.Processes.EndDead(t.Context(), []uuid.UUID{w.id}); err != nil {
		t.Fatal(err)
	}
	<-run.ctx.Done()
	if !errors.Is(context.Cause(run.ctx), work.ErrFenced) {
		t.Errorf("the run was stopped by %v", context.Cause(run.ctx))
	}
	h.begun().end <- succeed("again")
	h.becomes(id, work.Succeeded)
}

// A claim whose answer never came leaves a run that nobody runs.
func TestRunThatNobodyHeardOfIsGivenBack(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(func(o *Options) { o.Backends = nil })
	id := h.submit(nil)
	if c, err := h.store.Runs.Claim(t.Context(), store.Claim{UnitID: id, RunID: uuid.Must(uuid.NewV7()), Process: w.id,
		Backends: []string{"mock"}}); err != nil || c == nil {
		t.Fatal(c, err)
	}
	u := h.becomes(id, work.Queued)
	if got := statuses(h.runs(id)); u.Losses != 1 || len(got) != 1 || got[0] != work.RunLost {
		t.Errorf("%d losses, runs %v", u.Losses, got)
	}
}

func TestWorkGoesOnWithoutRedis(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	h.redis.Stop()
	testkit.Eventually(t, "redis noticed to be away", func() bool { return !h.queue.Up() })
	id := h.submit(nil)
	h.begun().end <- succeed("without")
	h.becomes(id, work.Succeeded)
	h.redis.Start()
	testkit.Eventually(t, "redis noticed to be back", h.queue.Up)
	id = h.submit(nil)
	h.begun().end <- succeed("with")
	h.becomes(id, work.Succeeded)
}

// Without Redis no notice of a cancel comes; it is seen long before the heartbeat.
func TestCancelIsSeenWithoutRedis(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(seldom)
	id := h.submit(nil)
	h.begun()
	h.redis.Stop()
	testkit.Eventually(t, "redis noticed to be away", func() bool { return !h.queue.Up() })
	if _, err := h.store.Units.Cancel(t.Context(), work.DefaultTenant, id); err != nil {
		t.Fatal(err)
	}
	h.becomes(id, work.Cancelled)
}

func TestRateLimitWaitsAndUsesUpNoRetry(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	none := 0
	id := h.submit(func(s *work.Spec) { s.MaxRetries = &none })
	limit := work.Fail(work.ClassRateLimit, "429")
	limit.ResetAt = time.Now().Add(time.Second)
	h.begun().end <- backend.Result{Error: limit}
	h.begun().end <- succeed("after the limit")
	if u := h.becomes(id, work.Succeeded); u.Waits != 1 || u.Failures != 0 {
		t.Errorf("%d waits, %d failures", u.Waits, u.Failures)
	}
}

func TestSlotsBoundWhatRunsAtOnce(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(func(o *Options) { o.Slots = 2 })
	var ids []uuid.UUID
	for range 6 {
		ids = append(ids, h.submit(nil))
	}
	for range 6 {
		run := h.begun()
		if n := w.runs.Count(); n > 2 {
			t.Errorf("%d runs at once", n)
		}
		run.end <- succeed("")
	}
	for _, id := range ids {
		h.becomes(id, work.Succeeded)
	}
}

func TestPanicOfABackendIsACrash(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(func(o *Options) { o.Backends = []backend.Backend{bomb{}} })
	none := 0
	id := h.submit(func(s *work.Spec) { s.MaxRetries = &none })
	if u := h.becomes(id, work.Failed); u.Error.Class != work.ClassCrash || u.Crashes != 1 {
		t.Errorf("error %v, %d crashes", u.Error, u.Crashes)
	}
}

type bomb struct{}

func (bomb) Name() string                    { return "mock" }
func (bomb) Available(context.Context) error { return nil }
func (bomb) Execute(context.Context, backend.Request, *transcript.Writer) (backend.Result, error) {
	panic("boom")
}

// Without Redis a slot that becomes free is filled at once, not at the next
// look of the clock: a worker process of one slot would do a unit a second.
func TestFreeSlotsAreFilledWithoutRedis(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.redis.Stop()
	testkit.Eventually(t, "redis to be missed", func() bool { return !h.queue.Up() })
	const units = 12
	for range units {
		h.submit(nil)
	}
	h.start(func(o *Options) { o.Slots = 1 })
	h.begun().end <- succeed("")
	first := time.Now()
	for range units - 1 {
		h.begun().end <- succeed("")
	}
	if took := time.Since(first); took > (units-2)*pollEvery {
		t.Errorf("%d units one after the other took %v", units-1, took)
	}
}
