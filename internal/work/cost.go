package work

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Cost is what runs have cost together, in US dollars. The zero value is $0.
// Make others with NewCost or RunCost: nothing else decides what is told when
// part of a cost, or all of it, is not known.
type Cost struct {
	USD      USD   `json:"cost_usd"`
	Unpriced int64 `json:"unpriced_runs" doc:"Runs whose cost is not known, or not all of it"`
}

// NewCost is a cost of which known is known, and of some runs all or a part is
// not.
func NewCost(known float64, unpriced int64) Cost {
	return Cost{USD{known, known == 0 && unpriced > 0}, unpriced}
}

// RunCost is the cost of one run that is over: total is nil when nothing is
// known of it, and incomplete says that it may have cost more.
func RunCost(total *float64, incomplete bool) Cost {
	if total == nil {
		return NewCost(0, 1)
	}
	if incomplete {
		return NewCost(*total, 1)
	}
	return NewCost(*total, 0)
}

// Known is the part of the cost that is known, 0 when nothing is.
func (c Cost) Known() float64 { return c.USD.amount }

// Plus is the cost of both.
func (c Cost) Plus(more Cost) Cost {
	return NewCost(c.Known()+more.Known(), c.Unpriced+more.Unpriced)
}

// CostUnknown tells whether nothing is known of the cost.
func (c Cost) CostUnknown() bool { return c.USD.unknown }

// CostText tells the cost to people: "$0.25", "≥ $0.25" when it may be more, and
// "unknown".
func (c Cost) CostText() string {
	switch {
	case c.USD.unknown:
		return "unknown"
	case c.Unpriced > 0:
		return "≥ " + Dollars(c.Known())
	}
	return Dollars(c.Known())
}

// USD is an amount of US dollars, or unknown. In JSON it is a number or null.
type USD struct {
	amount  float64
	unknown bool
}

// MarshalJSON writes the amount, and null when it is unknown.
func (u USD) MarshalJSON() ([]byte, error) {
	if u.unknown {
		return []byte("null"), nil
	}
	return json.Marshal(u.amount)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (u *USD) UnmarshalJSON(text []byte) error {
	var amount *float64
	if err := json.Unmarshal(text, &amount); err != nil {
		return fmt.Errorf("read an amount of dollars: %w", err)
	}
	*u = USD{unknown: amount == nil}
	if amount != nil {
		u.amount = *amount
	}
	return nil
}

// Dollars writes an amount for people: to the cent, and in whole dollars from ten
// thousand on; below a dollar to the hundredth of a cent, or with as many digits as
// show two that count.
func Dollars(amount float64) string {
	size, places := math.Abs(amount), 2
	if size > 0 && size < 1 {
		places = min(max(4, 1-int(math.Floor(math.Log10(size)))), 12)
	}
	if size >= 10_000 {
		places = 0
	}
	whole, cents, _ := strings.Cut(strconv.FormatFloat(size, 'f', places, 64), ".")
	if places > 0 {
		cents = "." + cents[:2] + strings.TrimRight(cents[2:], "0")
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	sign := ""
	if amount < 0 {
		sign = "-"
	}
	return sign + "$" + whole + cents
}
