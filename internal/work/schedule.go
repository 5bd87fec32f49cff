package work

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/robfig/cron/v3"
)

// CatchUp is what a schedule does about times that passed while nobody could
// make its units.
type CatchUp string

// The rules of catching up.
const (
	CatchUpSkip CatchUp = "skip" // makes no unit for them
	CatchUpOne  CatchUp = "one"  // makes one unit for the last of them
	CatchUpAll  CatchUp = "all"  // makes a unit for each, MaxCatchUp at a time
)

const (
	// MaxCatchUp is how many units a schedule makes in one round.
	MaxCatchUp = 100
	// late is how long a time may have passed and still be on time.
	late = time.Minute
)

// Schedule makes a unit at every time that its cron expression names. What
// names hours of the day means each once: when clocks are put forward over one
// of its times it is due as much later, and when they are put back only the
// first of two counts.
type Schedule struct {
	Tenant    string     `json:"-" db:"tenant"`
	Name      string     `json:"name" db:"name"`
	Cron      string     `json:"cron" db:"cron"`
	Timezone  string     `json:"timezone" db:"timezone"`
	CatchUp   CatchUp    `json:"catch_up" db:"catch_up"`
	Paused    bool       `json:"paused" db:"paused"`
	Title     string     `json:"title" db:"title"`
	Unit      Spec       `json:"unit" db:"-"`
	NextAt    time.Time  `json:"next_at" db:"next_at"`
	LastAt    *time.Time `json:"last_at" db:"last_at"`
	LastUnit  *uuid.UUID `json:"last_unit" db:"last_unit"`
	CreatedAt time.Time  `json:"created_at" db:"created_at"`
}

// After returns the first time after t that the schedule names, or an error
// that says what is wrong with its expression or its time zone.
func (s *Schedule) After(t time.Time) (time.Time, error) {
	if len(s.Cron) > maxCron {
		return time.Time{}, Invalidf("#/cron", "is longer than %d bytes", maxCron)
	}
	times, zone, err := s.times()
	if err != nil {
		return time.Time{}, err
	}
	if zone == time.Local { // each machine has another
		return time.Time{}, s.noZone()
	}
	if every, ok := strings.CutPrefix(s.Cron, "@every "); ok {
		if d, err := time.ParseDuration(every); err == nil && (d < time.Second || d%time.Second != 0) {
			return time.Time{}, Invalidf("#/cron", "%q: give whole seconds, at least one", s.Cron)
		}
	}
	next := times.Next(t.In(zone))
	if next.IsZero() {
		return next, Invalidf("#/cron", "%q names no time in the next five years", s.Cron)
	}
	return next.UTC(), nil
}

func (s *Schedule) noZone() error {
	return Invalidf("#/timezone", "there is no time zone %.100q: give an IANA name such as Europe/Berlin", s.Timezone)
}

func (s *Schedule) times() (cron.Schedule, *time.Location, error) {
	zone, err := time.LoadLocation(s.Timezone)
	if err != nil {
		return nil, nil, s.noZone()
	}
	if strings.Contains(s.Cron, "TZ=") { // the library's own way to name a zone
		return nil, nil, Invalidf("#/cron", "give the time zone in timezone")
	}
	times, err := cron.ParseStandard(s.Cron)
	if err != nil {
		return nil, nil, Invalidf("#/cron", "%v; write five fields (minute hour day month weekday) such as \"0 6 * * 1-5\", or @hourly, @daily, @every 90s", err)
	}
	if spec, ok := times.(*cron.SpecSchedule); ok && spec.Hour&everyHour != everyHour {
		return onceADay{spec}, zone, nil
	}
	return times, zone, nil
}

const (
	maxCron   = 1000
	everyHour = 1<<24 - 1
)

// onceADay are times in some hours of the day.
type onceADay struct{ *cron.SpecSchedule }

// Next is the first time after t.
func (o onceADay) Next(t time.Time) time.Time {
	next := o.SpecSchedule.Next(t)
	for !next.IsZero() && again(next) {
		next = o.SpecSchedule.Next(next)
	}
	// A change may lie before t, and the times that it left out after it.
	change, end := t.ZoneBounds()
	for ; next.IsZero() || change.Before(next); change, end = end.ZoneBounds() {
		if old, ahead := shift(change); ahead > 0 && t.Before(change.Add(ahead)) {
			from := change.Add(-time.Nanosecond)
			if from.Before(t) {
				from = t
			}
			// By the old clock, which who wrote the time had in mind.
			left := o.SpecSchedule.Next(from.In(time.FixedZone("", old)))
			if !left.IsZero() && left.Before(change.Add(ahead)) && (next.IsZero() || left.Before(next)) {
				return left.In(t.Location())
			}
		}
		if end.IsZero() || end.After(t.AddDate(5, 0, 0)) {
			break
		}
	}
	return next
}

// shift is the offset before a change of clocks, in seconds, and how far they
// are put forward; a zero change changes nothing.
func shift(change time.Time) (old int, ahead time.Duration) {
	if change.IsZero() {
		return 0, 0
	}
	_, old = change.Add(-time.Nanosecond).Zone()
	_, is := change.Zone()
	return old, time.Duration(is-old) * time.Second
}

// again tells whether the clock has shown t before, until it was put back.
func again(t time.Time) bool {
	change, _ := t.ZoneBounds()
	_, ahead := shift(change)
	return t.Before(change.Add(-ahead))
}

// Due returns the times up to now that units are to be made for, oldest first,
// and the first time that is left.
func (s *Schedule) Due(now time.Time) (due []time.Time, next time.Time, err error) {
	if s.NextAt.After(now) {
		return nil, s.NextAt, nil
	}
	cron, zone, err := s.times()
	if err != nil {
		return nil, s.NextAt, fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	after := func(t time.Time) time.Time { return cron.Next(t.In(zone)).UTC() }
	if s.CatchUp == CatchUpAll {
		for next = s.NextAt; !next.After(now) && !next.IsZero() && len(due) < MaxCatchUp; next = after(next) {
			due = append(due, next)
		}
		return due, next, nil
	}
	last := s.NextAt
	// Not from time to time since: that can be a year of seconds.
	for _, window := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 32 * 24 * time.Hour, math.MaxInt64} {
		from := now.Add(-window)
		if from.Before(s.NextAt) {
			from = s.NextAt.Add(-time.Nanosecond)
		}
		if next = after(from); !next.After(now) {
			break
		}
	}
	for ; !next.After(now) && !next.IsZero(); next = after(next) {
		last = next
	}
	if s.CatchUp == CatchUpSkip && now.Sub(last) > late {
		return nil, next, nil
	}
	return []time.Time{last}, next, nil
}
