package upkeep

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/internal/work"
)

// Runs are the runs of this worker process that go on now.
type Runs struct {
	drain *Drain

	mu       sync.Mutex
	running  map[uuid.UUID]*Run // by run
	claiming map[uuid.UUID]bool // runs whose claim is not answered yet
	idle     *sync.Cond         // running has become empty
}

// Run is one of them.
type Run struct {
	Ctx   context.Context
	Lease *process.Lease // that the run was claimed under

	unit    uuid.UUID
	stop    context.CancelCauseFunc
	watched atomic.Int64 // until then, by process.Uptime, somebody watches its unit
}

// NewRuns returns no runs. One that begins after the drain has begun is stopped at once.
func NewRuns(drain *Drain) *Runs {
	r := &Runs{drain: drain, running: map[uuid.UUID]*Run{}, claiming: map[uuid.UUID]bool{}}
	r.idle = sync.NewCond(&r.mu)
	return r
}

// Claiming notes that a run is being asked for, and returns the function that
// takes the note back.
func (r *Runs) Claiming(run uuid.UUID) (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claiming[run] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.claiming, run)
	}
}

// has tells whether this process runs a run, or asks for it.
func (r *Runs) has(run uuid.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[run] != nil || r.claiming[run]
}

// Begin enters a run among the running.
func (r *Runs) Begin(run, unit uuid.UUID, lease *process.Lease) {
	ctx, stop := context.WithCancelCause(context.Background())
	r.mu.Lock()
	r.running[run] = &Run{unit: unit, Ctx: ctx, stop: stop, Lease: lease}
	r.mu.Unlock()
	if r.drain.Begun() {
		// Claimed in the very moment of shutdown: the drain may have looked
		// already.
		stop(work.ErrShutdown)
	}
}

// Get is a run that goes on.
func (r *Runs) Get(run uuid.UUID) *Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[run]
}

// End takes a run out of the running.
func (r *Runs) End(run uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[run].stop(nil)
	delete(r.running, run)
	if len(r.running) == 0 {
		r.idle.Broadcast()
	}
}

// Wait returns when nothing runs.
func (r *Runs) Wait() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.running) > 0 {
		r.idle.Wait()
	}
}

// Count is how many run.
func (r *Runs) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}

func (r *Runs) ids() []uuid.UUID {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]uuid.UUID, 0, len(r.running))
	for id := range r.running {
		ids = append(ids, id)
	}
	return ids
}

// OfUnit tells whether a run of a unit goes on.
func (r *Runs) OfUnit(unit uuid.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.running {
		if run.unit == unit {
			return true
		}
	}
	return false
}

// Stop stops a run.
func (r *Runs) Stop(run uuid.UUID, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if running := r.running[run]; running != nil {
		running.stop(why)
	}
}

// StopAll stops all runs.
func (r *Runs) StopAll(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.running {
		run.stop(why)
	}
}

// watchTime is how long a notice that somebody watches counts.
const watchTime = 5 * time.Second

// Watch notes which of the runs here somebody watches.
func (r *Runs) Watch(units []uuid.UUID) {
	until := int64(process.Uptime() + watchTime)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.running {
		if slices.Contains(units, run.unit) {
			run.watched.Store(until)
		}
	}
}

// Watched tells whether somebody watches the run.
func (r *Run) Watched() bool { return int64(process.Uptime()) < r.watched.Load() }
