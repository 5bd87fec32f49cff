package store

import (
	"math"
	"testing"
)

// Two spreads together are that of all their values.
func TestSpreads(t *testing.T) {
	t.Parallel()
	of := func(values ...float64) (s Spread) {
		for _, v := range values {
			s.Mean += v / float64(len(values))
		}
		for _, v := range values {
			s.Variance += (v - s.Mean) * (v - s.Mean) / math.Max(float64(len(values)-1), 1)
		}
		s.N = len(values)
		return s
	}
	values := []float64{3, 1, 4, 1, 5, 9}
	for cut := range len(values) + 1 {
		got, want := of(values[:cut]...).with(of(values[cut:]...)), of(values...)
		if got.N != want.N || math.Abs(got.Mean-want.Mean) > 1e-9 || math.Abs(got.Variance-want.Variance) > 1e-9 {
			t.Errorf("cut at %d: %+v, not %+v", cut, got, want)
		}
	}
	if got := of(7).with(Spread{}); got != of(7) {
		t.Errorf("%+v", got)
	}
	if got := (Spread{}).with(Spread{}); got != (Spread{}) {
		t.Errorf("%+v", got)
	}
}
