package upkeep

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// answersBytes and answersCount are how much is kept in one statement.
const (
	answersBytes = 4 << 20
	answersCount = 200
)

// collect takes in the answers. A line that came back without one, or not at
// all, is run live. Whoever goes on after a death takes them in again, which
// changes nothing.
func (r *batchRound) collect(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	var answers []store.ProviderAnswer
	var owner uuid.UUID // of lines that are not of this batch
	size, ours, foreign := 0, 0, 0
	var stored error
	keep := func() error {
		stored = r.p.Store.ProviderBatches.AddAnswers(ctx, r.b.ID, answers)
		answers, size = answers[:0], 0
		return stored
	}
	err := r.batcher.BatchAnswers(call, *r.b.RemoteID, func(a backend.BatchAnswer) error {
		batch, unit := parseLineID(a.ID)
		if batch != r.b.ID {
			owner = batch
			foreign++
			return nil
		}
		if ours++; a.Answer == nil {
			return nil
		}
		answers = append(answers, store.ProviderAnswer{
			UnitID: unit, Status: a.Answer.Status, RequestID: a.Answer.RequestID, Body: bytes.Clone(a.Answer.Body),
		})
		if size += len(a.Answer.Body); size < answersBytes && len(answers) < answersCount {
			return nil
		}
		return keep()
	})
	if err == nil {
		err = keep()
	}
	switch {
	case stored != nil:
		return stored
	case err != nil:
		return r.unreadable(ctx, fmt.Errorf("read its answers: %w", err))
	case ours == 0 && foreign > 0:
		return r.trade(ctx, owner)
	}
	return r.finish(ctx, nil)
}

// trade gives what was found at the provider to another batch of ours, if it is
// that one's.
func (r *batchRound) trade(ctx context.Context, owner uuid.UUID) error {
	traded, err := r.p.Store.ProviderBatches.Swap(ctx, r.p.Process, r.b.ID, owner)
	if err != nil {
		return err
	}
	if traded {
		r.p.Log.Info("provider's batch was another of ours", "batch", r.b.ID, "found", *r.b.RemoteID, "owner", owner, "backend", r.b.Backend)
		return nil
	}
	return r.again(ctx, fmt.Errorf("the batch %s that was found is somebody else's", *r.b.RemoteID))
}

// chargeUnused notes what answers have cost that came for units which were over
// before a run: the provider is paid for them.
func (p *ProviderBatches) chargeUnused(ctx context.Context, names []string) error {
	unused, err := p.Store.ProviderBatches.UnusedAnswers(ctx, names, answersCount)
	if err != nil {
		return err
	}
	for _, u := range unused {
		var call *work.Call
		if err := json.Unmarshal(u.Request, &call); err != nil {
			p.Log.Warn("read the request of a unit", "unit", u.UnitID, "err", err) // it is priced as a prompt
		}
		cost := p.batcher(u.Backend).AnswerCost(call, u.Model, backend.Answer{Status: u.Status, RequestID: u.RequestID, Body: u.Body})
		if err := p.Store.ProviderBatches.ChargeAnswer(ctx, u.UnitID, cost); err != nil {
			return err
		}
	}
	return nil
}
