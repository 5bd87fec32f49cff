// Package queue is Redis as a message queue, through Asynq. Redis holds nothing
// that Postgres does not know: a message says no more than "unit X may be ready
// to run". The API enqueues after a commit; worker processes and the reconciler
// enqueue again when a message was lost.
//
//	queue.go     Client: the connection; message types, names of Asynq's queues
//	redis.go     what Redis may be: one server, Sentinel, Cluster
//	enqueue.go   enqueue messages; see whether they still wait
//	active.go    messages that worker processes have taken
//	delivery.go  messages for what is due to receivers of webhooks
//	pipeline.go  many callers' commands in one round trip
//	wake.go      wake-ups: dequeue without polling, and pause when Redis refuses
//	notice.go    hints between processes: cancel, unit changed, steps, paused
//	epoch.go     whether Redis has lost data
//	diagnose.go  whether this Redis is fit to be a queue
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"piecework/internal/work"
)

// TypeRun is the task of units: run one.
const TypeRun = "unit:run"

// Task is the payload of TypeRun: ids, never data.
type Task struct {
	Unit     uuid.UUID `json:"unit"`
	Dispatch int       `json:"dispatch"`
}

// TaskID is the Asynq id of a message. Asynqmon shows ids up to the first dash,
// so there is none. A number is never used twice: Asynq keeps ids of archived
// tasks, and refuses them, for 90 days.
func TaskID(unit uuid.UUID, dispatch int) string {
	return fmt.Sprintf("%s.%d", strings.ReplaceAll(unit.String(), "-", ""), dispatch)
}

// taskTimeout is beyond every timeout of ours: Asynq's own would free the
// slot and leave the work running.
const taskTimeout = time.Duration(work.MaxTimeout)*time.Second + time.Hour

// QueueName is the Asynq queue of units of one queue, backend and urgency. A worker
// process reads only the Asynq queues whose backend it has.
func (c *Client) QueueName(queue, backend string, priority int) string {
	switch {
	case priority >= 7:
		backend += ":high"
	case priority <= 3:
		backend += ":low"
	}
	return queue + ":" + backend + c.suffix
}

// QueueWeights are the Asynq queues of the given queues and backends with their
// weights: of ten dequeues that find work everywhere, six are high and one is low.
func (c *Client) QueueWeights(queues map[string]int, backends []string) map[string]int {
	weights := map[string]int{}
	for queue, weight := range queues {
		for _, backend := range backends {
			weights[c.QueueName(queue, backend, 9)] = 6 * weight
			weights[c.QueueName(queue, backend, 5)] = 3 * weight
			weights[c.QueueName(queue, backend, 0)] = weight
		}
	}
	return weights
}

// Client is a connection to Redis as a message queue.
type Client struct {
	notices
	redis     redis.UniversalClient
	layout    string // of Redis, for people
	suffix    string // of all names of one installation
	client    *asynq.Client
	inspector *asynq.Inspector
	log       *slog.Logger
	up        atomic.Bool // the last write probe succeeded
	leaveOpen atomic.Bool

	makePipeline sync.Once
	pipelined    *pipelined // for what many send at once
}

// Connect returns a Client for the Redis at address: redis://, rediss://, unix://,
// redis-sentinel://HOST:PORT,…/DB?master=NAME or redis-cluster://HOST:PORT,…;
// the last two also with rediss. It does not fail when Redis is away: Redis may
// come back.
func Connect(address string, log *slog.Logger) (*Client, error) {
	quiet()
	client, layout, err := dial(address)
	if err != nil {
		return nil, fmt.Errorf("read REDIS_URL: %w", err)
	}
	c := &Client{redis: client, layout: layout, log: log}
	c.notices = notices{client: c, stepped: map[uuid.UUID]bool{}, drafted: map[uuid.UUID]Draft{}}
	c.client = asynq.NewClientFromRedisClient(c.pipeline())
	c.inspector = asynq.NewInspectorFromRedisClient(c.redis)
	c.up.Store(true)
	return c, nil
}

// OfDatabase keeps the messages of one installation apart from those of others that
// use the same Redis: the names of its queues, of its channels and of its epoch end
// in the beginning of its database's id. It is called before the Client is used.
func (c *Client) OfDatabase(id string) { c.suffix = "@" + id[:min(len(id), 8)] }

// pipeline is the connection for what many send at once.
func (c *Client) pipeline() *pipelined {
	c.makePipeline.Do(func() { c.pipelined = &pipelined{UniversalClient: c.redis} })
	return c.pipelined
}

// quiet silences go-redis, which writes to stderr by itself whenever a dial
// fails: Probe logs that once. The library keeps its logger in a package
// variable.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// Redis is the connection, for the handlers' Asynq server and Asynqmon.
func (c *Client) Redis() redis.UniversalClient { return c.redis }

// MakeRedisClient makes a Client an asynq.RedisConnOpt.
func (c *Client) MakeRedisClient() any { return c.redis }

// Close ends the connection, unless it is to be left open.
func (c *Client) Close() error {
	if c.leaveOpen.Load() {
		return nil
	}
	return c.redis.Close()
}

// LeaveOpen makes Close do nothing: somebody still uses the connection who would
// not survive its end. The end of the process ends it.
func (c *Client) LeaveOpen() { c.leaveOpen.Store(true) }

// Up tells whether Redis took a write when last tried.
func (c *Client) Up() bool { return c.up.Load() }

// Probe writes to Redis, to each master of a Cluster: PING would hide a Redis
// that refuses writes. A caller that leaves before the answer has learned
// nothing about Redis.
func (c *Client) Probe(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := c.everyMaster(ask, func(ctx context.Context, _ redis.UniversalClient, tag string) error {
		return c.redis.Set(ctx, "piecework:probe"+tag, "1", time.Minute).Err()
	})
	if err != nil {
		err = fmt.Errorf("write to redis: %w", err)
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	if was := c.up.Swap(err == nil); was != (err == nil) {
		c.log.Warn("redis changed", "up", err == nil, "err", err)
	}
	return err
}

// WatchRedis probes Redis once a second until ctx ends.
func (c *Client) WatchRedis(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if err := c.Probe(ctx); err != nil && !errors.Is(err, context.Canceled) {
			c.log.Debug("redis probe", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
