package opencode

import (
	"testing"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// A cost that cannot be true is not added to others, and reaches whoever keeps
// it, who leaves it out and says so.
func TestAgentCostThatCannotBeTrue(t *testing.T) {
	for _, cost := range []float64{-0.0000225, 1e30} {
		told := &parser{}
		told.finish(part{Cost: 0.5})
		told.finish(part{Cost: cost})
		if got := told.spent(); got == nil || work.PlausibleCost(*got) {
			t.Errorf("%v: opencode: %v", cost, backend.USD(got))
		}
	}
}
