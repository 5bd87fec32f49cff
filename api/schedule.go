package api

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// scheduleBody is what a caller wants to happen again and again.
type scheduleBody struct {
	Cron     string   `json:"cron" doc:"Five fields (minute hour day month weekday), or @hourly, @daily, @every 90s" example:"0 6 * * 1-5"`
	Timezone string   `json:"timezone,omitempty" doc:"An IANA name; UTC when left out" example:"Europe/Berlin"`
	CatchUp  string   `json:"catch_up,omitempty" enum:"skip,one,all" doc:"About times that passed while nothing ran: make no unit, one, or one for each; one when left out"`
	Paused   bool     `json:"paused,omitempty" doc:"Makes no units until it is put again without this"`
	Unit     unitBody `json:"unit" doc:"What its units are asked for; without not_before, delay, deadline and expires_at"`
}

type scheduleInput struct {
	ByName
	Body scheduleBody
}

// ByName is the name of one thing in the path.
type ByName struct {
	Name string `path:"name"`
}

type scheduleAnswer struct{ Body work.Schedule }

type scheduleList struct {
	Body struct {
		Items []work.Schedule `json:"items" nullable:"false"`
	} `nameHint:"ScheduleList"`
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

func (a *API) putSchedule(ctx context.Context, in *scheduleInput) (*scheduleAnswer, error) {
	if !nameForm.MatchString(in.Name) {
		return nil, work.Invalidf("#/name", "%.100q: a name has 1 to 64 lower-case letters, digits, - and _, and begins with no sign", in.Name)
	}
	b := &in.Body
	s := work.Schedule{Tenant: work.DefaultTenant, Name: in.Name, Cron: strings.TrimSpace(b.Cron),
		Timezone: cmp.Or(b.Timezone, "UTC"), CatchUp: work.CatchUp(cmp.Or(b.CatchUp, string(work.CatchUpOne))), Paused: b.Paused}
	var err error
	if s.NextAt, err = s.After(time.Now()); err != nil {
		return nil, err
	}
	n, err := a.newUnit(ctx, &b.Unit)
	if err != nil {
		return nil, within("#/unit", err)
	}
	if n.NotBefore != nil || n.Delay > 0 || n.Deadline != nil || n.ExpiresAt != nil {
		return nil, work.Invalidf("#/unit", "a scheduled unit has no not_before, delay, deadline or expires_at: the schedule says when it runs, and timeout for how long")
	}
	s.Unit, s.Title = n.Spec, n.Title
	saved, err := a.Store.PutSchedule(ctx, s)
	return &scheduleAnswer{saved}, err
}

// within points an error about a part of the body at the whole.
func within(pointer string, err error) error {
	var invalid *work.Invalid
	if errors.As(err, &invalid) {
		return &work.Invalid{Pointer: pointer + strings.TrimPrefix(invalid.Pointer, "#"), Detail: invalid.Detail}
	}
	var fields *Problem
	if errors.As(err, &fields) {
		for i := range fields.Errors {
			fields.Errors[i] = pointAt(pointer, fields.Errors[i])
		}
	}
	return err
}

func (a *API) getSchedule(ctx context.Context, in *ByName) (*scheduleAnswer, error) {
	s, err := a.Store.Schedule(ctx, work.DefaultTenant, in.Name)
	return &scheduleAnswer{s}, err
}

func (a *API) listSchedules(ctx context.Context, _ *struct{}) (*scheduleList, error) {
	schedules, err := a.Store.Schedules(ctx, work.DefaultTenant)
	var list scheduleList
	list.Body.Items = schedules
	return &list, err
}

func (a *API) deleteSchedule(ctx context.Context, in *ByName) (*struct{}, error) {
	return nil, a.Store.DeleteSchedule(ctx, work.DefaultTenant, in.Name)
}

// runSchedule makes a unit now, besides those at the schedule's times.
func (a *API) runSchedule(ctx context.Context, in *ByName) (*unitAnswer, error) {
	s, err := a.Store.Schedule(ctx, work.DefaultTenant, in.Name)
	if err != nil {
		return nil, err
	}
	unit, _, err := a.Store.Accept(ctx, store.NewUnit{Unit: jobs.ScheduledUnit(s)})
	if err != nil {
		return nil, err
	}
	a.accepted.WithLabelValues(unit.Backend).Inc()
	a.ring(ctx, unit)
	return a.answerUnit(ctx, unit.ID, 0)
}
