package queue

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// WakingClient is Redis as an Asynq server should see it: the unchanged server
// polls; this client makes the poll wait for a wake-up. It knows Asynq's
// dequeue script by its keys (asynq 0.26), which a test holds against the
// library.
type WakingClient struct {
	redis.UniversalClient
	plain   redis.UniversalClient // for dequeues, which wait for nobody's round trip
	gate    Gate
	stock   []any  // messages that were taken with another; only Asynq's one loop that dequeues has it
	stockOf string // the backend of their queue
	queues  int64
	empty   atomic.Int64
	open    []dequeue       // this round's queues whose gates are open; as stock, of one loop alone
	vacant  map[string]bool // pending lists that this round need not ask for
	soon    atomic.Int64    // nanoseconds until the first gate of this round opens
	wakeUps <-chan struct{}
	closed  chan struct{}
	once    sync.Once
}

// dequeue is what Asynq asks of one queue.
type dequeue struct {
	keys []string
	args []any
}

// Gate keeps the messages of a queue and a backend in Redis while no unit of it
// may begin here: other worker processes can take them, and the rest goes on.
type Gate struct {
	// Wait tells how long until a unit of the queue and the backend may begin,
	// 0 for now.
	Wait func(queue, backend string) time.Duration
	// Took is called for each message that was taken.
	Took func(backend string)
	// Spare tells how many units of a backend may be taken at once. Never more than
	// can begin at once: a unit that waits here could have begun elsewhere. nil: 1.
	Spare func(backend string) int
}

// CheckInterval is the Asynq server's own pause between rounds that found nothing.
// It can be short: the waiting happens in this client.
const CheckInterval = time.Millisecond

// SweepInterval is how often the Asynq server looks for tasks to be retried and for
// completed ones that are old, in each queue. There are none: no message is retried, and
// none is kept.
const SweepInterval = 10 * time.Minute

const (
	// idle is how long a round of empty queues waits for a wake-up. One that
	// was lost costs at most this.
	idle = time.Second
	// refused is the pause after an error: Asynq's loop has none and would
	// spin when Redis refuses writes.
	refused = 500 * time.Millisecond
)

// ServerClient returns a client for an Asynq server that listens to that many
// Asynq queues; wakeUps tells of messages and of gates that have opened.
func (c *Client) ServerClient(queues int, gate Gate, wakeUps <-chan struct{}) *WakingClient {
	s := &WakingClient{
		UniversalClient: c.pipeline(), plain: c.redis, gate: gate, queues: int64(queues), wakeUps: wakeUps, closed: make(chan struct{}),
	}
	s.soon.Store(int64(idle))
	return s
}

// Release ends every wait; call it before the Asynq server shuts down.
func (s *WakingClient) Release() { s.once.Do(func() { close(s.closed) }) }

// EvalSha runs a script; an Asynq dequeue that finds nothing in any queue waits
// here for a wake-up.
func (s *WakingClient) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if !dequeues(keys) {
		return s.UniversalClient.EvalSha(ctx, sha, keys, args...)
	}
	if len(s.stock) > 0 {
		return s.fromStock(ctx)
	}
	if cmd := s.shut(ctx, keys); cmd != nil {
		return cmd
	}
	s.open = append(s.open, dequeue{keys, args})
	if s.vacant[keys[0]] {
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(redis.Nil)
		return s.waitAfter(ctx, cmd, keys)
	}
	if n := s.spare(keys); n > 1 {
		return s.waitAfter(ctx, s.takeMany(ctx, keys, args, n), keys)
	}
	return s.waitAfter(ctx, s.plain.EvalSha(ctx, sha, keys, args...), keys)
}

// maxTake bounds what is taken at once, which Redis does nothing else meanwhile.
const maxTake = 32

// spare is how many units may be taken from a queue at once: half of what may begin,
// for other worker processes want some too.
func (s *WakingClient) spare(keys []string) int {
	if s.gate.Spare == nil {
		return 1
	}
	_, backend := unitQueue(keys)
	return min(maxTake, s.gate.Spare(backend)/2)
}

// takeMany is Asynq's dequeue, ARGV[3] times. Its lease is longer than what is taken
// waits here.
var takeMany = redis.NewScript(`
local taken = {}
if redis.call("EXISTS", KEYS[2]) == 0 then
	for i = 1, tonumber(ARGV[3]) do
		local id = redis.call("RPOPLPUSH", KEYS[1], KEYS[3])
		if not id then break end
		local key = ARGV[2] .. id
		redis.call("HSET", key, "state", "active")
		redis.call("HDEL", key, "pending_since")
		redis.call("ZADD", KEYS[4], ARGV[1], id)
		local msg = redis.call("HGET", key, "msg")
		if msg then table.insert(taken, msg) end
	end
end
return taken`)

func (s *WakingClient) takeMany(ctx context.Context, keys []string, args []any, n int) *redis.Cmd {
	cmd := takeMany.Run(ctx, s.plain, keys, append(args[:len(args):len(args)], n)...)
	taken, err := cmd.Slice()
	if err != nil {
		return cmd
	}
	first := redis.NewCmd(ctx)
	if len(taken) == 0 {
		first.SetErr(redis.Nil)
		return first
	}
	first.SetVal(taken[0])
	_, s.stockOf = unitQueue(keys)
	s.stock = taken[1:]
	return first
}

// fromStock answers for Redis with a message that was taken before. It names its
// own queue, whichever Asynq asked for.
func (s *WakingClient) fromStock(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetVal(s.stock[0])
	s.stock = s.stock[1:]
	s.round()
	s.gate.Took(s.stockOf)
	return cmd
}

// shut answers for Redis that a queue is empty while its gate is shut, nil when
// it is open.
func (s *WakingClient) shut(ctx context.Context, keys []string) *redis.Cmd {
	wait := s.gate.Wait(unitQueue(keys))
	if wait <= 0 {
		return nil
	}
	s.soon.Store(min(s.soon.Load(), int64(wait)))
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.Nil)
	return s.waitAfter(ctx, cmd, keys)
}

// Eval is what becomes of EvalSha when Redis does not know the script.
func (s *WakingClient) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return s.waitAfter(ctx, s.plain.Eval(ctx, script, keys, args...), keys)
}

// waitAfter counts empty queues. Asynq begins a round anew, in another order,
// after a find and after an error: so does the count, or a wait would come
// before every queue was looked at.
func (s *WakingClient) waitAfter(ctx context.Context, cmd *redis.Cmd, keys []string) *redis.Cmd {
	if !dequeues(keys) {
		return cmd
	}
	err := cmd.Err()
	switch {
	case err == nil:
		s.round()
		_, backend := unitQueue(keys)
		s.gate.Took(backend)
	case errors.Is(err, redis.Nil):
		if s.empty.Add(1) >= s.queues {
			open := s.open
			switch s.wait(s.round(), s.wakeUps) {
			case timeout:
				s.vacant = s.allEmpty(open)
			case woken:
				return s.takeFirst(ctx, cmd, open)
			}
		}
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
	default:
		s.round()
		s.wait(refused, nil)
	}
	return cmd
}

// round begins to count anew, and returns how long to wait if the round that
// has ended found nothing.
func (s *WakingClient) round() time.Duration {
	s.empty.Store(0)
	s.open, s.vacant = nil, nil
	return time.Duration(s.soon.Swap(int64(idle)))
}

// takeFirst looks at once for what the wake-up was about: Asynq would pause before it
// asks again. Like a stock, the message names its own queue. empty is the answer when
// there is nothing.
func (s *WakingClient) takeFirst(ctx context.Context, empty *redis.Cmd, open []dequeue) *redis.Cmd {
	for _, q := range open {
		if s.gate.Wait(unitQueue(q.keys)) > 0 {
			continue
		}
		if cmd := s.takeMany(ctx, q.keys, q.args, max(1, s.spare(q.keys))); cmd.Err() == nil {
			_, backend := unitQueue(q.keys)
			s.gate.Took(backend)
			return cmd
		}
	}
	return empty // also after an error: Asynq's own round meets it again
}

// What has ended a wait.
const (
	woken = iota
	timeout
	closed
)

func (s *WakingClient) wait(d time.Duration, wakeUps <-chan struct{}) int {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wakeUps:
		return woken
	case <-timer.C:
		return timeout
	case <-s.closed:
		return closed
	}
}

// allEmpty asks for all queues with one command, after a wait that no wake-up ended. When
// every list is empty the next round is answered with that; each gate is looked at as
// ever, and a queue whose gate has opened meanwhile is asked for. The keys of a
// Cluster's queues are on several servers, so each queue is asked there.
func (s *WakingClient) allEmpty(open []dequeue) map[string]bool {
	if len(open) == 0 || severalSlots(s.plain) {
		return nil
	}
	pending := make([]string, len(open))
	for i, q := range open {
		pending[i] = q.keys[0]
	}
	if n, err := s.plain.Exists(context.Background(), pending...).Result(); err != nil || n > 0 {
		return nil // the round sees what it is
	}
	vacant := make(map[string]bool, len(pending))
	for _, key := range pending {
		vacant[key] = true
	}
	return vacant
}

// severalSlots tells whether one command cannot ask for keys of several queues.
func severalSlots(client redis.UniversalClient) bool {
	_, cluster := client.(*redis.ClusterClient)
	return cluster
}

// unitQueue reads queue and backend of the units out of the keys of a dequeue, which
// name an Asynq queue.
func unitQueue(keys []string) (queue, backend string) {
	_, name, _ := strings.Cut(keys[0], "{")
	queue, rest, _ := strings.Cut(name, ":")
	return queue, rest[:strings.IndexAny(rest+"}", ":@}")]
}

func dequeues(keys []string) bool {
	return len(keys) == 4 && strings.HasSuffix(keys[0], ":pending") && strings.HasSuffix(keys[1], ":paused") &&
		strings.HasSuffix(keys[2], ":active") && strings.HasSuffix(keys[3], ":lease")
}
