package jobs

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
	"piecework/store"
)

// listen starts an Asynq server on the default lane that gives each bell it
// hears to heard.
func (h *house) listen(heard chan<- Task) {
	h.t.Helper()
	server := asynq.NewServerFromRedisClient(h.bell.Redis(), asynq.Config{
		Queues: map[string]int{"default:mock": 1}, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond, Logger: nil,
	})
	h.must(server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var task Task
		if err := json.Unmarshal(t.Payload(), &task); err != nil || t.Type() != TypeRun {
			h.t.Errorf("task %s %s: %v", t.Type(), t.Payload(), err)
		}
		heard <- task
		return nil
	})))
	h.t.Cleanup(server.Shutdown)
}

func TestRing(t *testing.T) {
	t.Parallel()
	ringOnce(t, newHouse(t))
}

func ringOnce(t *testing.T, h *house) {
	t.Helper()
	u := h.put()
	if h.pending(u) != 0 {
		t.Error("a bell nobody rang is pending")
	}
	for range 3 { // an answer that was lost: the same bell again is no failure
		h.ring(u)
	}
	if h.pending(u) != 1 {
		t.Error("the bell is not pending")
	}
	if info, err := h.bell.inspector.GetTaskInfo("default:mock", TaskID(u.ID, 1)); err != nil || info.MaxRetry != 0 || info.Retention != 0 || info.Timeout < 24*time.Hour {
		t.Errorf("task %+v, error %v", info, err)
	}
	heard := make(chan Task, 10)
	h.listen(heard)
	if got := <-heard; got != (Task{Unit: u.ID, Dispatch: 1}) {
		t.Errorf("heard %+v", got)
	}
	testkit.Eventually(t, "the bell is gone", func() bool { return h.pending(u) == 0 })
	if len(heard) != 0 {
		t.Error("one bell was heard twice")
	}
}

func TestRingManyLanes(t *testing.T) {
	t.Parallel()
	ringManyLanes(t, newHouse(t))
}

func ringManyLanes(t *testing.T, h *house) {
	t.Helper()
	var bells []store.Message
	for i := range 30 {
		d := store.MessageOf(h.put())
		d.Priority = i % 10
		bells = append(bells, d)
	}
	h.must(h.bell.Ring(t.Context(), bells...))
	pending, err := h.bell.pending(t.Context(), bells)
	h.must(err)
	if slices.Contains(pending, false) {
		t.Errorf("pending %v", pending)
	}
	queues, err := h.bell.inspector.Queues()
	if slices.Sort(queues); err != nil || !slices.Equal(queues, []string{"default:mock", "default:mock:high", "default:mock:low"}) {
		t.Errorf("queues %v, error %v", queues, err)
	}
}

// Asynq's client tells Redis of a queue once. Each process must do so again
// when Redis has forgotten, not only the one that reconciles.
func TestRingRegistersTheQueueAgain(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.ring(h.put())
	h.must(h.bell.redis.FlushAll(t.Context()).Err())
	h.ring(h.put())
	if queues, err := h.bell.inspector.Queues(); err != nil || len(queues) != 1 {
		t.Errorf("queues %v, error %v", queues, err)
	}
}

// asked counts what a Redis is asked, and the longest that anybody would wait.
type asked struct {
	times   int
	longest time.Duration
}

func (a *asked) note(ctx context.Context) {
	a.times++
	if end, bounded := ctx.Deadline(); bounded {
		a.longest = max(a.longest, time.Until(end))
	} else {
		a.longest = math.MaxInt64
	}
}

func (a *asked) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *asked) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		a.note(ctx)
		return next(ctx, c)
	}
}

func (a *asked) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		a.note(ctx)
		return next(ctx, all)
	}
}

// A caller has its unit committed; it must not wait for a Redis that is away.
func TestRingWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	u := h.put()
	h.redis.Stop()
	var a asked
	h.bell.redis.AddHook(&a)
	if err := h.bell.Ring(t.Context(), store.MessageOf(u)); err == nil {
		t.Error("a bell rang in no Redis")
	}
	if a.times == 0 || a.longest > 2*ringBudget {
		t.Errorf("the first ring asked %d times and would have waited for %s", a.times, a.longest)
	}
	if h.bell.Probe(t.Context()) == nil {
		t.Error("a Redis that is away was reached")
	}
	a.times = 0
	for range 1000 {
		h.ring(u)
	}
	if a.times > 0 {
		t.Errorf("1000 rings asked %d times although Redis is known to be away", a.times)
	}
}
