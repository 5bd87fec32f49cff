package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"piecework/api/query"
	"piecework/api/view"
	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// batchBody is what a caller submits as a batch.
type batchBody struct {
	jobs.BatchOptions
	Units  []strictjson.Object `json:"units,omitempty" nullable:"false" doc:"The units, as POST /work-units takes them, each with a custom_id if you like; this or source. Many are better sent as lines: see the description"`
	Source *source.Source      `json:"source,omitempty" doc:"Where the units' payloads come from; this or units"`
}

type batchInput struct {
	Key  string `header:"Idempotency-Key" doc:"Sent again with the same body it names the same batch"`
	Body batchBody
}

// BatchView is a batch as callers see it. It is exported for the description of what embeds it.
type BatchView struct {
	work.Batch
	Forecast *view.Forecast `json:"forecast,omitempty" doc:"What the rest will probably take, while it awaits approval"`
}

type batchAnswer struct {
	Status   int
	Location string `header:"Location"`
	Replayed string `header:"Idempotent-Replayed" doc:"true when this Idempotency-Key had made the batch before"`
	Body     submittedBatch
}

type submittedBatch struct {
	BatchView
	Sample *jobs.Sample `json:"sample,omitempty" doc:"What its first unit looks like"`
	DryRun bool         `json:"dry_run,omitempty"`
}

func (a *API) submitBatch(ctx context.Context, in *batchInput) (*batchAnswer, error) {
	key, err := idempotencyKey(in.Key)
	if err != nil {
		return nil, err
	}
	var hash []byte
	if key != "" {
		hash = fingerprint(rawBody(ctx))
		if b, err := a.Store.Batches.Before(ctx, work.DefaultTenant, key, hash); !errors.Is(err, work.ErrNotFound) {
			return answerBatch(b, nil, true), err
		}
	}
	n, err := a.NewBatch(&in.Body.BatchOptions)
	if err != nil {
		return nil, err
	}
	n.IdempotencyKey, n.BodyHash = key, hash
	switch {
	case in.Body.Source != nil && len(in.Body.Units) > 0:
		return nil, work.Invalidf("#/units", "give either units or source, not both")
	case in.Body.Source != nil:
		return answerSubmitted(a.SubmitSource(ctx, n, in.Body.BatchOptions, *in.Body.Source))
	case len(in.Body.Units) == 0:
		return nil, work.Invalidf("#/units", "there are none; give units, or a source to make them of")
	}
	units := func(yield func(source.Line, error) bool) {
		for i, u := range in.Body.Units {
			if !yield(source.Line{Text: u, Next: source.Place{Line: i + 1}}, nil) {
				return
			}
		}
	}
	return answerSubmitted(a.SubmitUnits(ctx, n, in.Body.BatchOptions, units, func(i int) string { return fmt.Sprintf("#/units/%d", i-1) }))
}

func answerBatch(b work.Batch, first *jobs.Sample, replayed bool) *batchAnswer {
	answer := &batchAnswer{Status: http.StatusAccepted, Location: "/batches/" + b.ID.String(),
		Body: submittedBatch{BatchView: BatchView{Batch: b}, Sample: first}}
	if replayed {
		answer.Replayed = "true"
	}
	return answer
}

func answerSubmitted(b jobs.SubmittedBatch, err error) (*batchAnswer, error) {
	if err != nil {
		return nil, err
	}
	answer := answerBatch(b.Batch, b.Sample, b.Replayed)
	if b.DryRun {
		answer.Status, answer.Location, answer.Body.DryRun = http.StatusOK, "", true
	}
	return answer, nil
}

func (a *API) viewBatch(ctx context.Context, b work.Batch, t store.Tested) (BatchView, error) {
	f, err := view.ForecastOf(ctx, a.Store, b, t)
	return BatchView{Batch: b, Forecast: f}, err
}

type oneBatch struct{ Body BatchView }

func (a *API) getBatch(ctx context.Context, in *query.ByID) (*oneBatch, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	return a.answerOne(ctx, id)
}

func (a *API) answerOne(ctx context.Context, id uuid.UUID) (*oneBatch, error) {
	b, t, err := a.Store.Batches.GetTested(ctx, work.DefaultTenant, id)
	if err != nil {
		return nil, err
	}
	v, err := a.viewBatch(ctx, b, t)
	return &oneBatch{v}, err
}

type listBatchesInput struct {
	Status string `query:"status" doc:"One or more statuses, separated by commas" example:"in_progress"`
	Search string `query:"q" doc:"Part of the title, in any case" maxLength:"200"`
	After  string `query:"after" doc:"The next of the page before"`
	Limit  int    `query:"limit" default:"50" minimum:"1" maximum:"100"`
}

type batchList struct {
	Body struct {
		Items []work.Batch `json:"items" nullable:"false"`
		Next  *uuid.UUID   `json:"next" doc:"Give it as after to get the next page; null on the last"`
	} `nameHint:"BatchList"`
}

func (a *API) listBatches(ctx context.Context, in *listBatchesInput) (*batchList, error) {
	f := store.BatchFilter{Tenant: work.DefaultTenant, Search: in.Search, Limit: in.Limit}
	var err error
	if f.Statuses, err = query.States(in.Status, work.BatchStatuses); err != nil {
		return nil, err
	}
	if f.After, err = query.After(in.After); err != nil {
		return nil, err
	}
	batches, next, err := a.Store.Batches.List(ctx, f)
	if err != nil {
		return nil, err
	}
	var list batchList
	list.Body.Items, list.Body.Next = batches, next
	for i := range batches {
		batches[i].Problems = nil // of one batch alone
	}
	return &list, nil
}
