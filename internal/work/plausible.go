package work

import (
	"math"
	"slices"
)

// What a figure of one run can be at most. Agents and providers tell what they
// like; what is beyond is a mistake of theirs.
const (
	MaxRunCostUSD    = 1e6
	maxRunCount      = 1_000_000     // turns, calls of tools
	maxRunTokens     = 1_000_000_000 // of one kind
	maxRunMS         = 366 * 24 * 3600 * 1000
	maxHTTPStatus    = 999
	maxSessionTotals = 100 * MaxRunCostUSD
)

// PlausibleCost tells whether one run, or a part of it, can have cost so many
// dollars.
func PlausibleCost(usd float64) bool { return usd >= 0 && usd <= MaxRunCostUSD } // NaN is neither

// Plausible tells whether one run can have used so many tokens.
func (u Usage) Plausible() bool {
	for _, n := range []int64{u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheCreationTokens} {
		if n < 0 || n > maxRunTokens {
			return false
		}
	}
	return true
}

// Doubts are the names of figures that cannot be true. Each method looks at one figure,
// returns what is to be kept of it, and notes the name when that is nothing.
type Doubts []string

// Cost keeps an amount of dollars, or nil.
func (d *Doubts) Cost(name string, usd *float64) *float64 {
	return d.amount(name, usd, MaxRunCostUSD)
}

// SessionTotal keeps what a session of many runs has cost, or nil.
func (d *Doubts) SessionTotal(name string, usd *float64) *float64 {
	return d.amount(name, usd, maxSessionTotals)
}

func (d *Doubts) amount(name string, usd *float64, most float64) *float64 {
	if usd == nil || *usd >= 0 && *usd <= most {
		return usd
	}
	d.note(name)
	return nil
}

// Turns keeps a count of turns or of calls, or 0.
func (d *Doubts) Turns(name string, n int) int { return int(d.number(name, int64(n), maxRunCount)) }

// Milliseconds keeps a length of time, or 0.
func (d *Doubts) Milliseconds(name string, ms int64) int64 { return d.number(name, ms, maxRunMS) }

// HTTPStatus keeps a status, or 0.
func (d *Doubts) HTTPStatus(name string, status int) int {
	return int(d.number(name, int64(status), maxHTTPStatus))
}

// Usage keeps tokens, or 0 of those that cannot be true.
func (d *Doubts) Usage(u Usage) Usage {
	return Usage{
		InputTokens: d.number("input_tokens", u.InputTokens, maxRunTokens), OutputTokens: d.number("output_tokens", u.OutputTokens, maxRunTokens),
		CacheReadTokens:     d.number("cache_read_tokens", u.CacheReadTokens, maxRunTokens),
		CacheCreationTokens: d.number("cache_creation_tokens", u.CacheCreationTokens, maxRunTokens),
	}
}

func (d *Doubts) number(name string, n, most int64) int64 {
	if n >= 0 && n <= most {
		return n
	}
	d.note(name)
	return 0
}

func (d *Doubts) note(name string) {
	if !slices.Contains(*d, name) {
		*d = append(*d, name)
	}
}

// plus adds counts and stays at the end of what an int64 holds.
func plus(a, b int64) int64 {
	switch sum := a + b; {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	default:
		return sum
	}
}
