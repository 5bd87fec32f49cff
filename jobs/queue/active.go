package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"piecework/store"
)

const (
	keepFailed = 1000 // archived tasks kept in a queue for Asynqmon
	trimAtOnce = 500
)

// activeMost bounds what is looked at in one queue: more than run there at once.
const activeMost = 10_000

func activeKey(queue string) string { return "asynq:{" + queue + "}:active" }

// Active returns the messages of units that worker processes have taken from Redis
// and not put aside: most of them run.
func (c *Client) Active(ctx context.Context) ([]store.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	queues, err := c.ownQueues(ctx)
	if err != nil {
		return nil, err
	}
	if !severalSlots(c.redis) && len(queues) > 0 { // at rest one command answers for all
		keys := make([]string, len(queues))
		for i, queue := range queues {
			keys[i] = activeKey(queue)
		}
		if n, err := c.redis.Exists(ctx, keys...).Result(); err != nil || n == 0 {
			if err != nil {
				err = fmt.Errorf("look at taken messages: %w", err)
			}
			return nil, err
		}
	}
	look := c.redis.Pipeline()
	active := make([]*redis.StringSliceCmd, len(queues))
	for i, queue := range queues {
		active[i] = look.LRange(ctx, activeKey(queue), 0, activeMost-1)
	}
	if _, err := look.Exec(ctx); err != nil {
		return nil, fmt.Errorf("look at taken messages: %w", err)
	}
	var messages []store.Message
	for _, ids := range active {
		for _, id := range ids.Val() {
			if d, ok := parseTaskID(id); ok {
				messages = append(messages, d)
			}
		}
	}
	return messages, nil
}

// parseTaskID reads what TaskID has made.
func parseTaskID(id string) (store.Message, bool) {
	unit, number, ok := strings.Cut(id, ".")
	if !ok || len(unit) != 32 {
		return store.Message{}, false
	}
	n, numberErr := strconv.Atoi(number)
	parsed, unitErr := uuid.Parse(unit)
	return store.Message{UnitID: parsed, Number: n}, numberErr == nil && unitErr == nil
}

// Taken tells whether a worker process has taken a unit's newest message. When Redis
// does not answer nobody knows of one.
func (c *Client) Taken(ctx context.Context, d store.Message) bool {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	state, err := c.redis.HGet(ctx, c.stateKey(d), "state").Result()
	return err == nil && state == asynq.TaskStateActive.String()
}

// TrimArchives keeps the newest failed tasks of each queue for Asynqmon's eyes.
// Asynq's own trimming breaks on a large archive.
func (c *Client) TrimArchives(ctx context.Context) error {
	queues, err := c.ownQueues(ctx)
	if err != nil {
		return err
	}
	for _, queue := range queues {
		// Asynq's own GetQueueInfo fails on a task that lost its message.
		archived, err := c.redis.ZCard(ctx, archiveKey(queue)).Result()
		if err != nil {
			return fmt.Errorf("look at queue %s: %w", queue, err)
		}
		for over := int(archived) - keepFailed; over > 0 && ctx.Err() == nil; over -= trimAtOnce {
			old, err := c.inspector.ListArchivedTasks(queue, asynq.PageSize(min(over, trimAtOnce)))
			if err != nil {
				return fmt.Errorf("list archive of queue %s: %w", queue, err)
			}
			for _, t := range old {
				if err := c.inspector.DeleteTask(queue, t.ID); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
					return fmt.Errorf("trim archive of queue %s: %w", queue, err)
				}
			}
		}
	}
	return nil
}
