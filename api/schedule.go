package api

import (
	"context"

	"piecework/api/query"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

type scheduleInput struct {
	query.ByName
	Body jobs.ScheduleBody
}

type scheduleAnswer struct{ Body work.Schedule }

type scheduleList struct {
	Body struct {
		Items []work.Schedule `json:"items" nullable:"false"`
	} `nameHint:"ScheduleList"`
}

func (a *API) putSchedule(ctx context.Context, in *scheduleInput) (*scheduleAnswer, error) {
	if !query.Name.MatchString(in.Name) {
		return nil, work.Invalidf("#/name", "%.100q: a name has 1 to 64 lower-case letters, digits, - and _, and begins with no sign", in.Name)
	}
	made, err := a.NewSchedule(ctx, in.Name, &in.Body)
	if err != nil {
		return nil, err
	}
	saved, err := a.Store.Schedules.Put(ctx, made)
	return &scheduleAnswer{saved}, err
}

func (a *API) getSchedule(ctx context.Context, in *query.ByName) (*scheduleAnswer, error) {
	s, err := a.Store.Schedules.Get(ctx, work.DefaultTenant, in.Name)
	return &scheduleAnswer{s}, err
}

func (a *API) listSchedules(ctx context.Context, _ *struct{}) (*scheduleList, error) {
	schedules, err := a.Store.Schedules.List(ctx, work.DefaultTenant)
	var list scheduleList
	list.Body.Items = schedules
	return &list, err
}

func (a *API) deleteSchedule(ctx context.Context, in *query.ByName) (*struct{}, error) {
	return nil, a.Store.Schedules.Delete(ctx, work.DefaultTenant, in.Name)
}

// runSchedule makes a unit now, besides those at the schedule's times.
func (a *API) runSchedule(ctx context.Context, in *query.ByName) (*unitAnswer, error) {
	s, err := a.Store.Schedules.Get(ctx, work.DefaultTenant, in.Name)
	if err != nil {
		return nil, err
	}
	unit, _, err := a.Submit(ctx, store.NewUnit{Unit: jobs.ScheduledUnit(s)})
	if err != nil {
		return nil, err
	}
	return a.answerUnit(ctx, unit.ID, 0)
}
