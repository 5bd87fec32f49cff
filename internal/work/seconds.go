package work

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Seconds is a length of time. In JSON it is a number of seconds, or a string
// such as "90s" or "1h30m"; it is always written as a number.
type Seconds float64

// Duration converts s to a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// ParseSeconds reads "90", "90s" or "1h30m".
func ParseSeconds(text string) (Seconds, error) {
	if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
		return Seconds(n), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is no length of time: give seconds (90) or a Go duration (\"1h30m\")", text)
	}
	return Seconds(d.Seconds()), nil
}

// UnmarshalJSON reads a number of seconds or a duration string.
func (s *Seconds) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data)
	}
	parsed, err := ParseSeconds(text)
	*s = parsed
	return err
}

// When writes a moment for people, in UTC.
func When(t time.Time) string { return t.UTC().Format("2 Jan 2006 15:04:05 MST") }
