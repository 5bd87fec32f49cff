package api

import (
	"context"
	"fmt"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// Bulk is what every call that changes many units takes.
type Bulk struct {
	ByFilter
	All    bool `query:"all" doc:"Needed when there is no filter: the call then means every unit"`
	DryRun bool `query:"dry_run" doc:"Change nothing and show what would be changed"`
}

// Resolve refuses parameters without a value: a script whose variable was
// empty must not change more units than it meant to.
func (in *Bulk) Resolve(ctx huma.Context) []error { return blankParameters(ctx) }

func blankParameters(ctx huma.Context) (errs []error) {
	u := ctx.URL()
	for name, values := range u.Query() {
		if slices.Contains(values, "") {
			errs = append(errs, &huma.ErrorDetail{Location: "query." + name, Message: "is empty: give it a value or leave it out"})
		}
	}
	return errs
}

// chosen reads the filter. Without states it means usual, and it may name no
// others than possible.
func (in *Bulk) chosen(verb string, usual, possible []work.State) (store.UnitFilter, error) {
	f, err := in.filter()
	if err != nil {
		return f, err
	}
	for _, s := range f.States {
		if !slices.Contains(possible, s) {
			return f, badParameter("status", fmt.Sprintf("a unit that is %s cannot be %s; give some of %s", s, verb, joined(possible)))
		}
	}
	if !in.All && len(f.States) == 0 && f.Batch == uuid.Nil && f.Backend == "" && f.Worker == "" && f.Class == "" && f.Search == "" && len(f.Labels) == 0 {
		return f, badParameter("all", fmt.Sprintf("without a filter every unit would be %s: give a filter, or all=true if you mean it", verb))
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
	More  bool       `json:"more" doc:"Others match: one call changes 10000, the oldest first. Call again"`
	Items []unitItem `json:"items" nullable:"false" doc:"In a dry run the first 20"`
}

type bulkAnswer struct {
	Body bulkResult
}

// previewed is how many units a dry run lists.
const previewed = 20

func viewPreview(p store.Preview, err error) (*bulkAnswer, error) {
	v := bulkResult{DryRun: true, Count: p.Count, Cost: p.Cost, More: p.Count > store.MaxBulk, Items: make([]unitItem, len(p.Units))}
	for i, u := range p.Units {
		v.Items[i].Unit = u
	}
	return &bulkAnswer{v}, err
}

func viewMoved(moved []store.Moved, more bool) *bulkAnswer {
	v := bulkResult{Count: len(moved), More: more, Items: []unitItem{}}
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
	return a.retryAll(ctx, f, changes)
}

func (a *API) retryAll(ctx context.Context, f store.UnitFilter, changes store.Changes) (*bulkAnswer, error) {
	moved, more, err := a.Store.Units.RetryAll(ctx, f, changes)
	if err != nil {
		return nil, err
	}
	a.requeued(ctx, moved)
	return viewMoved(moved, more), nil
}

// requeued sees to units that were retried.
func (a *API) requeued(ctx context.Context, moved []store.Moved) {
	for _, batch := range a.Requeued(ctx, moved) {
		a.kept.drop(batch)
	}
}

func (a *API) cancelUnits(ctx context.Context, in *Bulk) (*bulkAnswer, error) {
	f, err := in.chosen("cancelled", store.Cancellable, store.Cancellable)
	if err != nil {
		return nil, err
	}
	if in.DryRun {
		return viewPreview(a.Store.Units.PreviewCancel(ctx, f, previewed))
	}
	moved, more, err := a.Store.Units.CancelAll(ctx, f)
	if err != nil {
		return nil, err
	}
	var stopped, ended []uuid.UUID
	for _, m := range moved {
		if m.State == work.Running {
			stopped = append(stopped, m.UnitID)
		} else {
			ended = append(ended, m.UnitID)
		}
	}
	notices := context.WithoutCancel(ctx)
	if err := a.Bell.Cancelled(notices, stopped...); err != nil {
		a.Log.Debug("tell of cancels; the next beat will", "units", len(stopped), "err", err)
	}
	if err := a.Bell.Changed(notices, ended...); err != nil {
		a.Log.Debug("tell of cancelled units", "units", len(ended), "err", err)
	}
	return viewMoved(moved, more), nil
}
