package api

import (
	"context"

	"github.com/google/uuid"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/api/view"
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

type runList struct {
	Body struct {
		Items []view.RunItem `json:"items" nullable:"false" doc:"Without prompt, result and transcript"`
		Next  *uuid.UUID     `json:"next" doc:"Give it as after to get the next page; null on the last"`
	} `nameHint:"RunList"`
}

func (a *API) listRuns(ctx context.Context, in *listRunsInput) (*runList, error) {
	f := store.RunFilter{Tenant: work.DefaultTenant, WorkerType: in.Backend, Search: in.Search, Limit: in.Limit}
	var err error
	if f.Statuses, err = query.States(in.Status, work.RunStatuses); err != nil {
		return nil, err
	}
	if f.After, err = query.After(in.After); err != nil {
		return nil, err
	}
	if in.Unit != "" {
		if f.Unit, err = uuid.Parse(in.Unit); err != nil {
			return nil, problem.Parameter("unit", "must be a unit's id")
		}
	}
	runs, next, err := a.Store.Runs.List(ctx, f)
	if err != nil {
		return nil, err
	}
	var list runList
	list.Body.Items, list.Body.Next = make([]view.RunItem, len(runs)), next
	for i, r := range runs {
		list.Body.Items[i].Run = r
	}
	return &list, nil
}

type runAnswer struct{ Body work.Run }

func (a *API) getRun(ctx context.Context, in *query.ByID) (*runAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	run, err := a.Store.Runs.Get(ctx, work.DefaultTenant, id)
	return &runAnswer{run}, err
}
