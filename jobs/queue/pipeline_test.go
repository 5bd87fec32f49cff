package queue

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
)

// slowRedis holds back what it is sent until the test lets it go, and counts the
// round trips.
type slowRedis struct {
	redis.UniversalClient
	gate chan struct{}

	mu    sync.Mutex
	trips []int // commands in each
}

func (s *slowRedis) trip(commands int) {
	<-s.gate
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trips = append(s.trips, commands)
}

func (s *slowRedis) Process(ctx context.Context, cmd redis.Cmder) error {
	s.trip(1)
	return s.UniversalClient.Process(ctx, cmd)
}

func (s *slowRedis) Pipeline() redis.Pipeliner {
	return &slowPipeline{s.UniversalClient.Pipeline(), s}
}

type slowPipeline struct {
	redis.Pipeliner
	of *slowRedis
}

func (p *slowPipeline) Exec(ctx context.Context) ([]redis.Cmder, error) {
	p.of.trip(p.Len())
	return p.Pipeliner.Exec(ctx)
}

func newSlowRedis(t *testing.T) *slowRedis {
	t.Helper()
	opts, err := redis.ParseURL(testkit.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return &slowRedis{UniversalClient: client, gate: make(chan struct{})}
}

// waits tells how many commands wait for the next round trip.
func (p *pipelined) waits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

// What comes while a round trip is under way goes with the next, each command gets
// its own answer, and one that fails fails alone.
func TestCommandsShareRoundTrips(t *testing.T) {
	t.Parallel()
	slow := newSlowRedis(t)
	p := &pipelined{UniversalClient: slow}
	script := redis.NewScript(`if ARGV[1] == "bad" then return redis.error_reply("refused") end return ARGV[1]`)
	if err := script.Load(t.Context(), slow.UniversalClient).Err(); err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, 6)
	ask := func(word string, want error) {
		got, err := p.EvalSha(t.Context(), script.Hash(), []string{"key"}, word).Text()
		if err == nil && got != word {
			err = errors.New("got " + got + " for " + word)
		}
		if want != nil && err != nil && err.Error() == want.Error() {
			err = nil
		}
		answers <- err
	}
	go ask("first", nil)
	slow.gate <- struct{}{} // it went alone
	testkit.Eventually(t, "the first is answered", func() bool { return len(answers) == 1 })
	go ask("second", nil)
	testkit.Eventually(t, "the second is under way", func() bool { return p.waits() == 0 && p.isBusy() })
	for _, word := range []string{"a", "b", "c"} {
		go ask(word, nil)
	}
	go ask("bad", errors.New("ERR refused"))
	testkit.Eventually(t, "four wait", func() bool { return p.waits() == 4 })
	slow.gate <- struct{}{}
	slow.gate <- struct{}{}
	for range 6 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	slow.mu.Lock()
	defer slow.mu.Unlock()
	if len(slow.trips) != 3 || slow.trips[2] != 4 {
		t.Errorf("round trips of %v commands", slow.trips)
	}
}

func (p *pipelined) isBusy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy
}

// Whoever does not wait any longer takes back what has not been sent, and others'
// commands go on.
func TestCommandThatNobodyWaitsForIsTakenBack(t *testing.T) {
	t.Parallel()
	slow := newSlowRedis(t)
	p := &pipelined{UniversalClient: slow}
	ctx, leave := context.WithCancel(t.Context())
	underWay, left, stays := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { underWay <- p.Publish(ctx, "c", "under way").Err() }()
	testkit.Eventually(t, "one is under way", func() bool { return p.waits() == 0 && p.isBusy() })
	go func() { left <- p.Publish(ctx, "c", "left").Err() }()
	go func() { stays <- p.Publish(t.Context(), "c", "stays").Err() }()
	testkit.Eventually(t, "two wait", func() bool { return p.waits() == 2 })
	leave()
	// Nobody waits for a Redis that says nothing: the gate is shut still.
	for _, came := range []chan error{left, underWay} {
		if err := <-came; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	}
	if n := p.waits(); n != 1 {
		t.Errorf("%d wait", n)
	}
	close(slow.gate)
	if err := <-stays; err != nil {
		t.Error(err)
	}
}

// Several messages are taken at once, as many as may begin, each is given once and
// Asynq is done with each; a queue that is paused gives none.
func TestManyAreTakenAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	queue := f.queue.QueueName("default", "mock", 5)
	for range 5 {
		f.enqueue(f.put())
	}
	took := 0
	client := f.queue.ServerClient(1, Gate{
		Wait: open().Wait, Spare: func(string) int { return 6 },
		Took: func(backend string) {
			if took++; backend != "mock" {
				t.Errorf("took one of %s", backend)
			}
		},
	}, make(chan struct{}))
	asked := []string{queue, f.queue.QueueName("default", "claude", 5)} // a stock is used up first, whichever queue is asked for
	take := func() (string, error) {
		asked[0], asked[1] = asked[1], asked[0]
		of := queue
		if len(client.stock) > 0 {
			of = asked[0]
		}
		return client.EvalSha(t.Context(), "unused when many are taken", dequeueKeys(of), "1", "asynq:{"+queue+"}:t:").Text()
	}
	seen := map[string]bool{}
	for i := range 5 {
		msg, err := take()
		if err != nil {
			t.Fatal(err)
		}
		if want := []int{2, 1, 0, 1, 0}[i]; len(client.stock) != want {
			t.Errorf("after %d: %d in stock, not %d", i+1, len(client.stock), want)
		}
		seen[msg] = true
	}
	if _, err := take(); !errors.Is(err, redis.Nil) {
		t.Errorf("of an empty queue: %v", err)
	}
	if len(seen) != 5 || took != 5 {
		t.Errorf("%d different messages, %d taken", len(seen), took)
	}
	if active := f.queue.redis.LLen(t.Context(), activeKey(queue)).Val(); active != 5 {
		t.Errorf("%d are active", active)
	}
}
