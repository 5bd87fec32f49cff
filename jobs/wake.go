package jobs

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
// polls; this client makes the poll wait until a bell rings. It knows Asynq's
// dequeue script by its keys (asynq 0.26), which a test holds against the
// library.
type WakingClient struct {
	redis.UniversalClient
	lanes  int64
	empty  atomic.Int64
	rung   <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

// CheckInterval is the Asynq server's own pause between rounds. It can be
// short: the waiting happens in this client.
const CheckInterval = 4 * time.Millisecond

const (
	// idle is how long a round of empty lanes waits for a bell. A wake that
	// was lost costs at most this.
	idle = time.Second
	// refused is the pause after an error: Asynq's loop has none and would
	// spin when Redis refuses writes.
	refused = 500 * time.Millisecond
)

// ServerClient returns a client for an Asynq server that listens to that many
// lanes; rung tells of bells.
func (b *Bell) ServerClient(lanes int, rung <-chan struct{}) *WakingClient {
	return &WakingClient{UniversalClient: b.redis, lanes: int64(lanes), rung: rung, closed: make(chan struct{})}
}

// Release ends every wait; call it before the Asynq server shuts down.
func (s *WakingClient) Release() { s.once.Do(func() { close(s.closed) }) }

// EvalSha runs a script; an Asynq dequeue that finds nothing in any lane waits
// here for a bell.
func (s *WakingClient) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return s.waitAfter(s.UniversalClient.EvalSha(ctx, sha, keys, args...), keys)
}

// Eval is what becomes of EvalSha when Redis does not know the script.
func (s *WakingClient) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return s.waitAfter(s.UniversalClient.Eval(ctx, script, keys, args...), keys)
}

// waitAfter counts empty lanes. Asynq begins a round anew, in another order,
// after a find and after an error: so does the count, or a wait would come
// before every lane was looked at.
func (s *WakingClient) waitAfter(cmd *redis.Cmd, keys []string) *redis.Cmd {
	if !dequeues(keys) {
		return cmd
	}
	err := cmd.Err()
	switch {
	case err == nil:
		s.empty.Store(0)
	case errors.Is(err, redis.Nil):
		if s.empty.Add(1) >= s.lanes {
			s.empty.Store(0)
			s.wait(idle, s.rung)
		}
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
	default:
		s.empty.Store(0)
		s.wait(refused, nil)
	}
	return cmd
}

func (s *WakingClient) wait(d time.Duration, rung <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-rung:
	case <-timer.C:
	case <-s.closed:
	}
}

func dequeues(keys []string) bool {
	return len(keys) == 4 && strings.HasSuffix(keys[0], ":pending") && strings.HasSuffix(keys[1], ":paused") &&
		strings.HasSuffix(keys[2], ":active") && strings.HasSuffix(keys[3], ":lease")
}
