package upkeep

import (
	"math"
	"time"

	"piecework/internal/work"
)

// limiter keeps the units of one model, or of one credential, under a rate
// limit that a provider has reported. It is shut until the limit resets; then
// units begin at half the rate that got through before, and faster step by
// step. The breaker that has it locks it.
type limiter struct {
	limit    *work.Failure // the rate limit that was met last
	until    time.Time     // no unit begins before
	reopened time.Time     // limits met by runs that began before do not count
	hits     int           // limits met since it was last open
	begun    int           // units that began in the second before the first of these, and since
	strikes  int           // limits of no known reset, one after another

	pace    float64 // units a second; 0: as many as come
	ceiling float64 // the pace at which the limit was met
	next    time.Time
	booked  time.Time // when the last of the units that were sent away comes again
}

const (
	// maxShut is how long a limiter keeps shut for one limit: another unit
	// tries now and then, for the limit may have been raised.
	maxShut = 5 * time.Minute
	// window is what the pace is taken from.
	window  = time.Second
	minPace = 1.0 / 30
	// A pace grows by this factor a second while it is below the ceiling, and,
	// when that has held for a while, beyond: the limit may have been raised.
	eager    = 1.10
	cautious = 1.01
	believed = time.Minute
	// nearby is how far ahead of its time a unit is given a place. Who would
	// have to wait longer is sent away.
	nearby = 2 * time.Second
	// forgotten is how long after its last unit a pace means nothing any more.
	forgotten = 10 * time.Minute
)

// wait tells how long until a unit may begin.
func (l *limiter) wait(now time.Time) time.Duration {
	if now.Before(l.until) {
		return l.until.Sub(now)
	}
	if l.hits > 0 {
		l.reopen(now)
	}
	return max(0, l.next.Sub(now))
}

// reopen ends a rate limit.
func (l *limiter) reopen(now time.Time) {
	l.ceiling = l.through()
	l.pace = max(l.ceiling/2, minPace)
	l.hits, l.begun, l.reopened, l.next = 0, 0, now, now
}

// through is how many units a second got through before the limit.
func (l *limiter) through() float64 {
	if l.pace > 0 {
		return l.pace
	}
	return max(1, float64(l.begun-l.hits)/window.Seconds())
}

// took notes that a unit begins at the given time.
func (l *limiter) took(at time.Time) {
	l.begun++
	if l.pace == 0 {
		return
	}
	since := max(0, at.Sub(l.next).Seconds()) + 1/l.pace
	if most := 0.9 * l.ceiling; l.pace < most {
		l.pace = min(most, l.pace*math.Pow(eager, min(since, 60)))
	} else if at.Sub(l.reopened) > believed {
		l.pace *= math.Pow(cautious, min(since, 60))
	}
	l.next = at.Add(time.Duration(float64(time.Second) / l.pace))
	if l.pace > 4*l.ceiling && l.pace > 1 {
		l.pace = 0
	}
}

// admit gives a unit its place: it may begin at the time returned, or, when it
// is not admitted, ask again then. Those that are sent away come again one
// after another, about as fast as they will be admitted.
func (l *limiter) admit(now time.Time) (at time.Time, admitted bool) {
	wait := l.wait(now)
	if at = now.Add(wait); wait <= nearby && !l.isShut(now) {
		l.took(at)
		return at, true
	}
	rate := max(l.ceiling, minPace)
	if l.hits > 0 {
		rate = l.through()
	}
	if l.booked.Before(at) {
		l.booked = at
	}
	if last := now.Add(maxShut); l.booked.Before(last) {
		at = l.booked
		l.booked = at.Add(time.Duration(float64(time.Second) / rate))
	} else {
		at = last
	}
	return at, false
}

// shut takes in a limit that was met by a run which began at the given time,
// and tells whether it was open until then. recent is how many units have begun
// in the last window.
func (l *limiter) shut(began, now time.Time, f *work.Failure, recent int) (first bool) {
	if began.Before(l.reopened) {
		return false // an answer to what the last limit was met with
	}
	if first = l.hits == 0; first {
		l.begun = recent
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
	return first
}

// isShut tells whether no unit begins.
func (l *limiter) isShut(now time.Time) bool { return now.Before(l.until) }

// idle tells whether it holds nothing back, or has had nothing to hold back for
// so long that it knows nothing of the limit any more.
func (l *limiter) idle(now time.Time) bool {
	if wait := l.wait(now); wait > 0 {
		return false
	}
	return l.pace == 0 || now.Sub(l.next) > forgotten
}
