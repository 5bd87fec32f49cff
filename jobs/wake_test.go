package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
	"piecework/internal/work"
)

// script is a Redis that answers dequeues as the test says.
type script struct {
	redis.UniversalClient
	answers []error
}

func (s *script) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(s.answers[0])
	s.answers = s.answers[1:]
	return cmd
}

func (s *script) Process(ctx context.Context, cmd redis.Cmder) error {
	err := s.EvalSha(ctx, "", nil).Err()
	cmd.SetErr(err)
	return err
}

func (s *script) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	return s.EvalSha(ctx, source, keys, args...)
}

// Exists answers that something may be there, so that each lane is asked.
func (s *script) Exists(ctx context.Context, _ ...string) *redis.IntCmd {
	cmd := redis.NewIntCmd(ctx)
	cmd.SetVal(1)
	return cmd
}

// open is a gate that is never shut.
func open() Gate {
	return Gate{Wait: func(string, string) time.Duration { return 0 }, Took: func(string) {}}
}

func dequeueKeys(lane string) []string {
	prefix := "asynq:{" + lane + "}:"
	return []string{prefix + "pending", prefix + "paused", prefix + "active", prefix + "lease"}
}

// When the client waits, and for how long: never before every lane was looked
// at in one round.
func TestWakingClientWaits(t *testing.T) {
	t.Parallel()
	empty, found, broken, unknown := redis.Nil, error(nil), errors.New("NOREPLICAS"), redisError("NOSCRIPT no")
	for name, test := range map[string]struct {
		answers []error
		waits   []time.Duration
	}{
		"after a round of empty lanes": {[]error{empty, empty, empty, empty}, []time.Duration{0, 0, idle, 0}},
		"not after a find":             {[]error{empty, empty, found, empty, empty, empty}, []time.Duration{0, 0, 0, 0, 0, idle}},
		"after an error, and anew":     {[]error{empty, broken, empty, empty, empty}, []time.Duration{0, refused, 0, 0, idle}},
		"unknown script, run at once":  {[]error{unknown, empty, empty, empty}, []time.Duration{0, 0, idle}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				source := redis.NewScript("return nil")
				client := (&Bell{redis: &script{answers: test.answers}}).ServerClient(3, open(), make(chan struct{}))
				for i, want := range test.waits {
					start := time.Now()
					source.Run(t.Context(), client, dequeueKeys("lane"))
					if took := time.Since(start); took != want {
						t.Errorf("call %d took %s, want %s", i, took, want)
					}
				}
			})
		})
	}
}

// A shut lane is not looked at, waits no longer than its gate, and is told of
// each bell that was heard in it.
func TestWakingClientKeepsGates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin, took := time.Now(), []string{}
		gate := Gate{Took: func(backend string) { took = append(took, backend) }, Wait: func(queue, backend string) time.Duration {
			if backend == "shut" && queue == "q" {
				return time.Until(begin.Add(idle / 4))
			}
			return 0
		}}
		redis := &script{answers: []error{redis.Nil, nil, nil}}
		client := (&Bell{redis: redis}).ServerClient(2, gate, make(chan struct{}))
		call := func(lane string) time.Duration {
			start := time.Now()
			client.EvalSha(t.Context(), "", dequeueKeys(lane))
			return time.Since(start)
		}
		if waited := call("q:shut:high") + call("q:mock"); waited != idle/4 || len(redis.answers) != 2 {
			t.Errorf("waited %s, %d answers left", waited, len(redis.answers))
		}
		if waited := call("q:shut") + call("q:mock"); waited != 0 || !slices.Equal(took, []string{"shut", "mock"}) {
			t.Errorf("waited %s, took %q", waited, took)
		}
	})
}

// What a bell is rung for is found by the call that waited, whichever lane that was
// for: Asynq pauses before it asks again.
func TestWakingClientTakesAtOnce(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	rung := make(chan struct{})
	client := h.bell.ServerClient(2, Gate{Took: func(string) {}, Wait: open().Wait, Spare: func(string) int { return 4 }}, rung)
	ask := func(lane string) (string, error) {
		return client.EvalSha(t.Context(), "unused when many are taken", dequeueKeys(lane), "1", "asynq:{"+lane+"}:t:").Text()
	}
	u, lane := h.put(), h.bell.Lane("default", "mock", 5)
	if text, err := ask(lane); !errors.Is(err, redis.Nil) {
		t.Errorf("%q, error %v", text, err)
	}
	h.ring(u)
	go func() { rung <- struct{}{} }()
	if text, err := ask(h.bell.Lane("other", "mock", 5)); err != nil || !strings.Contains(text, u.ID.String()) {
		t.Errorf("%q, error %v", text, err)
	}
}

// still is a Redis whose lanes are empty, which counts what it is asked.
type still struct {
	redis.UniversalClient
	dequeues, looks int
	full            atomic.Bool
}

func (s *still) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	s.dequeues++
	cmd := redis.NewCmd(ctx)
	if !s.full.Load() {
		cmd.SetErr(redis.Nil)
	}
	return cmd
}

func (s *still) Exists(ctx context.Context, keys ...string) *redis.IntCmd {
	s.looks++
	cmd := redis.NewIntCmd(ctx)
	if s.full.Load() {
		cmd.SetVal(1)
	}
	return cmd
}

// At rest one command a second asks for all lanes. A bell that rings, one that nobody
// heard, and a gate that opens have the lanes asked one by one.
func TestWakingClientAtRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var shut atomic.Bool
		shut.Store(true)
		gate := Gate{Took: func(string) {}, Wait: func(_, backend string) time.Duration {
			if backend == "b" && shut.Load() {
				return time.Hour
			}
			return 0
		}}
		lanes := []string{"q:a:high", "q:a", "q:b"}
		server, rung := &still{}, make(chan struct{}, 1)
		client := (&Bell{redis: server}).ServerClient(len(lanes), gate, rung)
		round := func() (took time.Duration, dequeues, looks int) {
			begin, before, looked := time.Now(), server.dequeues, server.looks
			for _, lane := range lanes {
				if client.EvalSha(t.Context(), "", dequeueKeys(lane)).Err() == nil {
					break
				}
			}
			return time.Since(begin), server.dequeues - before, server.looks - looked
		}
		for _, step := range []struct {
			name            string
			before          func()
			took            time.Duration
			dequeues, looks int
		}{
			{"the first round", func() {}, idle, 2, 1},
			{"at rest", func() {}, idle, 0, 1},
			{"still", func() {}, idle, 0, 1},
			{"a bell rings meanwhile", func() { rung <- struct{}{} }, 0, 2, 0},
			{"so every lane is asked", func() {}, idle, 2, 1},
			{"a gate has opened", func() { shut.Store(false) }, idle, 1, 1},
			{"at rest again", func() {}, idle, 0, 1},
			{"a bell that nobody hears", func() { time.AfterFunc(idle/2, func() { server.full.Store(true) }) }, idle, 0, 1},
			{"is found", func() {}, 0, 1, 0},
		} {
			step.before()
			if took, dequeues, looks := round(); took != step.took || dequeues != step.dequeues || looks != step.looks {
				t.Errorf("%s: took %s, %d dequeues, %d looks; want %s, %d, %d", step.name, took, dequeues, looks, step.took, step.dequeues, step.looks)
			}
		}
	})
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

func TestWakingClientIsWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rung := make(chan struct{}, 1)
		client := (&Bell{redis: &script{answers: slices.Repeat([]error{redis.Nil}, 6)}}).ServerClient(1, open(), rung)
		call := func() time.Duration {
			start := time.Now()
			client.EvalSha(t.Context(), "", dequeueKeys("lane"))
			return time.Since(start)
		}
		rung <- struct{}{} // while the lane was looked at
		if took := call(); took != 0 {
			t.Errorf("a bell that rang before the wait: %s", took)
		}
		time.AfterFunc(idle/4, func() { rung <- struct{}{} })
		if took := call(); took != idle/4 {
			t.Errorf("a bell that rang during the wait: %s", took)
		}
		time.AfterFunc(idle/2, client.Release)
		if took := call(); took != idle/2 {
			t.Errorf("released during the wait: %s", took)
		}
		client.Release()
		if took := call(); took != 0 {
			t.Errorf("after the release: %s", took)
		}
	})
}

func TestOtherScriptsDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := (&Bell{redis: &script{answers: []error{redis.Nil, errors.New("no")}}}).ServerClient(1, open(), nil)
		start := time.Now()
		for range 2 {
			client.EvalSha(t.Context(), "", []string{"asynq:{lane}:active", "asynq:{lane}:lease"})
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("waited %s", took)
		}
	})
}

// spy notes the keys of scripts that found something.
type spy struct {
	redis.UniversalClient
	mu   sync.Mutex
	keys [][]string
}

func (s *spy) note(cmd *redis.Cmd, keys []string) *redis.Cmd {
	if text, err := cmd.Text(); err == nil && strings.Contains(text, TypeRun) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keys = append(s.keys, keys)
	}
	return cmd
}

func (s *spy) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return s.note(s.UniversalClient.EvalSha(ctx, sha, keys, args...), keys)
}

func (s *spy) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	return s.note(s.UniversalClient.Eval(ctx, source, keys, args...), keys)
}

// The one thing the client knows of Asynq's inside: the keys of a dequeue.
// When this fails after an update, look at dequeueCmd in Asynq's rdb.go.
func TestDequeuesKnowsAsynq(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.ring(h.put())
	watch := &spy{UniversalClient: h.bell.Redis()}
	heard := make(chan struct{}, 1)
	h.serve(watch, map[string]int{"default:mock": 1}, func() { heard <- struct{}{} })
	<-heard
	watch.mu.Lock()
	defer watch.mu.Unlock()
	if len(watch.keys) != 1 || !dequeues(watch.keys[0]) || !slices.Equal(watch.keys[0], dequeueKeys("default:mock")) {
		t.Errorf("Asynq dequeues with keys %q", watch.keys)
	}
}

// quietLog is for servers whose trouble is the point.
type quietLog struct{}

func (quietLog) Debug(...any) {}
func (quietLog) Info(...any)  {}
func (quietLog) Warn(...any)  {}
func (quietLog) Error(...any) {}
func (quietLog) Fatal(...any) {}

func (h *house) serve(client redis.UniversalClient, lanes map[string]int, heard func()) *asynq.Server {
	h.t.Helper()
	server := asynq.NewServerFromRedisClient(client, asynq.Config{
		Concurrency: 2, Queues: lanes, TaskCheckInterval: CheckInterval, Logger: quietLog{}, ShutdownTimeout: time.Second,
	})
	h.must(server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		heard()
		return nil
	})))
	h.t.Cleanup(func() {
		if waking, ok := client.(*WakingClient); ok {
			waking.Release()
		}
		server.Shutdown()
	})
	return server
}

// wakingServer is wired as a worker process wires it.
func (h *house) wakingServer(heard func()) {
	h.t.Helper()
	rung := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(h.t.Context())
	h.t.Cleanup(stop)
	go h.bell.Listen(ctx, func(Notice) {
		select {
		case rung <- struct{}{}:
		default:
		}
	}, NoticeWake)
	h.awaitListeners(1)
	lanes := h.bell.Lanes(map[string]int{work.DefaultQueue: 1}, []string{"mock", "claude"})
	h.serve(h.bell.ServerClient(len(lanes), open(), rung), lanes, heard)
}

// An idle server hears a bell long before its next poll.
func TestPickUp(t *testing.T) {
	t.Parallel()
	pickUp(t, newHouse(t))
}

func pickUp(t *testing.T, h *house) {
	t.Helper()
	heard := make(chan struct{}, 1)
	h.wakingServer(func() { heard <- struct{}{} })
	took := make([]time.Duration, 21)
	for i := range took {
		u := h.put()
		start := time.Now()
		h.ring(u)
		<-heard
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	t.Logf("picked up after %s (middle), %s (longest)", took[10], took[20])
	if took[10] > idle/2 {
		t.Errorf("picked up after %s: that is Asynq's poll", took[10])
	}
}

// A Redis that refuses writes is asked a few times a second, not as often as
// it can answer; when it takes writes again, work goes on.
func TestNoHotLoop(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.real()
	heard := make(chan struct{}, 1)
	h.wakingServer(func() { heard <- struct{}{} })
	h.refuseWrites(true)
	before, start := h.scripts(), time.Now()
	testkit.Eventually(t, "it asks again and again", func() bool { return h.scripts() >= before+30 })
	if rate := float64(h.scripts()-before) / time.Since(start).Seconds(); rate > 100 {
		t.Errorf("%.0f scripts a second", rate)
	}
	h.refuseWrites(false)
	h.ring(h.put())
	<-heard
}

// scripts counts the scripts that Redis was asked to run.
func (h *house) scripts() (n int) {
	h.t.Helper()
	info, err := h.bell.redis.Info(h.t.Context(), "commandstats").Result()
	h.must(err)
	for line := range strings.Lines(info) {
		if stats, ok := strings.CutPrefix(line, "cmdstat_evalsha:"); ok {
			_, err := fmt.Sscanf(stats, "calls=%d", &n)
			h.must(err)
		}
	}
	return n
}
