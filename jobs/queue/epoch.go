package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

const epochKey = "piecework:epoch"

// MissingEpochs returns the epoch keys that masters of Redis lack, or have with
// another value. Each key has the epoch, which Postgres knows too, and the run id of
// the server.
func (c *Client) MissingEpochs(ctx context.Context, epoch string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var mu sync.Mutex
	missing := map[string]string{}
	err := c.everyMaster(ctx, func(ctx context.Context, server redis.UniversalClient, tag string) error {
		key := epochKey + c.suffix + tag
		got, err := c.redis.Get(ctx, key).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("read epoch from redis: %w", err)
		}
		// A replica that takes over has the key too, and not always the last
		// messages. Who may not ask for the run id, or has a Redis without, finds
		// those a minute later.
		info, err := server.Info(ctx, "server").Result()
		if err != nil && !errors.As(err, new(redis.Error)) {
			return fmt.Errorf("read run id from redis: %w", err)
		}
		if want := strings.TrimSpace(epoch + " " + infoOf(info)["run_id"]); got != want {
			mu.Lock()
			defer mu.Unlock()
			missing[key] = want
		}
		return nil
	})
	return missing, err
}

// SetEpochs writes epoch keys that were missing.
func (c *Client) SetEpochs(ctx context.Context, missing map[string]string) error {
	for key, epoch := range missing {
		if err := c.redis.Set(ctx, key, epoch, 0).Err(); err != nil {
			return fmt.Errorf("write the epoch to redis: %w", err)
		}
	}
	return nil
}
