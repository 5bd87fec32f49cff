package backend

import (
	"bytes"
	"cmp"
	_ "embed" // the table of prices
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"time"

	"piecework/internal/work"
)

func USD(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}

//go:embed prices.json
var pricesJSON []byte

const PerMillion = 1e6

// Prices is a table of what tokens cost. Nil knows no price.
type Prices struct {
	rates []rate
	// ceiling is what models cost that are not in the table; nil: nobody knows.
	ceiling *rate
}

// WithCeiling sets what models cost that are in no table, in dollars per million
// tokens: at most, so that a limit on costs holds for them too. Tokens that are
// written to a cache count twice.
func (p *Prices) WithCeiling(input, output float64) *Prices {
	return &Prices{p.rates, &rate{Input: input, Output: output, CacheRead: input, CacheWrite: 2 * input}}
}

// Unpriced tells whether it is certain that nobody will know what a run of a
// model costs on a backend: the model has no price, and the backend tells no cost
// of its own. Nil is certain of nothing.
func (p *Prices) Unpriced(backend, model string) bool {
	_, known := p.Rate(model, time.Now(), 0)
	return profiles[backend].byTokens && p != nil && model != "" && !known
}

// rate is what a model's tokens cost, in dollars per million.
type rate struct {
	Model string `json:"model"`
	// From is the first day the rate holds; empty: always has.
	From string `json:"from"`
	// UpTo is the longest prompt, in tokens, the rate holds for; 0: any.
	UpTo       int64   `json:"up_to"`
	Input      float64 `json:"input"`
	Output     float64 `json:"output"`
	CacheRead  float64 `json:"cache_read"`
	CacheWrite float64 `json:"cache_write"`
}

// ReadPrices returns the table that Piecework brings along, with the rows of
// override, which may be empty, in place of its own for the models named there.
func ReadPrices(override []byte) (*Prices, error) {
	own, err := readRates(pricesJSON)
	if err != nil {
		return nil, fmt.Errorf("read the embedded prices: %w", err)
	}
	if len(bytes.TrimSpace(override)) == 0 {
		return &Prices{rates: own}, nil
	}
	given, err := readRates(override)
	if err != nil {
		return nil, fmt.Errorf("read the prices: %w", err)
	}
	named := map[string]bool{}
	for _, r := range given {
		named[r.Model] = true
	}
	for _, r := range own {
		if !named[r.Model] {
			given = append(given, r)
		}
	}
	return &Prices{rates: given}, nil
}

func readRates(raw []byte) ([]rate, error) {
	var rates []rate
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&rates); err != nil {
		return nil, err
	}
	for n, r := range rates {
		if _, err := time.Parse(time.DateOnly, r.From); r.From != "" && err != nil {
			return nil, fmt.Errorf("row %d: from: %w", n+1, err)
		}
		if r.Model == "" || min(r.Input, r.Output, r.CacheRead, r.CacheWrite) < 0 || r.UpTo < 0 {
			return nil, fmt.Errorf("row %d: it needs a model, and no number may be negative", n+1)
		}
	}
	return rates, nil
}

// dated is the end of a model's name that says which day's version it is.
var dated = regexp.MustCompile(`[-@](\d{8}|\d{4}-\d{2}-\d{2})$`)

// Rate finds what a prompt of so many tokens costs with a model on a day: the
// newest row, and of equals the one with the lowest bound that holds.
func (p *Prices) Rate(model string, at time.Time, prompt int64) (best rate, known bool) {
	if p == nil {
		return rate{}, false
	}
	day := at.UTC().Format(time.DateOnly)
	for _, name := range []string{model, dated.ReplaceAllString(model, "")} {
		newest := ""
		for _, r := range p.rates {
			if r.Model == name && r.From <= day {
				newest = max(newest, r.From)
			}
		}
		for _, r := range p.rates {
			if r.Model != name || r.From != newest || r.UpTo > 0 && prompt > r.UpTo {
				continue
			}
			if !known || r.UpTo > 0 && (best.UpTo == 0 || r.UpTo < best.UpTo) {
				best, known = r, true
			}
		}
		if known {
			return best, true
		}
	}
	if p.ceiling != nil {
		return *p.ceiling, true
	}
	return best, false
}

// Cost is what tokens cost, rounded because sums of floats have noise in them.
func (r rate) Cost(u work.Usage) float64 {
	sum := float64(u.InputTokens)*r.Input + float64(u.OutputTokens)*r.Output +
		float64(u.CacheReadTokens)*r.CacheRead + float64(u.CacheCreationTokens)*r.CacheWrite
	return math.Round(sum/PerMillion*1e9) / 1e9
}

// PromptTokens is all that was read, from the cache or not.
func PromptTokens(u work.Usage) int64 {
	return u.InputTokens + u.CacheReadTokens + u.CacheCreationTokens
}

// Use is what one call of a model has used.
type Use struct {
	Model string
	work.Usage
}

// Cost is what calls have cost; nil when there were none, when the tokens of one
// cannot be true, or when the price of one is not known, whose model is named then.
func (p *Prices) Cost(uses []Use) (cost *float64, unknown string) {
	sum := 0.0
	for _, u := range uses {
		if !u.Plausible() {
			return nil, ""
		}
		rate, known := p.Rate(u.Model, time.Now(), PromptTokens(u.Usage))
		if !known {
			return nil, cmp.Or(u.Model, "(unnamed)")
		}
		sum += rate.Cost(u.Usage)
	}
	if len(uses) == 0 {
		return nil, ""
	}
	return new(math.Round(sum*1e9) / 1e9), ""
}

// CostOfSum is what calls have cost of which only the sum is told: nil where
// the price depends on how long each was.
func (p *Prices) CostOfSum(sum Use) *float64 {
	least, _ := p.Rate(sum.Model, time.Now(), 0)
	most, known := p.Rate(sum.Model, time.Now(), PromptTokens(sum.Usage))
	if !known || least != most || sum.Usage == (work.Usage{}) || !sum.Plausible() {
		return nil
	}
	return new(most.Cost(sum.Usage))
}

// CheckBudget refuses a budget that nobody can keep, before anything is spent.
func (p *Prices) CheckBudget(req Request, model string) *work.Failure {
	if req.MaxCostUSD == nil {
		return nil
	}
	if model == "" && (p == nil || p.ceiling == nil) {
		return work.Fail(work.ClassInvalidRequest, "max_cost_usd can only be kept for a model whose price is known: name the model")
	}
	if _, known := p.Rate(model, time.Now(), 0); !known {
		return UnknownPrice(model)
	}
	return nil
}

// NoPrice says that a model has no price, and what to do.
func NoPrice(model string) string {
	return "the price of model " + model + " is not known; put it into the file that --prices names, or set --unknown-price"
}

func UnknownPrice(model string) *work.Failure {
	return work.Fail(work.ClassInvalidRequest, "max_cost_usd cannot be kept: "+NoPrice(model)+", or leave max_cost_usd out")
}

// Overspent stops a run that has cost more than it may, or that calls a model
// without a price.
func (p *Prices) Overspent(req Request, uses []Use) *work.Failure {
	if req.MaxCostUSD == nil {
		return nil
	}
	cost, unknown := p.Cost(uses)
	switch {
	case unknown != "":
		return UnknownPrice(unknown)
	case USD(cost) > *req.MaxCostUSD:
		return OverBudget(req, *cost)
	}
	return nil
}

func OverBudget(req Request, cost float64) *work.Failure {
	return work.Fail(work.ClassMaxCost, fmt.Sprintf("max_cost_usd ($%g) was reached: $%g", *req.MaxCostUSD, cost))
}
