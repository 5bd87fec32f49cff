package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/api/view"
	"piecework/internal/work"
	"piecework/store"
)

// Bulk is what every call that changes many units takes.
type Bulk struct {
	query.Units
	All    bool `query:"all" doc:"Needed when there is no filter: the call then means every unit"`
	DryRun bool `query:"dry_run" doc:"Change nothing and show what would be changed"`
}

// Resolve refuses parameters without a value: a script whose variable was
// empty must not change more units than it meant to.
func (in *Bulk) Resolve(ctx huma.Context) []error { return query.Blank(ctx) }

// chosen reads the filter. Without states it means usual, and it may name no
// others than possible.
func (in *Bulk) chosen(verb string, usual, possible []work.State) (store.UnitFilter, error) {
	f, err := in.Filter()
	if err != nil {
		return f, err
	}
	for _, s := range f.States {
		if !slices.Contains(possible, s) {
			return f, problem.Parameter("status", fmt.Sprintf("a unit that is %s cannot be %s; give some of %s", s, verb, query.Joined(possible)))
		}
	}
	if !in.All && len(f.States) == 0 && f.Batch == uuid.Nil && f.Backend == "" && f.Worker == "" && f.Class == "" && f.Search == "" &&
		len(f.Labels) == 0 {
		return f, problem.Parameter("all", fmt.Sprintf("without a filter every unit would be %s: give a filter, or all=true if you mean it", verb))
	}
	if len(f.States) == 0 {
		f.States = usual
	}
	return f, nil
}

// bulkResult is what a bulk has changed, or would change.
type bulkResult struct {
	DryRun  bool `json:"dry_run"`
	Count   int  `json:"count" doc:"Units that were changed; in a dry run all that would be"`
	Stopped int  `json:"stopped,omitempty" doc:"Those of them that were running: they were asked to stop, and end soon"`
	work.Cost
	More  bool            `json:"more" doc:"Others match: one call changes 10000, the oldest first. Call again"`
	Items []view.UnitItem `json:"items" nullable:"false" doc:"In a dry run the first 20"`
}

type bulkAnswer struct {
	Body bulkResult
}

// previewed is how many units a dry run lists.
const previewed = 20

func viewPreview(p store.Preview, err error) (*bulkAnswer, error) {
	v := bulkResult{DryRun: true, Count: p.Count, Cost: p.Cost, More: p.Count > store.MaxBulk, Items: make([]view.UnitItem, len(p.Units))}
	for i, u := range p.Units {
		v.Items[i].Unit = u
	}
	return &bulkAnswer{v}, err
}

func viewMoved(moved []store.Moved, more bool) *bulkAnswer {
	v := bulkResult{Count: len(moved), More: more, Items: []view.UnitItem{}}
	for _, m := range moved {
		v.Cost = v.Plus(m.Cost())
		if m.State == work.Running {
			v.Stopped++
		}
	}
	return &bulkAnswer{v}
}

type retryUnitsInput struct {
	Bulk
	Body *retryBody
}

func (a *API) retryUnits(ctx context.Context, in *retryUnitsInput) (*bulkAnswer, error) {
	f, err := in.chosen("retried", []work.State{work.Failed, work.TimedOut}, store.Retryable)
	if err != nil {
		return nil, err
	}
	changes, err := in.Body.changes()
	if err != nil {
		return nil, err
	}
	if in.DryRun {
		return viewPreview(a.Store.Units.PreviewRetry(ctx, f, changes, previewed))
	}
	moved, more, err := a.control.RetryUnits(ctx, f, changes)
	if err != nil {
		return nil, err
	}
	return viewMoved(moved, more), nil
}

func (a *API) cancelUnits(ctx context.Context, in *Bulk) (*bulkAnswer, error) {
	f, err := in.chosen("cancelled", store.Cancellable, store.Cancellable)
	if err != nil {
		return nil, err
	}
	if in.DryRun {
		return viewPreview(a.Store.Units.PreviewCancel(ctx, f, previewed))
	}
	moved, more, err := a.control.CancelUnits(ctx, f)
	if err != nil {
		return nil, err
	}
	return viewMoved(moved, more), nil
}
