package work

import (
	"encoding/json"
	"testing"
)

// Unknown is not nothing, and nothing is not unknown.
func TestCostIsTold(t *testing.T) {
	t.Parallel()
	some := 0.25
	for _, test := range []struct {
		name string
		cost Cost
		text string
		json string
	}{
		{"none", Cost{}, "$0.00", `{"cost_usd":0,"unpriced_runs":0}`},
		{"free runs", NewCost(0, 0).Plus(RunCost(new(0.0), false)), "$0.00", `{"cost_usd":0,"unpriced_runs":0}`},
		{"all known", RunCost(&some, false).Plus(RunCost(&some, false)), "$0.50", `{"cost_usd":0.5,"unpriced_runs":0}`},
		{"nothing known", RunCost(nil, false).Plus(RunCost(nil, true)), "unknown", `{"cost_usd":null,"unpriced_runs":2}`},
		{"nothing known yet", RunCost(new(0.0), true), "unknown", `{"cost_usd":null,"unpriced_runs":1}`},
		{"a part of it", RunCost(nil, false).Plus(RunCost(&some, false)), "≥ $0.25", `{"cost_usd":0.25,"unpriced_runs":1}`},
		{"a part of one", RunCost(&some, true), "≥ $0.25", `{"cost_usd":0.25,"unpriced_runs":1}`},
	} {
		raw, err := json.Marshal(test.cost)
		if err != nil || string(raw) != test.json || test.cost.CostText() != test.text || test.cost.CostUnknown() != (test.text == "unknown") {
			t.Errorf("%s: %s, %q, error %v", test.name, raw, test.cost.CostText(), err)
		}
		var back Cost
		if err := json.Unmarshal(raw, &back); err != nil || back != test.cost {
			t.Errorf("%s: %s came back as %+v, error %v", test.name, raw, back, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"cost_usd":"free"}`), new(Cost)); err == nil {
		t.Error("a word was read as an amount")
	}
}

func TestDollars(t *testing.T) {
	t.Parallel()
	for amount, want := range map[float64]string{
		0: "$0.00", 1: "$1.00", 1.5: "$1.50", 12345.678: "$12,346", 1e6: "$1,000,000", 9999.5: "$9,999.50", 0.25: "$0.25",
		0.2512: "$0.2512", 0.0123: "$0.0123",
		0.004: "$0.004", 0.0042: "$0.0042", 0.00012345: "$0.00012", 0.0000225: "$0.000023", 2e-9: "$0.000000002", 0.99999: "$1.00",
		-0.5: "-$0.50", -1234: "-$1,234.00",
	} {
		if got := Dollars(amount); got != want {
			t.Errorf("%v: %s, want %s", amount, got, want)
		}
	}
}
