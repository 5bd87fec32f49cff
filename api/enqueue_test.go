package api

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"piecework/internal/testkit"
)

// slowRedis keeps every command of Redis back until it is released.
type slowRedis struct{ release chan struct{} }

func (h slowRedis) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h slowRedis) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		<-h.release
		return next(ctx, cmd)
	}
}

func (h slowRedis) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		<-h.release
		return next(ctx, cmds)
	}
}

// A caller has its answer before Redis has the message. The message has a deadline of
// its own, which a busy machine may miss: then another unit is tried.
func TestAcceptDoesNotWaitForRedis(t *testing.T) {
	t.Parallel()
	testkit.Eventually(t, "a message that was sent after the answer", func() bool {
		f := openFront(t, testkit.DB(t, migrate), testkit.Redis(t), nil)
		hold := slowRedis{make(chan struct{})}
		f.Queue.Redis().AddHook(hold)
		f.post("/work-units", mock("")).is(202)
		close(hold.release)
		f.Wait()
		return !strings.Contains(f.log.String(), "did not ring")
	})
}
