package api

import (
	"context"

	"github.com/google/uuid"

	"piecework/api/ops"
	"piecework/api/query"
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
	query.ByID
	Body *batchChanges
}

func (a *API) approveBatch(ctx context.Context, in *changeBatchInput) (*oneBatch, error) {
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) error {
		return a.control.ApproveBatch(ctx, work.DefaultTenant, id, in.Body.changes())
	})
}

func (a *API) resumeBatch(ctx context.Context, in *changeBatchInput) (*oneBatch, error) {
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) error {
		return a.control.ResumeBatch(ctx, work.DefaultTenant, id, in.Body.changes())
	})
}

type pauseBatchInput struct {
	query.ByID
	Body *ops.NewPause
}

func (a *API) pauseBatch(ctx context.Context, in *pauseBatchInput) (*oneBatch, error) {
	why := ops.NewPause{}
	if in.Body != nil {
		why = *in.Body
	}
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) error {
		return a.control.PauseBatch(ctx, work.DefaultTenant, id, why.By, why.Why)
	})
}

type batchReason struct {
	Why string `json:"why,omitempty" maxLength:"1000" doc:"For those who wonder"`
}

type cancelBatchInput struct {
	query.ByID
	Body *batchReason
}

func (a *API) cancelBatch(ctx context.Context, in *cancelBatchInput) (*oneBatch, error) {
	why := ""
	if in.Body != nil {
		why = in.Body.Why
	}
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) error {
		return a.control.CancelBatch(ctx, work.DefaultTenant, id, why)
	})
}

type retryBatchInput struct {
	query.ByID
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
	return a.moveBatch(ctx, in.ID, func(id uuid.UUID) error {
		return a.control.RetryBatch(ctx, work.DefaultTenant, id, states)
	})
}

// moveBatch changes a batch and answers with it.
func (a *API) moveBatch(ctx context.Context, text string, move func(uuid.UUID) error) (*oneBatch, error) {
	id, err := query.ID(text)
	if err != nil {
		return nil, err
	}
	if err := move(id); err != nil {
		return nil, err
	}
	return a.answerOne(ctx, id)
}
