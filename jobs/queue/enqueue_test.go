package queue

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

// listen starts an Asynq server on the default queue that sends each message it
// takes to taken.
func (f *fixture) listen(taken chan<- Task) {
	f.t.Helper()
	server := asynq.NewServerFromRedisClient(f.queue.Redis(), asynq.Config{
		Queues: map[string]int{"default:mock": 1}, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond, Logger: nil,
	})
	f.must(server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var task Task
		if err := json.Unmarshal(t.Payload(), &task); err != nil || t.Type() != TypeRun {
			f.t.Errorf("task %s %s: %v", t.Type(), t.Payload(), err)
		}
		taken <- task
		return nil
	})))
	f.t.Cleanup(server.Shutdown)
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	enqueueOnce(t, newFixture(t))
}

func enqueueOnce(t *testing.T, f *fixture) {
	t.Helper()
	u := f.put()
	if f.pending(u) != 0 {
		t.Error("a message nobody sent is pending")
	}
	for range 3 { // an answer that was lost: the same message again is no failure
		f.enqueue(u)
	}
	if f.pending(u) != 1 {
		t.Error("the message is not pending")
	}
	if info, err := f.queue.inspector.GetTaskInfo("default:mock", TaskID(u.ID, 1)); err != nil || info.MaxRetry != 0 ||
		info.Retention != 0 || info.Timeout < 24*time.Hour {
		t.Errorf("task %+v, error %v", info, err)
	}
	taken := make(chan Task, 10)
	f.listen(taken)
	if got := <-taken; got != (Task{Unit: u.ID, Dispatch: 1}) {
		t.Errorf("took %+v", got)
	}
	testkit.Eventually(t, "the message is gone", func() bool { return f.pending(u) == 0 })
	if len(taken) != 0 {
		t.Error("one message was taken twice")
	}
}

func TestEnqueueToManyQueues(t *testing.T) {
	t.Parallel()
	enqueueToMany(t, newFixture(t))
}

func enqueueToMany(t *testing.T, f *fixture) {
	t.Helper()
	var messages []store.Message
	for i := range 30 {
		d := store.MessageOf(f.put())
		d.Priority = i % 10
		messages = append(messages, d)
	}
	f.must(f.queue.Enqueue(t.Context(), messages...))
	pending, err := f.queue.Pending(t.Context(), messages)
	f.must(err)
	if slices.Contains(pending, false) {
		t.Errorf("pending %v", pending)
	}
	queues, err := f.queue.inspector.Queues()
	if slices.Sort(queues); err != nil || !slices.Equal(queues, []string{"default:mock", "default:mock:high", "default:mock:low"}) {
		t.Errorf("queues %v, error %v", queues, err)
	}
}

// Asynq's client tells Redis of a queue once. Each process must do so again
// when Redis has forgotten, not only the one that reconciles.
func TestEnqueueRegistersTheQueueAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.enqueue(f.put())
	f.must(f.queue.redis.FlushAll(t.Context()).Err())
	f.enqueue(f.put())
	if queues, err := f.queue.inspector.Queues(); err != nil || len(queues) != 1 {
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
func TestEnqueueWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	u := f.put()
	f.redis.Stop()
	var a asked
	f.queue.redis.AddHook(&a)
	if err := f.queue.Enqueue(t.Context(), store.MessageOf(u)); err == nil {
		t.Error("a message was enqueued in no Redis")
	}
	if a.times == 0 || a.longest > 2*enqueueTimeout {
		t.Errorf("the first call asked %d times and would have waited for %s", a.times, a.longest)
	}
	if f.queue.Probe(t.Context()) == nil {
		t.Error("a Redis that is away was reached")
	}
	a.times = 0
	for range 1000 {
		f.enqueue(u)
	}
	if a.times > 0 {
		t.Errorf("1000 calls asked %d times although Redis is known to be away", a.times)
	}
}
