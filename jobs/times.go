package jobs

import (
	"cmp"
	"context"
	"time"

	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

func checkTimes(_ context.Context, b *UnitBody, n *store.NewUnit) error {
	s := &n.Spec
	if b.CacheTTL != nil {
		if b.Cache != nil {
			return work.Invalidf("#/cache_ttl", "give either cache or cache_ttl, not both")
		}
		b.Cache, b.CacheTTL = b.CacheTTL, nil
	}
	s.Timeout, s.IdleTimeout = work.DefaultTimeout, work.DefaultIdle
	for _, t := range []struct {
		pointer string
		given   *strictjson.Duration
		into    *work.Seconds
		least   work.Seconds
		most    work.Seconds
	}{
		{"#/timeout", b.Timeout, &s.Timeout, 0.001, work.MaxTimeout},
		{"#/idle_timeout", b.IdleTimeout, &s.IdleTimeout, 0.001, work.MaxTimeout},
		{"#/startup_timeout", b.StartupTimeout, &s.StartupTimeout, 0.001, work.MaxTimeout},
		{"#/cache", b.Cache, &s.CacheTTL, 1, work.MaxCacheTTL},
		{"#/delay", b.Delay, &n.Delay, 0, 366 * 24 * 3600},
	} {
		if t.given == nil {
			continue
		}
		var v work.Seconds
		if err := v.UnmarshalJSON(*t.given); err != nil {
			return work.Invalidf(t.pointer, "%.200v", err)
		}
		if !(v >= t.least && v <= t.most) { // NaN is neither
			return work.Invalidf(t.pointer, "must lie between %v and %v seconds", float64(t.least), float64(t.most))
		}
		*t.into = v
	}
	if b.NotBefore != nil && b.Delay != nil {
		return work.Invalidf("#/delay", "give either delay or not_before, not both")
	}
	return cmp.Or(
		keepable("#/not_before", &s.NotBefore), keepable("#/deadline", &s.Deadline), keepable("#/expires_at", &s.ExpiresAt),
		checkEnd("#/deadline", b.Deadline, b, n), checkEnd("#/expires_at", b.ExpiresAt, b, n),
	)
}

// keepable makes a time what Postgres will have of it. What that would round to
// the year 10000 could be written and never be read again.
func keepable(pointer string, at **time.Time) error {
	if *at == nil {
		return nil
	}
	kept := (*at).UTC().Truncate(time.Microsecond)
	if kept.Year() < 1 || kept.Year() > 9999 {
		return work.Invalidf(pointer, "must lie between the years 1 and 9999, in UTC")
	}
	*at = &kept
	return nil
}

// checkEnd refuses an end that leaves the unit no time to start.
func checkEnd(pointer string, end *time.Time, b *UnitBody, n *store.NewUnit) error {
	switch {
	case end == nil:
		return nil
	case !end.After(time.Now()):
		return work.Invalidf(pointer, "lies in the past")
	case b.NotBefore != nil && !end.After(*b.NotBefore):
		return work.Invalidf(pointer, "lies before not_before")
	case !end.After(time.Now().Add(n.Delay.Duration())):
		return work.Invalidf(pointer, "lies before the delay is over")
	}
	return nil
}
