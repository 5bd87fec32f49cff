package queue

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

// Exists answers that something may be there, so that each queue is asked.
func (s *script) Exists(ctx context.Context, _ ...string) *redis.IntCmd {
	cmd := redis.NewIntCmd(ctx)
	cmd.SetVal(1)
	return cmd
}

// open is a gate that is never shut.
func open() Gate {
	return Gate{Wait: func(string, string) time.Duration { return 0 }, Took: func(string) {}}
}

func dequeueKeys(queue string) []string {
	prefix := "asynq:{" + queue + "}:"
	return []string{prefix + "pending", prefix + "paused", prefix + "active", prefix + "lease"}
}

// When the client waits, and for how long: never before every queue was looked
// at in one round.
func TestWakingClientWaits(t *testing.T) {
	t.Parallel()
	empty, found, broken, unknown := redis.Nil, error(nil), errors.New("NOREPLICAS"), redisError("NOSCRIPT no")
	for name, test := range map[string]struct {
		answers []error
		waits   []time.Duration
	}{
		"after a round of empty queues": {[]error{empty, empty, empty, empty}, []time.Duration{0, 0, idle, 0}},
		"not after a find":              {[]error{empty, empty, found, empty, empty, empty}, []time.Duration{0, 0, 0, 0, 0, idle}},
		"after an error, and anew":      {[]error{empty, broken, empty, empty, empty}, []time.Duration{0, refused, 0, 0, idle}},
		"unknown script, run at once":   {[]error{unknown, empty, empty, empty}, []time.Duration{0, 0, idle}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				source := redis.NewScript("return nil")
				client := (&Client{redis: &script{answers: test.answers}}).ServerClient(3, open(), make(chan struct{}))
				for i, want := range test.waits {
					start := time.Now()
					source.Run(t.Context(), client, dequeueKeys("queue"))
					if took := time.Since(start); took != want {
						t.Errorf("call %d took %s, want %s", i, took, want)
					}
				}
			})
		})
	}
}

// A shut queue is not looked at, waits no longer than its gate, and is told of
// each message that was taken from it.
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
		client := (&Client{redis: redis}).ServerClient(2, gate, make(chan struct{}))
		call := func(queue string) time.Duration {
			start := time.Now()
			client.EvalSha(t.Context(), "", dequeueKeys(queue))
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

// What a wake-up was sent for is found by the call that waited, whichever queue that was
// for: Asynq pauses before it asks again.
func TestWakingClientTakesAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	wakeUps := make(chan struct{})
	client := f.queue.ServerClient(2, Gate{Took: func(string) {}, Wait: open().Wait, Spare: func(string) int { return 4 }}, wakeUps)
	ask := func(queue string) (string, error) {
		return client.EvalSha(t.Context(), "unused when many are taken", dequeueKeys(queue), "1", "asynq:{"+queue+"}:t:").Text()
	}
	u, queue := f.put(), f.queue.QueueName("default", "mock", 5)
	if text, err := ask(queue); !errors.Is(err, redis.Nil) {
		t.Errorf("%q, error %v", text, err)
	}
	f.enqueue(u)
	go func() { wakeUps <- struct{}{} }()
	if text, err := ask(f.queue.QueueName("other", "mock", 5)); err != nil || !strings.Contains(text, u.ID.String()) {
		t.Errorf("%q, error %v", text, err)
	}
}

// still is a Redis whose queues are empty, which counts what it is asked.
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

// At rest one command a second asks for all queues. A wake-up, a message
// without one, and a gate that opens have the queues asked one by one.
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
		queues := []string{"q:a:high", "q:a", "q:b"}
		server, wakeUps := &still{}, make(chan struct{}, 1)
		client := (&Client{redis: server}).ServerClient(len(queues), gate, wakeUps)
		round := func() (took time.Duration, dequeues, looks int) {
			begin, before, looked := time.Now(), server.dequeues, server.looks
			for _, queue := range queues {
				if client.EvalSha(t.Context(), "", dequeueKeys(queue)).Err() == nil {
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
			{"a wake-up comes meanwhile", func() { wakeUps <- struct{}{} }, 0, 2, 0},
			{"so every queue is asked", func() {}, idle, 2, 1},
			{"a gate has opened", func() { shut.Store(false) }, idle, 1, 1},
			{"at rest again", func() {}, idle, 0, 1},
			{"a message without a wake-up", func() { time.AfterFunc(idle/2, func() { server.full.Store(true) }) }, idle, 0, 1},
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
		wakeUps := make(chan struct{}, 1)
		client := (&Client{redis: &script{answers: slices.Repeat([]error{redis.Nil}, 6)}}).ServerClient(1, open(), wakeUps)
		call := func() time.Duration {
			start := time.Now()
			client.EvalSha(t.Context(), "", dequeueKeys("queue"))
			return time.Since(start)
		}
		wakeUps <- struct{}{} // while the queue was looked at
		if took := call(); took != 0 {
			t.Errorf("a wake-up before the wait: %s", took)
		}
		time.AfterFunc(idle/4, func() { wakeUps <- struct{}{} })
		if took := call(); took != idle/4 {
			t.Errorf("a wake-up during the wait: %s", took)
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
		client := (&Client{redis: &script{answers: []error{redis.Nil, errors.New("no")}}}).ServerClient(1, open(), nil)
		start := time.Now()
		for range 2 {
			client.EvalSha(t.Context(), "", []string{"asynq:{queue}:active", "asynq:{queue}:lease"})
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
	f := newFixture(t)
	f.enqueue(f.put())
	watch := &spy{UniversalClient: f.queue.Redis()}
	arrived := make(chan struct{}, 1)
	f.serve(watch, map[string]int{"default:mock": 1}, func() { arrived <- struct{}{} })
	<-arrived
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

func (f *fixture) serve(client redis.UniversalClient, queues map[string]int, arrived func()) *asynq.Server {
	f.t.Helper()
	server := asynq.NewServerFromRedisClient(client, asynq.Config{
		Concurrency: 2, Queues: queues, TaskCheckInterval: CheckInterval, Logger: quietLog{}, ShutdownTimeout: time.Second,
	})
	f.must(server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		arrived()
		return nil
	})))
	f.t.Cleanup(func() {
		if waking, ok := client.(*WakingClient); ok {
			waking.Release()
		}
		server.Shutdown()
	})
	return server
}

// wakingServer is wired as a worker process wires it.
func (f *fixture) wakingServer(arrived func()) {
	f.t.Helper()
	wakeUps := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(f.t.Context())
	f.t.Cleanup(stop)
	go f.queue.Listen(ctx, func(Notice) {
		select {
		case wakeUps <- struct{}{}:
		default:
		}
	}, NoticeWake)
	f.awaitListeners(1)
	queues := f.queue.QueueWeights(map[string]int{work.DefaultQueue: 1}, []string{"mock", "claude"})
	f.serve(f.queue.ServerClient(len(queues), open(), wakeUps), queues, arrived)
}

// An idle server takes a message long before its next poll.
func TestPickUp(t *testing.T) {
	t.Parallel()
	pickUp(t, newFixture(t))
}

func pickUp(t *testing.T, f *fixture) {
	t.Helper()
	arrived := make(chan struct{}, 1)
	f.wakingServer(func() { arrived <- struct{}{} })
	took := make([]time.Duration, 21)
	for i := range took {
		u := f.put()
		start := time.Now()
		f.enqueue(u)
		<-arrived
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
	f := newFixture(t)
	f.real()
	arrived := make(chan struct{}, 1)
	f.wakingServer(func() { arrived <- struct{}{} })
	f.refuseWrites(true)
	before, start := f.scripts(), time.Now()
	testkit.Eventually(t, "it asks again and again", func() bool { return f.scripts() >= before+30 })
	if rate := float64(f.scripts()-before) / time.Since(start).Seconds(); rate > 100 {
		t.Errorf("%.0f scripts a second", rate)
	}
	f.refuseWrites(false)
	f.enqueue(f.put())
	<-arrived
}

// scripts counts the scripts that Redis was asked to run.
func (f *fixture) scripts() (n int) {
	f.t.Helper()
	info, err := f.queue.redis.Info(f.t.Context(), "commandstats").Result()
	f.must(err)
	for line := range strings.Lines(info) {
		if stats, ok := strings.CutPrefix(line, "cmdstat_evalsha:"); ok {
			_, err := fmt.Sscanf(stats, "calls=%d", &n)
			f.must(err)
		}
	}
	return n
}
