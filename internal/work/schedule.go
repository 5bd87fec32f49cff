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

// Schedule makes a unit at every time that its cron expression names.
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
	times, zone, err := s.times()
	if err != nil {
		return time.Time{}, err
	}
	next := times.Next(t.In(zone))
	if next.IsZero() {
		return next, Invalidf("#/cron", "%q names no time in the next five years", s.Cron)
	}
	return next.UTC(), nil
}

func (s *Schedule) times() (cron.Schedule, *time.Location, error) {
	zone, err := time.LoadLocation(s.Timezone)
	if err != nil {
		return nil, nil, Invalidf("#/timezone", "there is no time zone %q: give an IANA name such as Europe/Berlin", s.Timezone)
	}
	if strings.Contains(s.Cron, "TZ=") { // the library's own way to name a zone
		return nil, nil, Invalidf("#/cron", "give the time zone in timezone")
	}
	times, err := cron.ParseStandard(s.Cron)
	if err != nil {
		return nil, nil, Invalidf("#/cron", "%v; write five fields (minute hour day month weekday) such as \"0 6 * * 1-5\", or @hourly, @daily, @every 90s", err)
	}
	return times, zone, nil
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
