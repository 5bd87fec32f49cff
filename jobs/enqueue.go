package jobs

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

// ringBudget is how long a caller waits for Redis before it leaves the bell
// to the reconciler.
const ringBudget = 300 * time.Millisecond

// lookBudget is how long the reconciler waits for an answer of Redis. It leads
// meanwhile, so nobody else frees dead leases.
const lookBudget = 2 * time.Second

// Ring rings bells, and returns the first failure. A failure is nobody's
// problem but the log's: the reconciler rings again.
func (b *Bell) Ring(ctx context.Context, bells ...store.Message) error {
	if !b.Up() || len(bells) == 0 {
		return nil
	}
	return b.ring(ctx, bells)
}

func (b *Bell) ring(ctx context.Context, bells []store.Message) error {
	ctx, cancel := context.WithTimeout(ctx, ringBudget+time.Duration(len(bells))*10*time.Millisecond)
	defer cancel()
	lanes := map[string]bool{}
	var enqueue errgroup.Group
	enqueue.SetLimit(enqueueAtOnce) // which go in one round trip
	for _, d := range bells {
		lanes[b.laneOf(d)] = true
		enqueue.Go(func() error {
			if err := b.enqueue(ctx, d); err != nil {
				return fmt.Errorf("ring for unit %s: %w", d.UnitID, err)
			}
			return nil
		})
	}
	if err := enqueue.Wait(); err != nil {
		return err
	}
	for lane := range lanes {
		if err := b.wakeLane(ctx, lane); err != nil {
			return fmt.Errorf("wake lane %s: %w", lane, err)
		}
	}
	return nil
}

// enqueueAtOnce is how many messages one caller sends together.
const enqueueAtOnce = 100

// wakeLane tells worker processes that there is something in a lane. Asynq's client
// registers a queue once in its life; when Redis loses its memory no tool would see
// the queue again, so it is registered each time.
func (b *Bell) wakeLane(ctx context.Context, lane string) error {
	return wake.Run(ctx, b.together(), []string{queuesKey}, lane, b.channel(NoticeWake)).Err()
}

var wake = redis.NewScript(`redis.call("SADD", KEYS[1], ARGV[1]) return redis.call("PUBLISH", ARGV[2], ARGV[1])`)

// Where Asynq 0.26 keeps its queues, their tasks and a task's state; a test
// holds them against the library.
const queuesKey = "asynq:queues"

// ownLanes lists the lanes of this installation that Redis knows.
func (b *Bell) ownLanes(ctx context.Context) ([]string, error) {
	lanes, err := b.redis.SMembers(ctx, queuesKey).Result()
	if err != nil {
		return nil, fmt.Errorf("list lanes: %w", err)
	}
	return slices.DeleteFunc(lanes, func(lane string) bool { return !strings.HasSuffix(lane, b.suffix) }), nil
}

func pendingKey(lane string) string { return "asynq:{" + lane + "}:pending" }
func archiveKey(lane string) string { return "asynq:{" + lane + "}:archived" }

func (b *Bell) stateKey(d store.Message) string {
	return "asynq:{" + b.laneOf(d) + "}:t:" + TaskID(d.UnitID, d.Number)
}

func (b *Bell) laneOf(d store.Message) string { return b.Lane(d.Queue, d.Backend, d.Priority) }

func (b *Bell) enqueue(ctx context.Context, d store.Message) error {
	payload, err := json.Marshal(Task{Unit: d.UnitID, Dispatch: d.Number})
	if err != nil {
		return fmt.Errorf("encode task: %w", err)
	}
	_, err = b.client.EnqueueContext(ctx, asynq.NewTask(TypeRun, payload),
		asynq.TaskID(TaskID(d.UnitID, d.Number)), asynq.Queue(b.laneOf(d)),
		asynq.MaxRetry(0), asynq.Timeout(taskTimeout))
	// The number is ours alone, so a conflict means that an enqueue whose
	// answer was lost had succeeded.
	if errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask) {
		return nil
	}
	return err
}

// pending tells of each bell whether it still waits to be heard. A task that
// Asynq calls active while its unit is queued was heard by somebody who died
// or could not claim, so it does not count. Nor does one that waits in a lane
// which is empty: Redis has evicted the lane. Asynq's inspector would take a round
// trip for each and fail on a task that lost its message.
func (b *Bell) pending(ctx context.Context, bells []store.Message) ([]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, lookBudget)
	defer cancel()
	look := b.redis.Pipeline()
	states, waiting := make([]*redis.StringCmd, len(bells)), map[string]*redis.IntCmd{}
	for i, d := range bells {
		states[i] = look.HGet(ctx, b.stateKey(d), "state")
		if lane := b.laneOf(d); waiting[lane] == nil {
			waiting[lane] = look.LLen(ctx, pendingKey(lane))
		}
	}
	// Its error is the first of many: a bell that is gone may hide a server
	// that is.
	_, _ = look.Exec(ctx)
	pending := make([]bool, len(bells))
	for i, state := range states {
		queue := waiting[b.laneOf(bells[i])]
		for _, err := range []error{state.Err(), queue.Err()} {
			if err != nil && !errors.Is(err, redis.Nil) {
				return nil, fmt.Errorf("look for bells: %w", err)
			}
		}
		pending[i] = state.Val() == asynq.TaskStatePending.String() && queue.Val() > 0
	}
	return pending, nil
}

// Paused tells whether somebody has paused a lane in Redis, as Asynq's own
// tools do. When Redis does not answer it is taken for not paused.
func (b *Bell) Paused(ctx context.Context, lane string) bool {
	ctx, cancel := context.WithTimeout(ctx, ringBudget)
	defer cancel()
	n, err := b.redis.Exists(ctx, "asynq:{"+lane+"}:paused").Result()
	return err == nil && n > 0
}
