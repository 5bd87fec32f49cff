package model

import (
	"testing"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// A cost that a server tells and that cannot be true is treated the same.
func TestServerCostThatCannotBeTrue(t *testing.T) {
	for _, cost := range []float64{-0.0000225, 1e30} {
		unit := &unit{req: &backend.Request{}, cost: new(0.5)}
		unit.account(&Answer{answered: true, UsageFinal: true, Cost: &cost}, time.Now(), false)
		if got := unit.metadata().TotalCostUSD; got == nil || work.PlausibleCost(*got) {
			t.Errorf("%v: model API: %v", cost, backend.USD(got))
		}
	}
}
