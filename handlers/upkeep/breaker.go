package upkeep

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// Breaker is the circuit breaker of one backend in this worker process: whether a
// unit may begin on it just now, and why not. What one backend meets stops its own
// units and no others. A worker process has one credential for each backend, so the
// breaker is that credential's too.
//
// A backend that cannot run here opens it. So do refused credentials and an
// empty account; then every probe that finds the backend in place lets one
// unit try (half-open), and the first that the model answers closes it again. A rate
// limit stops the model that met it and no other, unless the provider says that it
// holds for the account.
type Breaker struct {
	Backend backend.Backend

	mu          sync.Mutex
	probed      bool   // somebody has looked whether it is there
	missing     string // why it cannot run here; empty: it can
	version     string
	paused      *work.Failure // refused for all units, nil: not so
	since       time.Time     // when it was paused
	halfOpen    bool          // while paused: one unit may try
	resumed     time.Time     // when an operator resumed it, on Postgres's clock
	resumedHere time.Time     // when this process learned of that: refusals of runs that began before do not count
	recheck     bool          // a probe is due: it was not there, or a run failed
	answeredAt  time.Time     // when the newest run began that the model answered

	account limiter             // of every model of the credential
	models  map[string]*limiter // of models that have met a limit, by name
	recent  []begin             // in the last window
}

// NewBreaker is the breaker of a backend that was not probed yet.
func NewBreaker(b backend.Backend) *Breaker { return &Breaker{Backend: b, missing: notProbed} }

// begin is a unit that began.
type begin struct {
	at    time.Time
	model string
}

const (
	Never = time.Duration(math.MaxInt64)
	// maxModels bounds the limiters of a breaker: callers choose the names of
	// models. The models beyond it that meet a limit share one more.
	maxModels   = 64
	otherModels = "(other models)"
)

// Wait tells how long until a unit of any model may begin.
func (b *Breaker) Wait() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.missing != "" || b.paused != nil && !b.halfOpen {
		return Never
	}
	return b.account.wait(time.Now())
}

// Clear tells whether nothing holds a unit of the backend back.
func (b *Breaker) Clear() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.missing == "" && b.paused == nil && len(b.models) == 0 && b.account.idle(time.Now())
}

// Took notes that a unit of the backend was taken from the queue.
func (b *Breaker) Took() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.halfOpen = false
	b.account.took(time.Now())
}

// Limited tells whether any model has met a limit that still counts.
func (b *Breaker) Limited() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.models) > 0
}

// Admit gives a unit of a model its place; see limiter.admit.
func (b *Breaker) Admit(model string) (at time.Time, admitted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if of := b.limiterOf(model); of != nil {
		return of.admit(now)
	}
	return now, true
}

// Began notes that a run of a model began.
func (b *Breaker) Began(model string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.forget(now)
	b.recent = append(b.recent, begin{now, model})
}

func (b *Breaker) forget(now time.Time) {
	old := 0
	for old < len(b.recent) && now.Sub(b.recent[old].at) > window {
		old++
	}
	b.recent = b.recent[old:]
}

// limiterOf is the limiter that holds for a model, nil when none does.
func (b *Breaker) limiterOf(model string) *limiter {
	if of := b.models[model]; of != nil {
		return of
	}
	return b.models[otherModels]
}

// limit is the limiter of a model that has met a limit. When there are too many
// the oldest that is open makes room.
func (b *Breaker) limit(model string, now time.Time) *limiter {
	if of := b.models[model]; of != nil {
		return of
	}
	if len(b.models) >= maxModels {
		oldest := ""
		for name, of := range b.models {
			if !of.isShut(now) && (oldest == "" || of.reopened.Before(b.models[oldest].reopened)) {
				oldest = name
			}
		}
		if oldest == "" {
			model = otherModels
		}
		delete(b.models, oldest)
	}
	if b.models == nil {
		b.models = map[string]*limiter{}
	}
	if b.models[model] == nil {
		b.models[model] = &limiter{}
	}
	return b.models[model]
}

// Ended takes in how a run of a model ended that began at the given time, and
// tells what that has changed.
func (b *Breaker) Ended(model string, began time.Time, answered bool, f *work.Failure) (c Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch {
	case f != nil && f.Class.Follow() == work.FollowPause && began.Before(b.resumedHere):
	case f != nil && f.Class.Follow() == work.FollowPause:
		c.Paused = b.paused == nil
		if c.Paused {
			b.since = now
		}
		b.paused, b.halfOpen, b.recheck = f, false, true
	case f != nil && f.Class == work.ClassRateLimit:
		c.Limited = b.shut(model, began, now, f)
	case answered:
		c.Resumed = b.paused != nil
		b.paused = nil
		b.answered(model, now)
		if began.After(b.answeredAt) {
			b.answeredAt = began
		}
	case f != nil && f.Class == work.ClassInfra:
		b.recheck = true
	}
	return c
}

// Change is what the end of a run has changed in the breaker.
type Change struct {
	Paused  bool // nothing begins any more
	Resumed bool // units begin again
	Limited bool // a model, or the account, has met a rate limit
}

// resume takes in that an operator resumed the backend at the given time, and
// tells whether units begin again that refused credentials had stopped.
func (b *Breaker) resume(at time.Time) (again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !at.After(b.resumed) {
		return false
	}
	b.resumed, b.resumedHere = at, time.Now()
	again = b.paused != nil
	b.paused, b.halfOpen = nil, false
	return again
}

// shut takes in a rate limit, and tells whether its limiter was open until then.
func (b *Breaker) shut(model string, began, now time.Time, f *work.Failure) (first bool) {
	b.forget(now)
	if f.WholeAccount {
		return b.account.shut(began, now, f, len(b.recent))
	}
	recent := 0
	for _, b := range b.recent {
		if b.model == model {
			recent++
		}
	}
	return b.limit(model, now).shut(began, now, f, recent)
}

// answered takes in that a model answered. A limiter that holds nothing back any
// more is forgotten.
func (b *Breaker) answered(model string, now time.Time) {
	b.account.strikes = 0
	if of := b.limiterOf(model); of != nil {
		of.strikes = 0
	}
	for name, of := range b.models {
		if of.idle(now) {
			delete(b.models, name)
		}
	}
}

// Probed takes in what a probe of the backend found, and tells whether that has
// changed something. One probe lets one unit try. A backend that was there is
// given up at the second probe that does not find it: a busy machine may have
// been too slow for the first.
func (b *Breaker) Probed(missing, version string) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if missing != "" && b.missing == "" && b.probed && !b.recheck {
		b.recheck = true
		return false
	}
	changed = b.missing != missing || b.version != version
	b.missing, b.version, b.probed = missing, version, true
	b.halfOpen = b.paused != nil && missing == ""
	b.recheck = missing != "" || b.paused != nil
	return changed || b.halfOpen
}

// needsProbe tells whether the next probe should come soon.
func (b *Breaker) needsProbe() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.recheck
}

// AnsweredSince tells whether the model has answered a run that began after t.
func (b *Breaker) AnsweredSince(t time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answeredAt.After(t)
}

// Offer is what others may know of the backend.
func (b *Breaker) Offer() work.Offer {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	o := work.Offer{
		Name: b.Backend.Name(), Available: b.missing == "", Detail: b.missing, Version: b.version,
		Capabilities: backend.Capabilities(b.Backend.Name()),
	}
	switch {
	case b.paused != nil:
		o.Paused = &work.Pause{Class: b.paused.Class, Message: b.paused.Message, Since: b.since.UTC()}
	case b.account.isShut(now):
		until := b.account.until.UTC()
		o.Paused = &work.Pause{Class: work.ClassRateLimit, Message: b.account.limit.Message, Until: &until}
	}
	for _, model := range slices.Sorted(maps.Keys(b.models)) {
		if of := b.models[model]; !of.idle(now) {
			o.Limits = append(o.Limits, limitOf(model, of, now))
		}
	}
	return o
}

func limitOf(model string, of *limiter, now time.Time) work.ModelLimit {
	limit := work.ModelLimit{Model: model}
	limit.Message, _ = work.Cut(of.limit.Message, 500)
	if of.isShut(now) {
		until := of.until.UTC()
		limit.Until = &until
	} else {
		limit.PerSecond = of.pace
	}
	return limit
}
