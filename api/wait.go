package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/internal/work"
)

// waitFor is how long an answer may be held.
type waitFor time.Duration

// longest is the longest hold; proxies in between rarely allow more.
const longest = work.Seconds(300)

func parseWait(text string) (waitFor, error) {
	if text == "" {
		return 0, nil
	}
	s, err := work.ParseSeconds(text)
	if err != nil || !(s >= 0) { // NaN is neither
		return 0, problem.Parameter("wait", "write a length of time such as 30s")
	}
	return waitFor(min(s, longest).Duration()), nil
}

// await reads a unit, and while it is not final and wait lasts, reads it again
// whenever it changes. Redis only makes this fast: without a notice it looks
// again by itself.
func (a *API) await(ctx context.Context, id uuid.UUID, wait waitFor) (unitView, error) {
	if wait == 0 {
		return a.viewUnit(ctx, id)
	}
	body.HoldAnswer(ctx)
	changed, forget := a.live.Watch(id)
	defer forget()
	deadline := time.NewTimer(time.Duration(wait))
	defer deadline.Stop()
	look := time.NewTicker(a.lookAgain)
	defer look.Stop()
	for {
		state, err := a.Store.Units.State(ctx, work.DefaultTenant, id)
		if err != nil {
			return unitView{}, err
		}
		if state.Final() {
			return a.viewUnit(ctx, id)
		}
		select {
		case <-changed:
		case <-look.C:
		case <-deadline.C:
			return a.viewUnit(ctx, id)
		case <-ctx.Done():
			return unitView{}, ctx.Err()
		}
	}
}
