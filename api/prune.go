package api

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/internal/work"
	"piecework/store"
)

const (
	pruneBite = 1000            // units that are removed in one transaction
	pruneTime = 5 * time.Second // of one call
	purgeTime = 3 * time.Second // for a batch that was deleted just now
)

func (a *API) deleteUnit(ctx context.Context, in *query.ByID) (*struct{}, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := a.Store.Units.Delete(ctx, work.DefaultTenant, id); err != nil {
		return nil, err
	}
	a.live.Notify(id)
	return &struct{}{}, nil
}

func (a *API) deleteBatch(ctx context.Context, in *query.ByID) (*struct{}, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := a.Store.Batches.Delete(ctx, work.DefaultTenant, id); err != nil {
		return nil, err
	}
	a.purgeBatches(ctx)
	return &struct{}{}, nil
}

// purgeBatches removes what is left of deleted batches, which nobody sees any
// more, for a short time. What it leaves a worker process removes.
func (a *API) purgeBatches(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), purgeTime)
	defer cancel()
	for {
		n, err := a.Store.Retention.PurgeBatches(ctx, pruneBite)
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("deleted batches could not be removed; a worker process will try again", "err", err)
		}
		if err != nil || n == 0 {
			return
		}
	}
}

type pruneInput struct {
	Before string `query:"before" required:"true" doc:"Units and batches that ended before this time are removed" example:"2026-01-31T00:00:00Z"`
	DryRun bool   `query:"dry_run" doc:"Remove nothing and count what would be removed"`
}

// Resolve refuses parameters without a value.
func (in *pruneInput) Resolve(ctx huma.Context) []error { return query.Blank(ctx) }

type pruneAnswer struct {
	Body struct {
		DryRun bool `json:"dry_run"`
		store.Old
		More bool `json:"more" doc:"One call removes for 5 seconds. Call again"`
	} `nameHint:"Pruned"`
}

// prune removes what ended before a time, in pieces, for as long as a caller can
// be held.
func (a *API) prune(ctx context.Context, in *pruneInput) (*pruneAnswer, error) {
	before, err := time.Parse(time.RFC3339, in.Before)
	if err != nil {
		return nil, problem.Parameter("before", "must be a time such as 2026-01-31T00:00:00Z")
	}
	var answer pruneAnswer
	if in.DryRun {
		answer.Body.DryRun = true
		answer.Body.Old, err = a.Store.Retention.Preview(ctx, work.DefaultTenant, before)
		return &answer, err
	}
	end := time.Now().Add(pruneTime)
	for answer.Body.More = true; answer.Body.More && time.Now().Before(end) && err == nil; {
		var units, batches, rows int
		if units, err = a.Store.Retention.PruneUnits(ctx, work.DefaultTenant, before, pruneBite); err == nil {
			batches, err = a.Store.Retention.PruneBatches(ctx, work.DefaultTenant, before, pruneBite)
		}
		if err == nil {
			rows, err = a.Store.Retention.PurgeBatches(ctx, pruneBite)
		}
		answer.Body.Units += units
		answer.Body.Batches += batches
		answer.Body.More = units+batches+rows > 0
	}
	return &answer, err
}
