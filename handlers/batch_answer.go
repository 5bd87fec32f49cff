package handlers

import (
	"context"
	"encoding/json"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// chargeUnused notes what answers have cost that came for units which were over
// before a run: the provider is paid for them.
func (w *Worker) chargeUnused(ctx context.Context, names []string) error {
	unused, err := w.Store.ProviderBatches.UnusedAnswers(ctx, names, answersCount)
	if err != nil {
		return err
	}
	for _, u := range unused {
		var call *work.Call
		if err := json.Unmarshal(u.Request, &call); err != nil {
			w.Log.Warn("read the request of a unit", "unit", u.UnitID, "err", err) // it is priced as a prompt
		}
		cost := w.lane(u.Backend).backend.(backend.Batcher).AnswerCost(call, u.Model, backend.Answer{Status: u.Status, RequestID: u.RequestID, Body: u.Body})
		if err := w.Store.ProviderBatches.ChargeAnswer(ctx, u.UnitID, cost); err != nil {
			return err
		}
	}
	return nil
}

// answered gives a run what a provider's batch answered its unit.
func (w *Worker) answered(ctx context.Context, a *attempt) *work.Failure {
	if a.claimed.Lane != work.LaneBatch {
		return nil
	}
	err := w.untilAnswered(ctx, func() error {
		got, err := w.Store.ProviderBatches.Answer(ctx, a.claimed.ID)
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
func (w *Worker) forgetAnswer(a *attempt, f store.Finish) {
	if a.prep.req.Answer == nil || f.Status == work.RunReleased || f.Status == work.RunLost {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := w.Store.ProviderBatches.ForgetAnswer(ctx, a.claimed.ID); err != nil {
		w.Log.Warn("forget a provider's answer that was used", "unit", a.claimed.ID, "err", err)
	}
}
