package queue

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// pipelined sends the scripts and messages of many callers in one round trip:
// what comes while one is under way goes with the next. A lone call goes alone and
// at once. Everything else goes its usual way.
type pipelined struct {
	redis.UniversalClient

	mu      sync.Mutex
	waiting []*queued
	busy    bool
}

type queued struct {
	cmd  redis.Cmder
	done chan struct{}
}

// maxPipeline bounds the commands of one round trip.
const maxPipeline = 500

// EvalSha runs a script. A caller whose context ends first does not wait for the
// round trip, and does not know whether it ran, as with any command that has no answer.
func (p *pipelined) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	all := make([]any, 3, 3+len(keys)+len(args))
	all[0], all[1], all[2] = "evalsha", sha, len(keys)
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	if len(keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
	if err := p.do(ctx, cmd); err != nil {
		cmd = redis.NewCmd(ctx, cmd.Args()...) // the other is the round trip's
		cmd.SetErr(err)
	}
	return cmd
}

// Publish sends a message to whoever listens.
func (p *pipelined) Publish(ctx context.Context, channel string, message any) *redis.IntCmd {
	cmd := redis.NewIntCmd(ctx, "publish", channel, message)
	if err := p.do(ctx, cmd); err != nil {
		cmd = redis.NewIntCmd(ctx, cmd.Args()...)
		cmd.SetErr(err)
	}
	return cmd
}

// do sends a command and waits for its answer, which the command has then. It returns
// an error when ctx ended first; the command must not be looked at after that.
func (p *pipelined) do(ctx context.Context, cmd redis.Cmder) error {
	q := &queued{cmd: cmd, done: make(chan struct{})}
	p.mu.Lock()
	p.waiting = append(p.waiting, q)
	lead := !p.busy
	p.busy = true
	p.mu.Unlock()
	if lead {
		go p.drain()
	}
	select {
	case <-q.done:
		return nil
	case <-ctx.Done():
		p.forget(q)
		return ctx.Err()
	}
}

// forget takes back a command that nobody waits for and that is not under way.
func (p *pipelined) forget(q *queued) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, q); i >= 0 {
		// A copy: a round trip under way has the rest of the array.
		p.waiting = slices.Concat(p.waiting[:i], p.waiting[i+1:])
	}
}

func (p *pipelined) drain() {
	for {
		p.mu.Lock()
		n := min(len(p.waiting), maxPipeline)
		if n == 0 {
			p.busy, p.waiting = false, nil
			p.mu.Unlock()
			return
		}
		batch := p.waiting[:n:n]
		p.waiting = p.waiting[n:]
		p.mu.Unlock()
		p.send(batch)
		for _, q := range batch {
			close(q.done)
		}
	}
}

// send is bounded by the connection's own limits: the contexts of those who wait
// differ.
func (p *pipelined) send(batch []*queued) {
	ctx, cancel := context.WithTimeout(context.Background(), ioTimeout)
	defer cancel()
	if len(batch) == 1 {
		_ = p.Process(ctx, batch[0].cmd)
		return
	}
	pipe := p.Pipeline()
	for _, q := range batch {
		_ = pipe.Process(ctx, q.cmd)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
}
