package handlers

import (
	"math"
	"sync"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// lane is the way to one backend in this worker process: whether a unit may
// begin on it just now, and why not. What one backend meets shuts its own lane
// and no other.
//
// A backend that cannot run here shuts it. So do refused credentials and an
// empty account; then every probe that finds the backend in place lets one
// unit try, and the first that the model answers opens the lane. A rate limit
// shuts it until the reset; then units begin at half the pace that got through
// before, and faster step by step.
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

	limit    *work.Failure // the rate limit that was met last
	until    time.Time     // no unit begins before
	reopened time.Time     // limits met by runs that began before are old news
	begun    []time.Time   // in the last second
	hits     int           // limits met since the lane was last open
	strikes  int           // limits of no known reset, one after another

	pace    float64 // units a second; 0: as many as come
	ceiling float64 // the pace at which the limit was met
	next    time.Time
}

const (
	never = time.Duration(math.MaxInt64)
	// maxShut is how long a lane keeps shut for one limit: a limit may hold for
	// one model or account only, so another unit tries now and then.
	maxShut = 5 * time.Minute
	// window is what the pace is taken from.
	window  = time.Second
	minPace = 1.0 / 30
	// A pace grows by this factor a second while it is below the ceiling, and,
	// when that has held for a while, beyond: the limit may have been raised.
	eager    = 1.10
	cautious = 1.01
	believed = time.Minute
)

// wait tells how long until a unit may begin.
func (l *lane) wait() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case l.missing != "" || l.paused != nil && !l.trial:
		return never
	case now.Before(l.until):
		return l.until.Sub(now)
	}
	if l.hits > 0 {
		l.reopen(now)
	}
	return max(0, l.next.Sub(now))
}

// reopen ends a rate limit.
func (l *lane) reopen(now time.Time) {
	l.ceiling = l.pace
	if l.pace == 0 {
		l.ceiling = max(1, float64(len(l.begun)-l.hits)/window.Seconds())
	}
	l.pace = max(l.ceiling/2, minPace)
	l.hits, l.begun, l.reopened, l.next = 0, nil, now, now
}

// took notes that a unit begins.
func (l *lane) took() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.trial = false
	if l.hits == 0 { // what got through before a limit is known by now
		l.forget(now)
	}
	l.begun = append(l.begun, now)
	if l.pace == 0 {
		return
	}
	since := max(0, now.Sub(l.next).Seconds()) + 1/l.pace
	if most := 0.9 * l.ceiling; l.pace < most {
		l.pace = min(most, l.pace*math.Pow(eager, min(since, 60)))
	} else if now.Sub(l.reopened) > believed {
		l.pace *= math.Pow(cautious, min(since, 60))
	}
	l.next = now.Add(time.Duration(float64(time.Second) / l.pace))
	if l.pace > 4*l.ceiling && l.pace > 1 {
		l.pace = 0
	}
}

func (l *lane) forget(now time.Time) {
	old := 0
	for old < len(l.begun) && now.Sub(l.begun[old]) > window {
		old++
	}
	l.begun = l.begun[old:]
}

// ended takes in how a run ended that began at the given time, and tells
// whether that paused the lane or opened it again.
func (l *lane) ended(began time.Time, answered bool, f *work.Failure) (paused, opened bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case f != nil && f.Class.Follow() == work.FollowPause && began.Before(l.mended):
	case f != nil && f.Class.Follow() == work.FollowPause:
		paused = l.paused == nil
		if paused {
			l.since = now
		}
		l.paused, l.trial, l.doubt = f, false, true
	case f != nil && f.Class == work.ClassRateLimit:
		l.shut(began, now, f)
	case answered:
		opened = l.paused != nil
		l.paused, l.strikes = nil, 0
		if began.After(l.good) {
			l.good = began
		}
	case f != nil && f.Class == work.ClassInfra:
		l.doubt = true
	}
	return paused, opened
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

func (l *lane) shut(began, now time.Time, f *work.Failure) {
	if began.Before(l.reopened) {
		return // an answer to what the last limit was met with
	}
	if l.hits == 0 {
		l.forget(now)
		l.strikes++
	}
	l.hits++
	l.limit = f
	until := f.ResetAt
	if until.IsZero() {
		until = began.Add(5 * time.Second << min(l.strikes-1, 6))
	}
	if until.After(now.Add(maxShut)) {
		until = now.Add(maxShut)
	}
	if until.After(l.until) {
		l.until = until
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
	o := work.Offer{
		Name: l.backend.Name(), Available: l.missing == "", Detail: l.missing, Version: l.version,
		Capabilities: backend.Capabilities(l.backend.Name()),
	}
	switch {
	case l.paused != nil:
		o.Paused = &work.Pause{Class: l.paused.Class, Message: l.paused.Message, Since: l.since.UTC()}
	case time.Now().Before(l.until):
		until := l.until.UTC()
		o.Paused = &work.Pause{Class: l.limit.Class, Message: l.limit.Message, Until: &until}
	}
	return o
}
