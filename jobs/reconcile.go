package jobs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

const (
	tick        = time.Second
	atOnce      = 500             // units looked at in one statement
	roundLimit  = 2 * time.Second // of one look at the messages: dead leases wait for its end
	sweepEvery  = time.Minute     // how often the slow duties are done
	sweepUntil  = 10 * time.Second
	foldAtATime = 50
	tallyBudget = 2 * time.Second // for counting what was not counted yet
	// After Postgres was away, worker processes get this long to send a
	// heartbeat and to hand in what they finished meanwhile.
	recovery = 10 * time.Second
)

// Reconciler makes Postgres and the queue agree. Any process may run one; an
// advisory lock lets one at a time work.
type Reconciler struct {
	Store *store.Store
	Queue *queue.Client
	Log   *slog.Logger

	table   []duty
	pending *store.Pending // what this round has to do; nil: nobody knows
	leases  leaseWatch
	taken   map[string]time.Duration // messages that were taken and whose units do not begin: since when, by process.Uptime
	moved   uuid.UUID                // the batch that was looked at last
	idle    uuid.UUID                // the same, of paused ones
	walk    store.CheckCursor        // how far the walk over waiting units has come
	walked  time.Time                // when it began
	away    bool                     // Postgres was, so messages may have been taken for nothing
	calm    time.Time                // until then nobody's lease is ended
}

// Run reconciles once a second until ctx ends, while it leads.
func (r *Reconciler) Run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		free, err := r.follow(ctx)
		if free && err == nil {
			_, err = r.Store.Reconciler.Lead(ctx, ticker.C, func(round context.Context) { r.note(ctx, r.Once(round)) })
		}
		r.note(ctx, err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *Reconciler) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		r.Log.Warn("reconcile", "err", err)
		r.away = r.away || errors.As(err, new(*work.Unavailable))
	}
}

// duties is what a round consists of, in this order. Each has its own time and its
// own errors. Those of a minute's interval are slow: they wait for the next round
// when this one has taken long.
func (r *Reconciler) duties() []duty {
	return []duty{
		{name: "recheck after postgres was away", budget: 10 * time.Second, do: r.recover},
		{name: "end leases", budget: 5 * time.Second, do: r.expireLeases, piece: pieceRows},
		{name: "end units that are overdue", budget: 2 * time.Second, do: r.expireDeadlines, piece: pieceRows,
			needed: func(p *store.Pending) bool { return p.Overdue }},
		{name: "end the wait for provider batches", budget: 2 * time.Second, do: r.endWaits, piece: pieceRows,
			needed: func(p *store.Pending) bool { return p.Late }},
		{name: "take back deliveries", budget: 2 * time.Second, do: r.expireDeliveries, piece: pieceRows,
			needed: func(p *store.Pending) bool { return p.Undone }},
		{name: "make scheduled units", budget: 5 * time.Second, do: once(r.makeScheduled),
			needed: func(p *store.Pending) bool { return p.Schedules }},
		{name: "advance batches", budget: 2 * roundLimit, do: once(r.moveBatches), needed: func(p *store.Pending) bool { return p.Batches }},
		{name: "find out what redis has lost", budget: 10 * time.Second, do: r.withRedis(r.checkEpoch)},
		{name: "enqueue units", budget: 2 * roundLimit, do: r.withRedis(r.enqueueLost),
			needed: func(p *store.Pending) bool { return p.Unchecked || r.walkDue() }},
		{name: "enqueue units that were taken and not begun", budget: roundLimit, do: r.withRedis(r.enqueueTaken)},
		{name: "enqueue deliveries", budget: roundLimit, do: r.withRedis(r.enqueueDeliveries),
			needed: func(p *store.Pending) bool { return p.Unheard }},
		{name: foldDuty, every: sweepEvery, budget: 5 * time.Second, do: r.foldLost, piece: pieceRows},
		{name: "tally", every: sweepEvery, budget: 2 * tallyBudget, do: once(r.tally)},
		{name: "advance paused batches", every: sweepEvery, budget: 2 * roundLimit, do: once(r.moveIdleBatches)},
		{name: "trim archives", every: sweepEvery, budget: 5 * time.Second, do: r.withRedis(r.Queue.TrimArchives)},
	}
}

const foldDuty = "fold transcripts of lost runs"

// Once does one round: frees dead leases, ends what is overdue, enqueues
// messages that were lost. It returns what went wrong with each duty.
func (r *Reconciler) Once(ctx context.Context) error {
	if r.table == nil {
		r.table = r.duties()
	}
	var errs []error
	begun := time.Now()
	r.look(ctx)
	for i := range r.table {
		d := &r.table[i]
		if !d.due() || d.every > 0 && time.Since(begun) > sweepUntil {
			continue
		}
		if d.needed != nil && r.pending != nil && !d.needed(r.pending) {
			continue
		}
		n, err := d.run(ctx)
		if d.needed != nil || n > 0 || err != nil {
			r.pending = nil // there may be something for the others now
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// lookBudgetOfRound is for the look at what there is to do.
const lookBudgetOfRound = time.Second

// look finds out with one statement which duties have something to do. When it fails
// all are done, each with its own time and its own errors.
func (r *Reconciler) look(ctx context.Context) {
	r.pending = nil
	if r.away {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookBudgetOfRound)
	defer cancel()
	p, err := r.Store.Reconciler.Pending(ctx, r.walk.Back())
	if err != nil {
		r.Log.Debug("look for what there is to do", "err", err)
		return
	}
	r.pending = &p
}

// recover looks at all messages again when Postgres was away.
func (r *Reconciler) recover(ctx context.Context) (int, error) {
	if !r.away {
		return 0, nil
	}
	if _, err := r.Store.Queues.RecheckAll(ctx); err != nil {
		return 0, err
	}
	r.walked = time.Time{}
	if err := r.Store.Deliveries.RecheckAll(ctx); err != nil {
		return 0, err
	}
	r.away, r.calm = false, time.Now().Add(recovery)
	return 0, nil
}

func (r *Reconciler) expireLeases(ctx context.Context) (int, error) {
	if r.away {
		return 0, nil
	}
	lost, err := r.endLeases(ctx)
	if lost > 0 {
		r.Log.Warn("runs of dead worker processes are lost", "runs", lost)
		r.soon(foldDuty)
	}
	return int(lost), err
}

// soon makes a slow duty due.
func (r *Reconciler) soon(name string) {
	for i := range r.table {
		if r.table[i].name == name {
			r.table[i].last = time.Time{}
		}
	}
}

func (r *Reconciler) expireDeadlines(ctx context.Context) (int, error) {
	n, err := r.Store.Units.ExpireDeadlines(ctx)
	if n > 0 {
		r.Log.Warn("units are overdue", "units", n)
	}
	return int(n), err
}

func (r *Reconciler) endWaits(ctx context.Context) (int, error) {
	n, err := r.Store.ProviderBatches.UnpackLate(ctx)
	if n > 0 {
		r.Log.Info("units of batch mode run live: their end is near", "units", n)
	}
	return int(n), err
}

func (r *Reconciler) expireDeliveries(ctx context.Context) (int, error) {
	n, err := r.Store.Deliveries.ExpireLeases(ctx)
	if n > 0 {
		r.Log.Warn("deliveries are taken from worker processes that are late or dead", "deliveries", n)
	}
	return int(n), err
}

func (r *Reconciler) foldLost(ctx context.Context) (int, error) {
	n, err := r.Store.Transcripts.FoldLost(ctx, foldAtATime)
	if n == foldAtATime {
		n = pieceRows // there may be more
	}
	return n, err
}

// withRedis leaves a duty out while Redis is away: worker processes claim straight
// from Postgres then.
func (r *Reconciler) withRedis(do func(context.Context) error) func(context.Context) (int, error) {
	return once(func(ctx context.Context) error {
		if !r.Queue.Up() {
			return nil
		}
		return do(ctx)
	})
}

// tally counts what is over, so that the overview need not. Much that was left
// is for the next sweep: messages come first.
func (r *Reconciler) tally(ctx context.Context) error {
	for begun := time.Now(); time.Since(begun) < tallyBudget; {
		if more, err := r.Store.Overview.Tally(ctx, work.DefaultTenant); err != nil || !more {
			return err
		}
	}
	return nil
}

// checkEpoch finds out whether Redis lost its memory, or the end of it: it then
// lacks the epoch that Postgres knows, or has that of another server, which has
// died and was replaced, or started again. Every queued unit is to be checked
// before the epoch is set, so that a death in between only makes the next round
// do it again.
func (r *Reconciler) checkEpoch(ctx context.Context) error {
	var epoch string
	if r.pending != nil {
		epoch = r.pending.RedisEpoch
	}
	if epoch == "" {
		var err error
		if epoch, err = r.Store.Queues.Epoch(ctx, uuid.NewString()); err != nil {
			return err
		}
	}
	missing, err := r.Queue.MissingEpochs(ctx, epoch)
	if err != nil || len(missing) == 0 {
		return err
	}
	r.pending = nil
	rechecked, err := r.Store.Queues.RecheckAll(ctx)
	if err != nil {
		return err
	}
	r.walked = time.Time{}
	if err := r.Store.Deliveries.RecheckAll(ctx); err != nil {
		return err
	}
	if err := r.Queue.SetEpochs(ctx, missing); err != nil {
		return err
	}
	if rechecked > 0 {
		r.Log.Warn("redis was restarted, replaced or emptied: looking for the messages of all queued units", "units", rechecked)
	}
	return nil
}

// walkEvery is how often every waiting unit is looked at, beside those that are to be
// checked: Redis may lose a single message and say nothing.
const walkEvery = time.Minute

func (r *Reconciler) walkDue() bool { return time.Since(r.walked) >= walkEvery }

// enqueueLost looks at every queued unit that is to be checked and enqueues again
// where there is no message. It goes over the units that are due in the order in which
// they became so, and once a minute from the first on.
func (r *Reconciler) enqueueLost(ctx context.Context) error {
	if r.walkDue() {
		r.walk, r.walked = store.CheckCursor{}, time.Now()
	}
	r.walk = r.walk.Back()
	for deadline := time.Now().Add(roundLimit); time.Now().Before(deadline); {
		due, walk, err := r.Store.Queues.Unchecked(ctx, r.walk, atOnce)
		if err != nil || len(due) == 0 {
			return err
		}
		if err := r.enqueueMissing(ctx, due); err != nil {
			return err
		}
		r.walk = walk
		if len(due) < atOnce {
			return nil
		}
	}
	return nil
}

func (r *Reconciler) enqueueMissing(ctx context.Context, due []store.Message) error {
	pending, err := r.Queue.Pending(ctx, due)
	if err != nil {
		return err
	}
	var missing []uuid.UUID
	for i, d := range due {
		if !pending[i] {
			missing = append(missing, d.UnitID)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	messages, err := r.Store.Queues.Redispatch(ctx, missing)
	if err != nil {
		return err
	}
	if err := r.Queue.EnqueueOrFail(ctx, messages); err != nil {
		return errors.Join(err, r.Store.Queues.Recheck(ctx, missing))
	}
	return nil
}
