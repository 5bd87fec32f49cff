package api

import (
	"context"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

type listRunsInput struct {
	Status  string `query:"status" doc:"One or more statuses, separated by commas"`
	Backend string `query:"backend" doc:"The worker_type"`
	Unit    string `query:"unit" doc:"Runs of one unit"`
	Search  string `query:"q" doc:"Part of the task, in any case" maxLength:"200"`
	After   string `query:"after" doc:"The next of the page before"`
	Limit   int    `query:"limit" default:"50" minimum:"1" maximum:"500"`
}

// runItem is a run in a list: fields of these names hide those that may be
// large, which the list has not read.
type runItem struct {
	work.Run
	RenderedPrompt leftOut `json:"rendered_prompt,omitempty" hidden:"true"`
	Result         leftOut `json:"result,omitempty" hidden:"true"`
}

type runList struct {
	Body struct {
		Items []runItem  `json:"items" nullable:"false" doc:"Without prompt, result and transcript"`
		Next  *uuid.UUID `json:"next" doc:"Give it as after to get the next page; null on the last"`
	} `nameHint:"RunList"`
}

func (a *API) listRuns(ctx context.Context, in *listRunsInput) (*runList, error) {
	f := store.RunFilter{Tenant: work.DefaultTenant, WorkerType: in.Backend, Search: in.Search, Limit: in.Limit}
	var err error
	if f.Statuses, err = parseStates(in.Status, work.RunStatuses); err != nil {
		return nil, err
	}
	if f.After, err = parseAfter(in.After); err != nil {
		return nil, err
	}
	if in.Unit != "" {
		if f.Unit, err = uuid.Parse(in.Unit); err != nil {
			return nil, badParameter("unit", "must be a unit's id")
		}
	}
	runs, next, err := a.Store.Runs.List(ctx, f)
	if err != nil {
		return nil, err
	}
	var list runList
	list.Body.Items, list.Body.Next = make([]runItem, len(runs)), next
	for i, r := range runs {
		list.Body.Items[i].Run = r
	}
	return &list, nil
}

type runAnswer struct{ Body work.Run }

func (a *API) getRun(ctx context.Context, in *ByID) (*runAnswer, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return nil, err
	}
	run, err := a.Store.Runs.Get(ctx, work.DefaultTenant, id)
	return &runAnswer{run}, err
}
