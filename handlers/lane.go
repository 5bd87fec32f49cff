package handlers

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// lane is the way to one backend in this worker process: whether a unit may
// begin on it just now, and why not. What one backend meets shuts its own lane
// and no other. A worker process has one credential for each backend, so the
// lane is that credential's too.
//
// A backend that cannot run here shuts it. So do refused credentials and an
// empty account; then every probe that finds the backend in place lets one
// unit try, and the first that the model answers opens the lane. A rate limit
// shuts the model that met it and no other, unless the provider says that it
// holds for the account.
type lane struct {
	backend backend.Backend

	mu      sync.Mutex
	looked  bool   // somebody has looked whether it is there
	missing string // why it cannot run here; empty: it can
	version string
	paused  *work.Failure // refused for all units, nil: not so
	since   time.Time     // when it was paused
	trial   bool          // while paused: one unit may try
	resumed time.Time     // when an operator resumed it, on Postgres's clock
	mended  time.Time     // when that was heard here: refusals of runs that began before are old news
	doubt   bool          // a look is due: it was not there, or a run failed
	good    time.Time     // when the newest run began that the model answered

	account limiter             // of every model of the credential
	models  map[string]*limiter // of models that have met a limit, by name
	recent  []begin             // in the last window
}

// begin is a unit that began.
type begin struct {
	at    time.Time
	model string
}

const (
	never = time.Duration(math.MaxInt64)
	// maxModels bounds the limiters of a lane: callers choose the names of
	// models. The models beyond it that meet a limit share one more.
	maxModels   = 64
	otherModels = "(other models)"
)

// wait tells how long until a unit of any model may begin.
func (l *lane) wait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing != "" || l.paused != nil && !l.trial {
		return never
	}
	return l.account.wait(time.Now())
}

// plain tells whether nothing holds a unit of the backend back.
func (l *lane) plain() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.missing == "" && l.paused == nil && len(l.models) == 0 && l.account.idle(time.Now())
}

// took notes that a unit of the backend was taken from the queue.
func (l *lane) took() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trial = false
	l.account.took(time.Now())
}

// limited tells whether any model has met a limit that still counts.
func (l *lane) limited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.models) > 0
}

// admit gives a unit of a model its place; see limiter.admit.
func (l *lane) admit(model string) (at time.Time, admitted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if of := l.limiterOf(model); of != nil {
		return of.admit(now)
	}
	return now, true
}

// began notes that a run of a model began.
func (l *lane) began(model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.forget(now)
	l.recent = append(l.recent, begin{now, model})
}

func (l *lane) forget(now time.Time) {
	old := 0
	for old < len(l.recent) && now.Sub(l.recent[old].at) > window {
		old++
	}
	l.recent = l.recent[old:]
}

// limiterOf is the limiter that holds for a model, nil when none does.
func (l *lane) limiterOf(model string) *limiter {
	if of := l.models[model]; of != nil {
		return of
	}
	return l.models[otherModels]
}

// limit is the limiter of a model that has met a limit. When there are too many
// the oldest that is open makes room.
func (l *lane) limit(model string, now time.Time) *limiter {
	if of := l.models[model]; of != nil {
		return of
	}
	if len(l.models) >= maxModels {
		oldest := ""
		for name, of := range l.models {
			if !of.isShut(now) && (oldest == "" || of.reopened.Before(l.models[oldest].reopened)) {
				oldest = name
			}
		}
		if oldest == "" {
			model = otherModels
		}
		delete(l.models, oldest)
	}
	if l.models == nil {
		l.models = map[string]*limiter{}
	}
	if l.models[model] == nil {
		l.models[model] = &limiter{}
	}
	return l.models[model]
}

// ended takes in how a run of a model ended that began at the given time, and
// tells what that has changed.
func (l *lane) ended(model string, began time.Time, answered bool, f *work.Failure) (c change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case f != nil && f.Class.Follow() == work.FollowPause && began.Before(l.mended):
	case f != nil && f.Class.Follow() == work.FollowPause:
		c.paused = l.paused == nil
		if c.paused {
			l.since = now
		}
		l.paused, l.trial, l.doubt = f, false, true
	case f != nil && f.Class == work.ClassRateLimit:
		c.limited = l.shut(model, began, now, f)
	case answered:
		c.opened = l.paused != nil
		l.paused = nil
		l.answered(model, now)
		if began.After(l.good) {
			l.good = began
		}
	case f != nil && f.Class == work.ClassInfra:
		l.doubt = true
	}
	return c
}

// change is what the end of a run has changed in its lane.
type change struct {
	paused  bool // nothing begins any more
	opened  bool // units begin again
	limited bool // a model, or the account, has met a rate limit
}

// resume takes in that an operator resumed the backend at the given time, and
// tells whether that opened a lane which refused credentials had paused.
func (l *lane) resume(at time.Time) (opened bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !at.After(l.resumed) {
		return false
	}
	l.resumed, l.mended = at, time.Now()
	opened = l.paused != nil
	l.paused, l.trial = nil, false
	return opened
}

// shut takes in a rate limit, and tells whether its limiter was open until then.
func (l *lane) shut(model string, began, now time.Time, f *work.Failure) (first bool) {
	l.forget(now)
	if f.WholeAccount {
		return l.account.shut(began, now, f, len(l.recent))
	}
	recent := 0
	for _, b := range l.recent {
		if b.model == model {
			recent++
		}
	}
	return l.limit(model, now).shut(began, now, f, recent)
}

// answered takes in that a model answered. A limiter that holds nothing back any
// more is forgotten.
func (l *lane) answered(model string, now time.Time) {
	l.account.strikes = 0
	if of := l.limiterOf(model); of != nil {
		of.strikes = 0
	}
	for name, of := range l.models {
		if of.idle(now) {
			delete(l.models, name)
		}
	}
}

// probed takes in what a look at the backend came to, and tells whether the
// lane is another now. One look lets one unit try. A backend that was there is
// given up at the second look that does not find it: a busy machine may have
// been too slow for the first.
func (l *lane) probed(missing, version string) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if missing != "" && l.missing == "" && l.looked && !l.doubt {
		l.doubt = true
		return false
	}
	changed = l.missing != missing || l.version != version
	l.missing, l.version, l.looked = missing, version, true
	l.trial = l.paused != nil && missing == ""
	l.doubt = missing != "" || l.paused != nil
	return changed || l.trial
}

// doubtful tells whether the next look should come soon.
func (l *lane) doubtful() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.doubt
}

// answeredSince tells whether the model has answered a run that began after t.
func (l *lane) answeredSince(t time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.good.After(t)
}

// offer is what others may know of the lane.
func (l *lane) offer() work.Offer {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	o := work.Offer{
		Name: l.backend.Name(), Available: l.missing == "", Detail: l.missing, Version: l.version,
		Capabilities: backend.Capabilities(l.backend.Name()),
	}
	switch {
	case l.paused != nil:
		o.Paused = &work.Pause{Class: l.paused.Class, Message: l.paused.Message, Since: l.since.UTC()}
	case l.account.isShut(now):
		until := l.account.until.UTC()
		o.Paused = &work.Pause{Class: work.ClassRateLimit, Message: l.account.limit.Message, Until: &until}
	}
	for _, model := range slices.Sorted(maps.Keys(l.models)) {
		if of := l.models[model]; !of.idle(now) {
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
