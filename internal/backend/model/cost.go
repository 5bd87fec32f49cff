package model

import (
	"cmp"
	"fmt"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

// account adds what a call has used. Whether a call is charged that was given up
// before it was answered nobody can tell.
func (u *unit) account(a *Answer, sent time.Time, givenUp bool) {
	if !a.answered {
		u.incomplete = u.incomplete || givenUp
		return
	}
	u.turns++
	u.model = cmp.Or(a.Model, u.model)
	u.usage = u.usage.And(a.Usage)
	u.incomplete = u.incomplete || !a.UsageFinal
	cost := a.Cost
	if cost != nil && !work.PlausibleCost(*cost) {
		u.unknown, u.untrue = true, cost
		return
	}
	if cost == nil && a.Usage != (work.Usage{}) && a.Usage.Plausible() {
		cost = u.price(a, sent)
	}
	if cost == nil {
		u.unknown = true
		return
	}
	u.cost = new(*cost + backend.USD(u.cost))
}

// price looks under the name the API gave the model, which may be a dated one
// that the table does not have, then under the one asked for.
func (u *unit) price(a *Answer, at time.Time) *float64 {
	for _, name := range []string{a.Model, u.conversation.Model} {
		if rate, known := u.api.Prices.Rate(name, at, backend.PromptTokens(a.Usage)); known {
			cost := rate.Cost(a.Usage)
			if a.batched {
				cost *= batchShare
			}
			return &cost
		}
	}
	return nil
}

// leastAnswer is the shortest answer worth paying for; some APIs take no less.
const leastAnswer = 16

// bytesPerToken is more than most text has, so that the estimate of an input
// is rather too low than too high: nothing affordable is refused.
const bytesPerToken = 5

// afford refuses a call whose price is not known, or whose input alone would
// cost more than max_cost_usd leaves, and shortens the answer to what the rest pays for.
func (u *unit) afford() *work.Failure {
	if u.req.MaxCostUSD == nil {
		return nil
	}
	tokens := u.conversation.bytes() / bytesPerToken
	rate, known := u.api.Prices.Rate(u.conversation.Model, time.Now(), tokens)
	if !known {
		return backend.UnknownPrice(u.conversation.Model)
	}
	left := *u.req.MaxCostUSD - backend.USD(u.cost)
	input := float64(tokens) * rate.Input / backend.PerMillion
	room := int64((left - input) / rate.Output * backend.PerMillion)
	if rate.Output > 0 && room < leastAnswer || input > left {
		return work.Fail(work.ClassMaxCost, fmt.Sprintf(
			"max_cost_usd ($%g) does not pay for this call: $%.6f is spent, and some %d tokens of input cost $%.6f with %s",
			*u.req.MaxCostUSD, backend.USD(u.cost), tokens, input, u.conversation.Model))
	}
	if rate.Output > 0 && (u.api.MaxTokens == 0 || room < u.api.MaxTokens) {
		u.conversation.MaxTokens, u.capped = room, true
	}
	return nil
}

// bytes is the size of the text that is sent; what a picture costs depends on
// its resolution, and is left out.
func (t *Conversation) bytes() int64 {
	n := len(t.System)
	for _, p := range t.Parts {
		if p.Kind == textPart {
			n += len(p.Text)
		}
	}
	if t.Repair != nil {
		n += len(t.Repair.Answer) + len(t.Repair.Complaint)
	}
	return int64(n)
}
