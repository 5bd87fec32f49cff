package view

import (
	"testing"

	"piecework/store"
)

func TestExpect(t *testing.T) {
	t.Parallel()
	e := expect(100, store.Spread{N: 10, Mean: 0.5, Variance: 0.01})
	if e.Mean != 50 || e.Low >= e.Mean || e.High-e.Mean != e.Mean-e.Low || e.High < 55 || e.High > 60 {
		t.Errorf("%+v", e)
	}
	if few, many := expect(100, store.Spread{N: 2, Mean: 0.5, Variance: 0.01}),
		expect(100, store.Spread{N: 1000, Mean: 0.5, Variance: 0.01}); few.High < e.High || many.High > e.High {
		t.Errorf("a larger trial tells less: %+v %+v %+v", few, e, many)
	}
	if none := expect(100, store.Spread{}); none != (Expectation{}) {
		t.Errorf("%+v", none)
	}
}
