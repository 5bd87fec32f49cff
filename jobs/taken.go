package jobs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"piecework/internal/process"
	"piecework/store"
)

const (
	// takenMost bounds what is looked at in one lane: more than run there at once.
	takenMost = 10_000
	// takenFor is how long a worker process may take to claim what it took from
	// Redis.
	takenFor = 1500 * time.Millisecond
)

func activeKey(lane string) string { return "asynq:{" + lane + "}:active" }

// ringTaken offers units again whose message a worker process took from Redis
// and has not claimed in time: it has lost Postgres, is frozen, or died just then. If it claims the unit after all, the others find
// nothing to claim.
func (r *Reconciler) ringTaken(ctx context.Context) error {
	bells, err := r.Bell.active(ctx)
	if err != nil {
		return err
	}
	if len(bells) == 0 {
		r.taken = nil
		return nil
	}
	untaken, err := r.Store.Queues.Untaken(ctx, bells)
	if err != nil {
		return err
	}
	queued := make(map[uuid.UUID]bool, len(untaken))
	for _, unit := range untaken {
		queued[unit] = true
	}
	now, taken := process.Uptime(), map[string]time.Duration{}
	var again []uuid.UUID
	for _, b := range bells {
		if !queued[b.UnitID] {
			continue
		}
		id := TaskID(b.UnitID, b.Number)
		since, ok := r.taken[id]
		if !ok {
			since = now
		}
		taken[id] = since
		if now-since >= takenFor {
			again = append(again, b.UnitID)
		}
	}
	r.taken = taken
	if len(again) == 0 {
		return nil
	}
	fresh, err := r.Store.Queues.Redispatch(ctx, again)
	if err != nil {
		return err
	}
	r.Log.Warn("units are offered again: a worker process took them and did not begin", "units", len(fresh))
	if err := r.Bell.ring(ctx, fresh); err != nil {
		return errors.Join(err, r.Store.Queues.Recheck(ctx, again))
	}
	return nil
}

// active returns the bells of units that worker processes have taken from Redis
// and not put aside: most of them run.
func (b *Bell) active(ctx context.Context) ([]store.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, lookBudget)
	defer cancel()
	lanes, err := b.ownLanes(ctx)
	if err != nil {
		return nil, err
	}
	if !severalSlots(b.redis) && len(lanes) > 0 { // at rest one command answers for all
		keys := make([]string, len(lanes))
		for i, lane := range lanes {
			keys[i] = activeKey(lane)
		}
		if n, err := b.redis.Exists(ctx, keys...).Result(); err != nil || n == 0 {
			if err != nil {
				err = fmt.Errorf("look at taken bells: %w", err)
			}
			return nil, err
		}
	}
	look := b.redis.Pipeline()
	active := make([]*redis.StringSliceCmd, len(lanes))
	for i, lane := range lanes {
		active[i] = look.LRange(ctx, activeKey(lane), 0, takenMost-1)
	}
	if _, err := look.Exec(ctx); err != nil {
		return nil, fmt.Errorf("look at taken bells: %w", err)
	}
	var bells []store.Message
	for _, ids := range active {
		for _, id := range ids.Val() {
			if d, ok := bellOf(id); ok {
				bells = append(bells, d)
			}
		}
	}
	return bells, nil
}

// bellOf reads what TaskID has made.
func bellOf(id string) (store.Message, bool) {
	unit, number, ok := strings.Cut(id, ".")
	if !ok || len(unit) != 32 {
		return store.Message{}, false
	}
	n, numberErr := strconv.Atoi(number)
	parsed, unitErr := uuid.Parse(unit)
	return store.Message{UnitID: parsed, Number: n}, numberErr == nil && unitErr == nil
}

// Taken tells whether a worker process has taken a unit's newest bell. When Redis
// does not answer nobody knows of one.
func (b *Bell) Taken(ctx context.Context, d store.Message) bool {
	ctx, cancel := context.WithTimeout(ctx, ringBudget)
	defer cancel()
	state, err := b.redis.HGet(ctx, b.stateKey(d), "state").Result()
	return err == nil && state == asynq.TaskStateActive.String()
}
