package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"piecework/internal/work"
	"piecework/store"
)

const (
	tick        = time.Second
	batch       = 500             // units looked at in one statement
	roundLimit  = 2 * time.Second // of one look at the bells: dead leases wait for its end
	keepFailed  = 1000            // archived tasks kept in a lane for Asynqmon
	sweepEvery  = time.Minute     // how often the slow duties are done
	epochKey    = "piecework:epoch"
	foldAtATime = 50
	tallyBudget = 2 * time.Second // for counting what was not counted yet
	// What came for triggers is remembered for longer than any sender repeats it.
	keepDeliveries = 7 * 24 * time.Hour
	pruneAtATime   = 10_000
	// After Postgres was away, worker processes get this long to give a sign
	// of life and to hand in what they finished meanwhile.
	recovery = 10 * time.Second
)

// Reconciler makes the ledger and the bell agree. Any process may run one; an
// advisory lock lets one at a time work.
type Reconciler struct {
	Store *store.Store
	Bell  *Bell
	Log   *slog.Logger

	keep   time.Duration // of deliveries; 0: keepDeliveries. The tests shorten it
	leases leaseWatch
	taken  map[string]time.Duration // bells that were heard and whose units do not begin: since when, by process.Uptime
	swept  time.Time
	moved  uuid.UUID // the batch that was looked at last
	away   bool      // Postgres was, so bells may have been heard for nothing
	calm   time.Time // until then nobody's lease is ended
}

// Run reconciles once a second until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		led, err := r.Store.Lead(ctx, r.Once)
		if !led && err == nil {
			_, _, err = r.watchLeases(ctx)
		}
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("reconcile", "err", err)
			r.away = r.away || errors.As(err, new(*work.Unavailable))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Once does one round: frees dead leases, ends what is overdue, rings bells
// that were lost.
func (r *Reconciler) Once(ctx context.Context) error {
	if r.away {
		if _, err := r.Store.RecheckAll(ctx); err != nil {
			return err
		}
		if err := r.Store.DoubtDeliveries(ctx); err != nil {
			return err
		}
		r.away, r.calm = false, time.Now().Add(recovery)
	}
	lost, err := r.endLeases(ctx)
	if err != nil {
		return err
	}
	overdue, err := r.Store.ExpireDeadlines(ctx)
	if err != nil {
		return err
	}
	if late, err := r.Store.LateUnits(ctx); err != nil {
		return err
	} else if late > 0 {
		r.Log.Info("units of the batch lane run live: their end is near", "units", late)
	}
	undelivered, err := r.Store.ExpireDeliveries(ctx)
	if err != nil {
		return err
	}
	if lost+overdue+undelivered > 0 {
		r.Log.Warn("reconciled", "runs_lost", lost, "units_overdue", overdue, "deliveries_lost", undelivered)
	}
	laterErr := errors.Join(r.makeScheduled(ctx), r.moveBatches(ctx)) // must not keep the bells from ringing
	if lost > 0 || time.Since(r.swept) > sweepEvery {
		laterErr = errors.Join(laterErr, r.sweep(ctx))
	}
	if !r.Bell.Up() {
		return laterErr // worker processes claim straight from Postgres
	}
	if err := r.checkEpoch(ctx); err != nil {
		return errors.Join(laterErr, err)
	}
	return errors.Join(laterErr, r.ringLost(ctx), r.ringTaken(ctx), r.ringDeliveries(ctx))
}

func (r *Reconciler) sweep(ctx context.Context) error {
	for folded := foldAtATime; folded == foldAtATime; {
		var err error
		if folded, err = r.Store.FoldLost(ctx, foldAtATime); err != nil {
			return err
		}
	}
	r.swept = time.Now()
	laterErr := errors.Join(r.tally(ctx), r.pruneDeliveries(ctx), r.Store.PruneAnswers(ctx))
	if !r.Bell.Up() {
		return laterErr
	}
	return errors.Join(laterErr, r.Bell.trimArchives(ctx))
}

// pruneDeliveries forgets old deliveries. Much that was left is for the next
// sweep.
func (r *Reconciler) pruneDeliveries(ctx context.Context) error {
	for begun := time.Now(); time.Since(begun) < tallyBudget; {
		if n, err := r.Store.PruneTriggerDeliveries(ctx, cmp.Or(r.keep, keepDeliveries), pruneAtATime); err != nil || n < pruneAtATime {
			return err
		}
	}
	return nil
}

// tally counts what is over, so that the overview need not. Much that was left
// is for the next sweep: bells come first.
func (r *Reconciler) tally(ctx context.Context) error {
	for begun := time.Now(); time.Since(begun) < tallyBudget; {
		if more, err := r.Store.Tally(ctx, work.DefaultTenant); err != nil || !more {
			return err
		}
	}
	return nil
}

// checkEpoch finds out whether Redis lost its memory, or the end of it: it then
// lacks the mark that Postgres knows, or bears that of another server, which has
// died and was replaced, or started again. Every queued unit's bell is doubted
// before the mark is set, so that a death in between only makes the next round
// do it again.
func (r *Reconciler) checkEpoch(ctx context.Context) error {
	epoch, err := r.Store.Epoch(ctx, uuid.NewString())
	if err != nil {
		return err
	}
	unmarked, err := r.Bell.unmarked(ctx, epoch)
	if err != nil || len(unmarked) == 0 {
		return err
	}
	doubted, err := r.Store.RecheckAll(ctx)
	if err != nil {
		return err
	}
	if err := r.Store.DoubtDeliveries(ctx); err != nil {
		return err
	}
	for key, mark := range unmarked {
		if err := r.Bell.redis.Set(ctx, key, mark, 0).Err(); err != nil {
			return fmt.Errorf("mark redis with the epoch: %w", err)
		}
	}
	if doubted > 0 {
		r.Log.Warn("redis was restarted, replaced or emptied: looking for the bells of all queued units", "units", doubted)
	}
	return nil
}

// unmarked returns the marks that masters of Redis lack.
func (b *Bell) unmarked(ctx context.Context, epoch string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookBudget)
	defer cancel()
	var mu sync.Mutex
	marks := map[string]string{}
	err := b.everyMaster(ctx, func(ctx context.Context, server redis.UniversalClient, tag string) error {
		key := epochKey + tag
		got, err := b.redis.Get(ctx, key).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return fmt.Errorf("read epoch from redis: %w", err)
		}
		// A replica that takes over has the mark too, and not always the last
		// bells. Who may not ask for the run id, or has a Redis without, finds
		// those a minute later.
		info, err := server.Info(ctx, "server").Result()
		if err != nil && !errors.As(err, new(redis.Error)) {
			return fmt.Errorf("read run id from redis: %w", err)
		}
		if want := strings.TrimSpace(epoch + " " + infoOf(info)["run_id"]); got != want {
			mu.Lock()
			defer mu.Unlock()
			marks[key] = want
		}
		return nil
	})
	return marks, err
}

// ringLost looks at every queued unit whose bell is in doubt and rings again
// where there is none.
func (r *Reconciler) ringLost(ctx context.Context) error {
	for deadline := time.Now().Add(roundLimit); time.Now().Before(deadline); {
		due, err := r.Store.Unchecked(ctx, batch)
		if err != nil || len(due) == 0 {
			return err
		}
		if err := r.ringSilent(ctx, due); err != nil {
			return err
		}
		if len(due) < batch {
			return nil
		}
	}
	return nil
}

func (r *Reconciler) ringSilent(ctx context.Context, due []store.Dispatch) error {
	pending, err := r.Bell.pending(ctx, due)
	if err != nil {
		return err
	}
	var heard, silent []uuid.UUID
	for i, d := range due {
		if pending[i] {
			heard = append(heard, d.UnitID)
		} else {
			silent = append(silent, d.UnitID)
		}
	}
	if err := r.Store.Checked(ctx, heard); err != nil {
		return err
	}
	bells, err := r.Store.Redispatch(ctx, silent)
	if err != nil {
		return err
	}
	if err := r.Bell.ring(ctx, bells); err != nil {
		return errors.Join(err, r.Store.Doubt(ctx, silent))
	}
	return nil
}

// trimArchives keeps the newest failed tasks of each lane for Asynqmon's eyes.
// Asynq's own trimming breaks on a large archive.
func (b *Bell) trimArchives(ctx context.Context) error {
	lanes, err := b.inspector.Queues()
	if err != nil {
		return fmt.Errorf("list lanes: %w", err)
	}
	for _, lane := range lanes {
		// Asynq's own GetQueueInfo fails on a task that lost its message.
		archived, err := b.redis.ZCard(ctx, archiveKey(lane)).Result()
		if err != nil {
			return fmt.Errorf("look at lane %s: %w", lane, err)
		}
		for over := int(archived) - keepFailed; over > 0 && ctx.Err() == nil; over -= batch {
			old, err := b.inspector.ListArchivedTasks(lane, asynq.PageSize(min(over, batch)))
			if err != nil {
				return fmt.Errorf("list archive of lane %s: %w", lane, err)
			}
			for _, t := range old {
				if err := b.inspector.DeleteTask(lane, t.ID); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
					return fmt.Errorf("trim archive of lane %s: %w", lane, err)
				}
			}
		}
	}
	return nil
}
