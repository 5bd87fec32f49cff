package handlers

import (
	"context"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// batchLine prepares a unit as its run will, and makes a line of its first call. It
// is false for one that is better run live.
func (w *Worker) batchLine(ctx context.Context, to backend.Batcher, u work.Unit) (line backend.Line, ok bool) {
	a := &attempt{w: w, claimed: &store.Claimed{Unit: u}}
	var failure *work.Failure
	a.prep, failure = w.prepare(ctx, a.claimed)
	defer a.prep.tidy()
	if failure == nil && !a.inCache(ctx) {
		line, failure = to.Line(a.prep.req)
		ok = failure == nil
	}
	return line, ok
}

// answered gives a run what a provider's batch answered its unit.
func (a *attempt) answered(ctx context.Context) *work.Failure {
	if a.claimed.Lane != work.LaneBatch {
		return nil
	}
	err := untilAnswered(ctx, func() error {
		got, err := a.w.Store.ProviderBatches.Answer(ctx, a.claimed.ID)
		if err == nil && got != nil {
			a.prep.req.Answer = &backend.Answer{Status: got.Status, RequestID: got.RequestID, Body: got.Body}
		}
		return err
	})
	if err != nil {
		return work.Fail(work.ClassInfra, "read what the provider's batch answered: "+err.Error())
	}
	return nil
}

// forgetAnswer removes the answer that a run has used up. A run that was stopped
// leaves it for the next.
func (a *attempt) forgetAnswer(f store.Finish) {
	if a.prep.req.Answer == nil || f.Status == work.RunReleased || f.Status == work.RunLost {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := a.w.Store.ProviderBatches.ForgetAnswer(ctx, a.claimed.ID); err != nil {
		a.w.Log.Warn("forget a provider's answer that was used", "unit", a.claimed.ID, "err", err)
	}
}
