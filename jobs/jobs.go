// Package jobs accepts work and keeps it moving. What callers ask for becomes units,
// batches, triggers and schedules here, or is refused; after the commit a message goes
// to the queue in Redis, which holds nothing that Postgres does not know: a task says
// no more than "unit X may be runnable". A reconciler repeats what was lost.
//
//	rules.go           Rules: what an operator lets callers ask for
//	submit.go          Submitter: commit a unit and have its message sent
//	control.go         Control: cancel and retry units, move batches
//	unit.go            what a unit must be
//	times.go           its times and durations
//	files.go           its files and directories
//	title.go           by what people know it
//	new_batch.go       what a batch must be; submit one
//	inspect.go         a look at the items of a batch before it is accepted
//	synthesis.go       the unit that sums a batch up
//	results.go         the results of a batch as lines
//	enumerate.go       Enumerator: the units of batches, made in the background
//	chunk.go           some of them on their way into Postgres
//	item.go            the units of their items
//	source.go          where the items of a batch come from
//	start_order.go     the order in which they begin
//	openai_lines.go    the lines of a batch of OpenAI's API
//	anthropic_lines.go the requests of a batch of Anthropic's API
//	trigger.go         what a trigger must be
//	trigger_batch.go   the batches that webhooks make
//	schedule.go        what a schedule must be; make its units
//	jobs.go            task types, lanes, Bell: the connection
//	redis.go           what Redis may be: one server, Sentinel, Cluster
//	enqueue.go         send messages; see whether they are still on their way
//	pipeline.go        many callers' commands in one round trip
//	wake.go            take messages without polling, and sit still when Redis refuses
//	notice.go          hints between processes: cancel, unit changed, steps, paused
//	reconcile.go       repeat lost messages, free dead leases: once a second
//	duty.go            what the reconciler does, and how often
//	janitor.go         what is old is removed
//	lease.go           which worker processes give no sign of life
//	taken.go           messages that were taken and whose units do not begin
//	batch.go           let the units of batches begin
//	delivery.go        messages for what is to be delivered to receivers of webhooks
//	diagnose.go        whether this Redis is fit for the queue
package jobs

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

// TaskID is the Asynq id of a bell. Asynqmon shows ids up to the first dash,
// so there is none. A number is never used twice: Asynq keeps ids of archived
// tasks, and refuses them, for 90 days.
func TaskID(unit uuid.UUID, dispatch int) string {
	return fmt.Sprintf("%s.%d", strings.ReplaceAll(unit.String(), "-", ""), dispatch)
}

// taskTimeout is beyond every timeout of ours: Asynq's own would free the
// slot and leave the work running.
const taskTimeout = time.Duration(work.MaxTimeout)*time.Second + time.Hour

// Lane is the Asynq queue of units of one queue, backend and urgency. A worker
// process listens only to lanes whose backend it has.
func (b *Bell) Lane(queue, backend string, priority int) string {
	switch {
	case priority >= 7:
		backend += ":high"
	case priority <= 3:
		backend += ":low"
	}
	return queue + ":" + backend + b.suffix
}

// Lanes are the lanes of the given queues and backends with their weights: of
// ten dequeues that find work everywhere, six are high and one is low.
func (b *Bell) Lanes(queues map[string]int, backends []string) map[string]int {
	lanes := map[string]int{}
	for queue, weight := range queues {
		for _, backend := range backends {
			lanes[b.Lane(queue, backend, 9)] = 6 * weight
			lanes[b.Lane(queue, backend, 5)] = 3 * weight
			lanes[b.Lane(queue, backend, 0)] = weight
		}
	}
	return lanes
}

// Bell is a connection to Redis as a doorbell.
type Bell struct {
	redis     redis.UniversalClient
	layout    string // of Redis, for people
	suffix    string // of all names of one installation
	client    *asynq.Client
	inspector *asynq.Inspector
	log       *slog.Logger
	up        atomic.Bool // the last write probe succeeded
	leaveOpen atomic.Bool

	makeTogether sync.Once
	pipelined    *pipelined // what many send at once

	mu      sync.Mutex
	stepped map[uuid.UUID]bool // units whose steps are to be told of
	drafted map[uuid.UUID]Draft
	watched []uuid.UUID
	telling bool
}

// Connect returns a Bell for the Redis at address: redis://, rediss://, unix://,
// redis-sentinel://HOST:PORT,…/DB?master=NAME or redis-cluster://HOST:PORT,…;
// the last two also with rediss. It does not fail when Redis is away: a bell may
// be rung later.
func Connect(address string, log *slog.Logger) (*Bell, error) {
	quiet()
	client, layout, err := dial(address)
	if err != nil {
		return nil, fmt.Errorf("read REDIS_URL: %w", err)
	}
	b := &Bell{redis: client, layout: layout, log: log, stepped: map[uuid.UUID]bool{}, drafted: map[uuid.UUID]Draft{}}
	b.client = asynq.NewClientFromRedisClient(b.together())
	b.inspector = asynq.NewInspectorFromRedisClient(b.redis)
	b.up.Store(true)
	return b, nil
}

// OfDatabase keeps the messages of one installation apart from those of others that
// use the same Redis: the names of its queues, of its channels and of its epoch end
// in the beginning of its database's id. It is called before the Bell is used.
func (b *Bell) OfDatabase(id string) { b.suffix = "@" + id[:min(len(id), 8)] }

// together is the connection for what many send at once.
func (b *Bell) together() *pipelined {
	b.makeTogether.Do(func() { b.pipelined = &pipelined{UniversalClient: b.redis} })
	return b.pipelined
}

// quiet silences go-redis, which writes to stderr by itself whenever a dial
// fails: Probe tells of that once. The library keeps its logger in a package
// variable.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// Redis is the connection, for the handlers' Asynq server and Asynqmon.
func (b *Bell) Redis() redis.UniversalClient { return b.redis }

// MakeRedisClient makes a Bell an asynq.RedisConnOpt.
func (b *Bell) MakeRedisClient() any { return b.redis }

// Close ends the connection, unless it is to be left open.
func (b *Bell) Close() error {
	if b.leaveOpen.Load() {
		return nil
	}
	return b.redis.Close()
}

// LeaveOpen makes Close do nothing: somebody still uses the connection who would
// not survive its end. The end of the process ends it.
func (b *Bell) LeaveOpen() { b.leaveOpen.Store(true) }

// Up tells whether Redis took a write when last tried.
func (b *Bell) Up() bool { return b.up.Load() }

// Probe writes to Redis, to each master of a Cluster: PING would hide a Redis
// that refuses writes. A caller that leaves before the answer has learned
// nothing about Redis.
func (b *Bell) Probe(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := b.everyMaster(ask, func(ctx context.Context, _ redis.UniversalClient, tag string) error {
		return b.redis.Set(ctx, "piecework:probe"+tag, "1", time.Minute).Err()
	})
	if err != nil {
		err = fmt.Errorf("write to redis: %w", err)
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	if was := b.up.Swap(err == nil); was != (err == nil) {
		b.log.Warn("redis changed", "up", err == nil, "err", err)
	}
	return err
}

// WatchRedis probes Redis once a second until ctx ends.
func (b *Bell) WatchRedis(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if err := b.Probe(ctx); err != nil && !errors.Is(err, context.Canceled) {
			b.log.Debug("redis probe", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
