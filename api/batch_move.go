package api

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

type batchChanges struct {
	MaxCostUSD  *float64 `json:"max_cost_usd,omitempty" exclusiveMinimum:"0" doc:"From now on"`
	Concurrency *int     `json:"concurrency,omitempty" minimum:"1" doc:"From now on"`
}

func (c *batchChanges) changes() store.BatchChanges {
	if c == nil {
		return store.BatchChanges{}
	}
	return store.BatchChanges{MaxCostUSD: c.MaxCostUSD, Concurrency: c.Concurrency}
}

type changeBatchInput struct {
	ByID
	Body *batchChanges
}

func (a *API) approveBatch(ctx context.Context, in *changeBatchInput) (*oneBatch, error) {
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) (work.Batch, error) {
		return a.Store.Batches.Approve(ctx, work.DefaultTenant, id, in.Body.changes())
	})
}

func (a *API) resumeBatch(ctx context.Context, in *changeBatchInput) (*oneBatch, error) {
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) (work.Batch, error) {
		return a.Store.Batches.Resume(ctx, work.DefaultTenant, id, in.Body.changes())
	})
}

type pauseBatchInput struct {
	ByID
	Body *newPause
}

func (a *API) pauseBatch(ctx context.Context, in *pauseBatchInput) (*oneBatch, error) {
	why := newPause{}
	if in.Body != nil {
		why = *in.Body
	}
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) (work.Batch, error) {
		return a.Store.Batches.Pause(ctx, work.DefaultTenant, id, why.By, why.Why)
	})
}

type batchReason struct {
	Why string `json:"why,omitempty" maxLength:"1000" doc:"For those who wonder"`
}

type cancelBatchInput struct {
	ByID
	Body *batchReason
}

func (a *API) cancelBatch(ctx context.Context, in *cancelBatchInput) (*oneBatch, error) {
	why := ""
	if in.Body != nil {
		why = in.Body.Why
	}
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) (work.Batch, error) {
		return a.Store.Batches.Cancel(ctx, work.DefaultTenant, id, why)
	})
}

type retryBatchInput struct {
	ByID
	Body *retryBatchBody
}

type retryBatchBody struct {
	Status []work.State `json:"status,omitempty" nullable:"false" doc:"Units in these states; failed, timed_out and cancelled when left out" enum:"failed,timed_out,cancelled"`
}

func (a *API) retryBatch(ctx context.Context, in *retryBatchInput) (*oneBatch, error) {
	var states []work.State
	if in.Body != nil {
		states = in.Body.Status
	}
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) (work.Batch, error) {
		if _, err := a.Store.Batches.Get(ctx, work.DefaultTenant, id); err != nil {
			return work.Batch{}, err
		}
		total := 0
		for more := true; more; {
			var moved []store.Moved
			var err error
			if moved, more, err = a.Store.Batches.Retry(ctx, work.DefaultTenant, id, states); err != nil {
				return work.Batch{}, err
			}
			total += len(moved)
		}
		b, err := a.Store.Batches.Get(ctx, work.DefaultTenant, id)
		switch {
		case err == nil && total == 0 && (b.Status == work.BatchFinalizing || b.Status == work.BatchCancelling):
			err = fmt.Errorf("%w: the batch is %s; retry its units when it is over", work.ErrConflict, b.Status)
		case err == nil && total == 0:
			err = fmt.Errorf("%w: the batch has no unit to run again", work.ErrConflict)
		}
		return b, err
	})
}

// moveBatch changes a batch, lets it go on at once, and answers with it.
func (a *API) moveBatch(ctx context.Context, text string, move func(uuid.UUID) (work.Batch, error)) (*oneBatch, error) {
	id, err := parseID(text)
	if err != nil {
		return nil, err
	}
	b, err := move(id)
	if err != nil {
		return nil, err
	}
	a.Log.Info("batch changed", "batch", id, "status", b.Status, "paused", b.Paused != nil)
	if err := a.Bell.AdvanceBatch(context.WithoutCancel(ctx), a.Store, id); err != nil {
		a.Log.Debug("advance a batch; the reconciler will", "batch", id, "err", err)
	}
	a.kept.drop(id)
	return a.answerOne(ctx, id)
}
