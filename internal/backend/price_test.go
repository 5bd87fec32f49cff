package backend

import (
	"testing"
	"time"

	"piecework/internal/work"
)

func TestPrices(t *testing.T) {
	prices, err := ReadPrices([]byte(`[{"model":"gpt-4o","input":1,"output":2},
		{"model":"mine","input":1,"up_to":100},{"model":"mine","input":2,"up_to":200},{"model":"mine","from":"2030-01-01","input":9}]`))
	if err != nil {
		t.Fatal(err)
	}
	before, after := time.Date(2026, 10, 6, 23, 0, 0, 0, time.UTC), time.Date(2026, 10, 7, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		model  string
		at     time.Time
		prompt int64
		want   float64 // of a million tokens from the cache, and as many read anew; 0: not known
	}{
		{"claude-sonnet-5-5", before, 0, 2.2},
		{"claude-sonnet-5-5", after, 0, 2.1},
		{"claude-sonnet-4-5-20250929", after, 0, 3.3},
		{"claude-sonnet-4-5", after, 200_001, 0},
		{"claude-haiku-5-5", after, 100_000, 0.11},
		{"claude-haiku-5-5", after, 100_001, 0.55},
		{"gpt-5.4-mini-2026-03-17", after, 0, 0.825},
		{"gpt-5.4-mini-turbo", after, 0, 0},
		{"gpt-4o", after, 0, 1}, // as overridden
		{"mine", after, 100, 1},
		{"mine", after, 101, 2},
		{"mine", after, 201, 0},
		{"mine", after.AddDate(10, 0, 0), 201, 9},
		{"llama3.2", after, 0, 0},
		{"", after, 0, 0},
	} {
		r, known := prices.Rate(test.model, test.at, test.prompt)
		got := r.Cost(work.Usage{InputTokens: 1e6, CacheReadTokens: 1e6})
		if known != (test.want > 0) || got != test.want {
			t.Errorf("%s at %s for %d tokens: %v (%v), want %v", test.model, test.at, test.prompt, got, known, test.want)
		}
	}
	for _, bad := range []string{"{", `[{"model":""}]`, `[{"model":"x","input":-1}]`, `[{"model":"x","from":"soon"}]`, `[{"model":"x","inptu":1}]`} {
		if _, err := ReadPrices([]byte(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// A ceiling is for models that are in no table, and makes a limit on costs one
// that can be kept.
func TestCeilingPrice(t *testing.T) {
	prices, err := ReadPrices(nil)
	if err != nil {
		t.Fatal(err)
	}
	dear, limit := prices.WithCeiling(10, 50), 1.0
	used := work.Usage{InputTokens: 1e6, OutputTokens: 1e6, CacheReadTokens: 1e6, CacheCreationTokens: 1e6}
	for model, want := range map[string]float64{"nobody-knows": 90, "": 90} {
		if cost, unknown := dear.Cost([]Use{{model, used}}); unknown != "" || cost == nil || *cost != want {
			t.Errorf("%q costs %v, not known: %q", model, USD(cost), unknown)
		}
		if f := dear.CheckBudget(Request{MaxCostUSD: &limit}, model); f != nil {
			t.Errorf("%q with a ceiling: %v", model, f)
		}
		if f := prices.CheckBudget(Request{MaxCostUSD: &limit}, model); f == nil {
			t.Errorf("%q without a ceiling is not refused", model)
		}
	}
	known := []Use{{"claude-sonnet-4-5", work.Usage{OutputTokens: 1e6}}}
	if with, _ := dear.Cost(known); USD(with) != 15 {
		t.Errorf("a model of the table costs %v", USD(with))
	}
	for name, want := range map[string]bool{"anthropic": true, "codex": true, "cursor": true, "gemini": true, "openai": false,
		"claude": false, "opencode": false, "mock": false} {
		if prices.Unpriced(name, "nobody-knows") != want || prices.Unpriced(name, "") || dear.Unpriced(name, "nobody-knows") ||
			(*Prices)(nil).Unpriced(name, "nobody-knows") {
			t.Errorf("%s: not as it is known to be", name)
		}
	}
}

func TestCostOfCalls(t *testing.T) {
	prices, err := ReadPrices([]byte(`[{"model":"a","input":1,"up_to":100},{"model":"a","input":2},{"model":"b","output":4}]`))
	if err != nil {
		t.Fatal(err)
	}
	in := func(tokens int64) Use { return Use{"a", work.Usage{InputTokens: tokens}} }
	for _, test := range []struct {
		name    string
		uses    []Use
		want    float64 // in millionths; 0: not known
		sum     float64 // when only the sum of tokens is told
		unknown string
	}{
		{name: "none"},
		{name: "each by its own length", uses: []Use{in(60), in(101)}, want: 60 + 202},
		{name: "short together", uses: []Use{in(60), in(40)}, want: 100, sum: 100},
		{name: "two models", uses: []Use{in(1), {"b", work.Usage{OutputTokens: 2}}}, want: 9},
		{name: "one without a price", uses: []Use{in(1), {"c", work.Usage{}}}, unknown: "c"},
	} {
		cost, unknown := prices.Cost(test.uses)
		if USD(cost) != test.want/1e6 || (cost == nil) != (test.want == 0) || unknown != test.unknown {
			t.Errorf("%s: %v, unknown %q", test.name, USD(cost), unknown)
		}
		sum := Use{Model: "a"}
		for _, u := range test.uses {
			sum.Usage = sum.And(u.Usage)
		}
		if test.sum == 0 && test.name != "each by its own length" {
			continue
		}
		if got := prices.CostOfSum(sum); USD(got) != test.sum/1e6 || (got == nil) != (test.sum == 0) {
			t.Errorf("%s: the sum costs %v", test.name, USD(got))
		}
	}
}

// Tokens that cannot be true have no price.
func TestTokensThatCannotBeTrue(t *testing.T) {
	prices := &Prices{rates: []rate{{Model: "m", Input: 1, Output: 1}}}
	for _, u := range []work.Usage{{InputTokens: -5_000_000, OutputTokens: 10_000_000}, {OutputTokens: 9_200_000_000_000_000_000}} {
		if cost, _ := prices.Cost([]Use{{"m", u}}); cost != nil {
			t.Errorf("%+v costs %v", u, *cost)
		}
		if cost := prices.CostOfSum(Use{"m", u}); cost != nil {
			t.Errorf("the sum %+v costs %v", u, *cost)
		}
	}
	most := work.Usage{InputTokens: 9_200_000_000_000_000_000}
	if got := most.And(most); got.Plausible() {
		t.Errorf("a sum that is too large looks plausible: %+v", got)
	}
}
