package backend

import (
	"slices"
	"testing"

	"piecework/internal/work"
)

// Every backend says what it can do, in words there are, in one order.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	for name := range profiles {
		if !slices.Contains(Names, name) {
			t.Errorf("%s is no backend", name)
		}
		last := -1
		for _, c := range Capabilities(name) {
			at := slices.Index(work.Capabilities, c)
			if at <= last {
				t.Errorf("%s: %s is unknown or out of order", name, c)
			}
			last = at
		}
		if Can(name, work.CanMaxCost) && !Can(name, work.CanCost) {
			t.Errorf("%s keeps max_cost_usd and does not know its cost", name)
		}
	}
	if Can("mock", work.CanTools) || !Can("claude", work.CanTools) || Can("nobody", work.CanFiles) {
		t.Error("Can does not read the table")
	}
}
