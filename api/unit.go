package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/uuid"

	"piecework/api/query"
	"piecework/api/view"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// unitView is a unit as callers see it.
type unitView struct {
	work.Unit
	Usage unitUsage  `json:"usage" doc:"Of all runs so far"`
	Runs  []work.Run `json:"runs" nullable:"false" doc:"The newest 100, oldest first; run_count tells how many there are, and GET /runs?unit= lists all. Old ones are without rendered_prompt and result when those of the newer have 32 MiB: GET /runs/{id} has them"`
}

// unitUsage is what a unit's runs have used together.
type unitUsage struct {
	work.Usage
	CachedShare float64 `json:"cached_share" doc:"How much of the input came from the provider's prompt cache: cache_read_tokens in cache_read_tokens + cache_creation_tokens + input_tokens, from 0 to 1"`
}

func newUnitView(u work.Unit, runs []work.Run) unitView {
	var all work.Usage
	for _, r := range runs {
		all = all.And(r.Usage)
	}
	return unitView{Unit: u, Usage: unitUsage{all, all.CachedShare()}, Runs: runs}
}

type unitAnswer struct {
	Status   int
	Location string `header:"Location"`
	Replayed string `header:"Idempotent-Replayed" doc:"true when this Idempotency-Key had made the unit before"`
	Body     unitView
}

type submitInput struct {
	Wait string `query:"wait" doc:"Hold the answer until the unit is final, at most this long: seconds, or as \"1m30s\"; more than 5 minutes count as 5 minutes" example:"30s"`
	Key  string `header:"Idempotency-Key" doc:"Sent again with the same body it names the same unit"`
	Body jobs.UnitBody
}

func (a *API) submit(ctx context.Context, in *submitInput) (*unitAnswer, error) {
	wait, err := parseWait(in.Wait)
	if err != nil {
		return nil, err
	}
	key, err := idempotencyKey(in.Key)
	if err != nil {
		return nil, err
	}
	unit, replayed, err := a.accept(ctx, key, &in.Body)
	if err != nil {
		return nil, err
	}
	if !replayed && wait == 0 {
		return newlyAccepted(unit), nil
	}
	answer, err := a.answerUnit(ctx, unit.ID, wait)
	if err != nil { // the unit is committed, whatever became of the look at it
		a.Log.Warn("unit accepted, but it could not be read", "unit", unit.ID, "err", err)
		answer = newlyAccepted(unit)
	}
	if replayed {
		answer.Replayed = "true"
	}
	return answer, nil
}

// newlyAccepted is the answer about a unit that has no runs yet.
func newlyAccepted(unit work.Unit) *unitAnswer {
	return &unitAnswer{Status: http.StatusAccepted, Location: "/work-units/" + unit.ID.String(), Body: newUnitView(unit, []work.Run{})}
}

// accept commits a new unit, or finds the one that its key made before. A
// repeat is answered before the body is looked at again: what it names may be
// gone by now.
func (a *API) accept(ctx context.Context, key string, body *jobs.UnitBody) (unit work.Unit, replayed bool, err error) {
	var hash []byte
	if key != "" {
		hash = fingerprint(rawBody(ctx))
		unit, err = a.Store.Units.Before(ctx, work.DefaultTenant, key, hash)
		if !errors.Is(err, work.ErrNotFound) {
			return unit, true, err
		}
	}
	n, err := a.NewUnit(ctx, body)
	if err != nil {
		return work.Unit{}, false, err
	}
	n.IdempotencyKey, n.BodyHash = key, hash
	return a.Submit(ctx, n)
}

// answerUnit reads a unit for an answer: 200 when it is final, 202 while it is
// not.
func (a *API) answerUnit(ctx context.Context, id uuid.UUID, wait waitFor) (*unitAnswer, error) {
	view, err := a.await(ctx, id, wait)
	if err != nil {
		return nil, err
	}
	answer := &unitAnswer{Status: http.StatusAccepted, Location: "/work-units/" + id.String(), Body: view}
	if wait > 0 && view.State.Final() {
		answer.Status = http.StatusOK
	}
	return answer, nil
}

func (a *API) viewUnit(ctx context.Context, id uuid.UUID) (unitView, error) {
	unit, err := a.Store.Units.Get(ctx, work.DefaultTenant, id)
	if err != nil {
		return unitView{}, err
	}
	runs, err := a.Store.Runs.OfUnit(ctx, id)
	view := newUnitView(unit, runs)
	if err == nil && len(runs) == store.MaxUnitRuns { // there may be others
		view.Usage.Usage, err = a.Store.Runs.UnitUsage(ctx, id)
		view.Usage.CachedShare = view.Usage.Usage.CachedShare()
	}
	return view, err
}

type getUnitInput struct {
	query.ByID
	Wait string `query:"wait" doc:"Hold the answer until the unit is final, at most this long: seconds, or as \"1m30s\"; more than 5 minutes count as 5 minutes" example:"30s"`
}

type viewAnswer struct{ Body unitView }

func (a *API) getUnit(ctx context.Context, in *getUnitInput) (*viewAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	wait, err := parseWait(in.Wait)
	if err != nil {
		return nil, err
	}
	view, err := a.await(ctx, id, wait)
	return &viewAnswer{view}, err
}

type listUnitsInput struct {
	query.Units
	After string `query:"after" doc:"The next of the page before"`
	Limit int    `query:"limit" default:"50" minimum:"1" maximum:"500"`
}

type unitList struct {
	Body struct {
		Items []view.UnitItem `json:"items" nullable:"false" doc:"Without payload and output; prompts are cut"`
		Next  *uuid.UUID      `json:"next" doc:"Give it as after to get the next page; null on the last"`
	} `nameHint:"UnitList"`
}

func (a *API) listUnits(ctx context.Context, in *listUnitsInput) (*unitList, error) {
	f, err := in.Filter()
	if err != nil {
		return nil, err
	}
	f.Limit = in.Limit
	if f.After, err = query.After(in.After); err != nil {
		return nil, err
	}
	units, next, err := a.Store.Units.List(ctx, f)
	if err != nil {
		return nil, err
	}
	var list unitList
	list.Body.Items, list.Body.Next = make([]view.UnitItem, len(units)), next
	for i, u := range units {
		list.Body.Items[i].Unit = u
	}
	return &list, nil
}

func (a *API) cancelUnit(ctx context.Context, in *query.ByID) (*unitAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	if err := a.control.CancelUnit(ctx, work.DefaultTenant, id); err != nil {
		return nil, err
	}
	return a.answerUnit(ctx, id, 0)
}

type retryInput struct {
	query.ByID
	Body *retryBody
}

type retryBody struct {
	Model    *string `json:"model,omitempty" maxLength:"200" doc:"Instead of the unit's model"`
	Prompt   *string `json:"prompt,omitempty" minLength:"1" doc:"Instead of the unit's prompt"`
	MaxTurns *int    `json:"max_turns,omitempty" minimum:"1" maximum:"10000" doc:"Instead of the unit's max_turns"`
	OnDenied *string `json:"on_denied,omitempty" enum:"fail,note" doc:"Instead of the unit's on_denied"`
}

func (b *retryBody) changes() (store.Changes, error) {
	if b == nil {
		return store.Changes{}, nil
	}
	if b.Prompt != nil {
		if err := jobs.CheckPrompt(*b.Prompt); err != nil {
			return store.Changes{}, err
		}
	}
	return store.Changes(*b), nil
}

func (a *API) retryUnit(ctx context.Context, in *retryInput) (*unitAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	changes, err := in.Body.changes()
	if err != nil {
		return nil, err
	}
	if err := a.control.RetryUnit(ctx, work.DefaultTenant, id, changes); err != nil {
		return nil, err
	}
	return a.answerUnit(ctx, id, 0)
}
