package jobs

import (
	"context"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/store"
)

const (
	// longestLook is the most that one look at the leases counts for: nobody could
	// renew his while Postgres was away or this process was frozen.
	longestLook = 5 * time.Second
	// clockStep is how far Postgres's clock may go wrong between two looks before
	// somebody has set it.
	clockStep = 5 * time.Second
)

// leaseWatch is what one process has seen of the leases of worker processes. A
// lease has run out when nobody has renewed it for its length, on this
// machine's clock, while somebody looked: the clock of Postgres may be set at any
// time. Every process that may reconcile looks, so that whoever does knows.
type leaseWatch struct {
	seen   map[uuid.UUID]sighting
	looked time.Duration // process.Uptime of the last look; 0: none
	clock  time.Time     // of Postgres, then
}

type sighting struct {
	heartbeatAt time.Time
	idle        time.Duration // for how long we have seen it so
}

// look takes in how the leases stand at an Uptime, and by what Postgres's clock
// has been set since the last look. It returns the leases that have run out.
func (w *leaseWatch) look(leases []store.Lease, at time.Duration, clock time.Time) (over []store.Lease, set time.Duration) {
	passed := at - w.looked
	if w.looked == 0 {
		passed = 0
	} else if set = clock.Sub(w.clock) - passed; set.Abs() < clockStep {
		set = 0
	}
	w.looked, w.clock = at, clock
	seen := make(map[uuid.UUID]sighting, len(leases))
	for _, l := range leases {
		s := w.seen[l.Process]
		if s.heartbeatAt.Equal(l.BeatAt) {
			s.idle += min(passed, longestLook)
		} else {
			s = sighting{heartbeatAt: l.BeatAt}
		}
		seen[l.Process] = s
		if s.idle >= l.Length.Duration() {
			over = append(over, l)
		}
	}
	w.seen = seen
	return over, set
}

// watchLeases looks at the leases and returns those that have run out.
func (r *Reconciler) watchLeases(ctx context.Context) (over []store.Lease, set time.Duration, err error) {
	leases, clock, err := r.Store.Processes.Leases(ctx)
	if err != nil {
		return nil, 0, err
	}
	over, set = r.seen(leases, clock)
	return over, set, nil
}

// follow looks at the leases as watchLeases does, and tells whether nobody leads.
func (r *Reconciler) follow(ctx context.Context) (free bool, err error) {
	leases, clock, free, err := r.Store.Processes.LeasesAndLead(ctx)
	if err == nil {
		r.seen(leases, clock)
	}
	return free, err
}

func (r *Reconciler) seen(leases []store.Lease, clock time.Time) (over []store.Lease, set time.Duration) {
	over, set = r.leases.look(leases, process.Uptime(), clock)
	if set != 0 {
		r.Log.Warn("the clock of Postgres was set; leases are measured by our own", "by", set.Round(time.Second))
	}
	return over, set
}

// endLeases ends what has run out, and gives back what those worker processes
// have had.
func (r *Reconciler) endLeases(ctx context.Context) (lost int64, err error) {
	over, set, err := r.watchLeases(ctx)
	if err != nil {
		return 0, err
	}
	if set < 0 {
		mended, err := r.Store.Reconciler.ClockBack(ctx, -set)
		if err != nil {
			return 0, err
		}
		r.Log.Warn("what was to happen later is due as it was", "rows", mended)
	}
	if !time.Now().After(r.calm) {
		return 0, nil
	}
	var ended int64
	if len(over) > 0 {
		if ended, err = r.Store.Processes.EndLeases(ctx, over); err != nil {
			return 0, err
		}
		if ended > 0 {
			r.Log.Warn("worker processes sent no heartbeat for as long as their lease", "count", ended)
		}
	}
	if ended == 0 && r.pending != nil && !r.pending.Lost {
		return 0, nil
	}
	return r.Store.Runs.ExpireLeases(ctx)
}
