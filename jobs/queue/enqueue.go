package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"piecework/store"
)

// enqueueTimeout is how long a caller waits for Redis before it leaves the message
// to the reconciler.
const enqueueTimeout = 300 * time.Millisecond

// readTimeout is how long the reconciler waits for an answer of Redis. It leads
// meanwhile, so nobody else frees dead leases.
const readTimeout = 2 * time.Second

// Enqueue sends messages unless Redis is known to be away, and returns the first
// failure. A failure is for the log only: the reconciler enqueues again.
func (c *Client) Enqueue(ctx context.Context, messages ...store.Message) error {
	if !c.Up() || len(messages) == 0 {
		return nil
	}
	return c.EnqueueOrFail(ctx, messages)
}

// EnqueueOrFail sends messages, and fails when Redis is away.
func (c *Client) EnqueueOrFail(ctx context.Context, messages []store.Message) error {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout+time.Duration(len(messages))*10*time.Millisecond)
	defer cancel()
	queues := map[string]bool{}
	var enqueue errgroup.Group
	enqueue.SetLimit(enqueueAtOnce) // which go in one round trip
	for _, d := range messages {
		queues[c.queueOf(d)] = true
		enqueue.Go(func() error {
			if err := c.enqueueOne(ctx, d); err != nil {
				return fmt.Errorf("enqueue unit %s: %w", d.UnitID, err)
			}
			return nil
		})
	}
	if err := enqueue.Wait(); err != nil {
		return err
	}
	for queue := range queues {
		if err := c.wakeUp(ctx, queue); err != nil {
			return fmt.Errorf("wake up readers of the queue %s: %w", queue, err)
		}
	}
	return nil
}

// enqueueAtOnce is how many messages one caller sends together.
const enqueueAtOnce = 100

// wakeUp tells worker processes that there is something in a queue. Asynq's client
// registers a queue once in its life; when Redis loses its memory no tool would see
// the queue again, so it is registered each time.
func (c *Client) wakeUp(ctx context.Context, queue string) error {
	return wakeScript.Run(ctx, c.pipeline(), []string{queuesKey}, queue, c.channel(NoticeWake)).Err()
}

var wakeScript = redis.NewScript(`redis.call("SADD", KEYS[1], ARGV[1]) return redis.call("PUBLISH", ARGV[2], ARGV[1])`)

// Where Asynq 0.26 keeps its queues, their tasks and a task's state; a test
// holds them against the library.
const queuesKey = "asynq:queues"

// ownQueues lists the queues of this installation that Redis knows.
func (c *Client) ownQueues(ctx context.Context) ([]string, error) {
	queues, err := c.redis.SMembers(ctx, queuesKey).Result()
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return slices.DeleteFunc(queues, func(queue string) bool { return !strings.HasSuffix(queue, c.suffix) }), nil
}

func pendingKey(queue string) string { return "asynq:{" + queue + "}:pending" }
func archiveKey(queue string) string { return "asynq:{" + queue + "}:archived" }

func (c *Client) stateKey(d store.Message) string {
	return "asynq:{" + c.queueOf(d) + "}:t:" + TaskID(d.UnitID, d.Number)
}

func (c *Client) queueOf(d store.Message) string { return c.QueueName(d.Queue, d.Backend, d.Priority) }

func (c *Client) enqueueOne(ctx context.Context, d store.Message) error {
	payload, err := json.Marshal(Task{Unit: d.UnitID, Dispatch: d.Number})
	if err != nil {
		return fmt.Errorf("encode task: %w", err)
	}
	_, err = c.client.EnqueueContext(ctx, asynq.NewTask(TypeRun, payload),
		asynq.TaskID(TaskID(d.UnitID, d.Number)), asynq.Queue(c.queueOf(d)),
		asynq.MaxRetry(0), asynq.Timeout(taskTimeout))
	// The number is ours alone, so a conflict means that an enqueue whose
	// answer was lost had succeeded.
	if errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask) {
		return nil
	}
	return err
}

// Pending tells of each message whether it still waits to be taken. A task that
// Asynq calls active while its unit is queued was taken by a process that died
// or could not claim, so it does not count. Nor does one that waits in a queue
// which is empty: Redis has evicted the queue. Asynq's inspector would take a round
// trip for each and fail on a task that lost its message.
func (c *Client) Pending(ctx context.Context, messages []store.Message) ([]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	look := c.redis.Pipeline()
	states, waiting := make([]*redis.StringCmd, len(messages)), map[string]*redis.IntCmd{}
	for i, d := range messages {
		states[i] = look.HGet(ctx, c.stateKey(d), "state")
		if queue := c.queueOf(d); waiting[queue] == nil {
			waiting[queue] = look.LLen(ctx, pendingKey(queue))
		}
	}
	// Its error is the first of many: a message that is gone may hide a server
	// that is.
	_, _ = look.Exec(ctx)
	pending := make([]bool, len(messages))
	for i, state := range states {
		queue := waiting[c.queueOf(messages[i])]
		for _, err := range []error{state.Err(), queue.Err()} {
			if err != nil && !errors.Is(err, redis.Nil) {
				return nil, fmt.Errorf("look for messages: %w", err)
			}
		}
		pending[i] = state.Val() == asynq.TaskStatePending.String() && queue.Val() > 0
	}
	return pending, nil
}

// Paused tells whether somebody has paused a queue in Redis, as Asynq's own
// tools do. When Redis does not answer it is taken for not paused.
func (c *Client) Paused(ctx context.Context, queue string) bool {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	n, err := c.redis.Exists(ctx, "asynq:{"+queue+"}:paused").Result()
	return err == nil && n > 0
}
