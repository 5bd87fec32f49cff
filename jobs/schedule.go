package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
	"piecework/store"
)

// makeScheduled makes the units of schedules whose time has come. Each has an
// idempotency key made of the schedule's name and the time, so whoever does it
// again, after a death in the middle or beside another process, finds the unit
// that is there.
func (r *Reconciler) makeScheduled(ctx context.Context) error {
	due, now, err := r.Store.Schedules.Due(ctx, atOnce)
	if err != nil {
		return fmt.Errorf("find due schedules: %w", err)
	}
	var errs []error
	for _, s := range due {
		if err := r.makeUnits(ctx, s, now); err != nil { // must not keep the others waiting
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Reconciler) makeUnits(ctx context.Context, s work.Schedule, now time.Time) error {
	times, next, err := s.Due(now)
	if err != nil {
		return err
	}
	if next.IsZero() { // no time is left
		next = now.AddDate(100, 0, 0)
	}
	var last uuid.UUID
	for _, at := range times {
		key := "schedule " + s.Name + " " + at.UTC().Format(time.RFC3339)
		hash := sha256.Sum256([]byte(key))
		u, _, err := r.Store.Units.Accept(ctx, store.NewUnit{Unit: ScheduledUnit(s), IdempotencyKey: key, BodyHash: hash[:]})
		if err != nil {
			return fmt.Errorf("schedule %s: make the unit of %s: %w", s.Name, at, err)
		}
		last = u.ID
		if err := r.Queue.Enqueue(ctx, store.MessageOf(u)); err != nil {
			r.Log.Debug("enqueue a scheduled unit", "unit", u.ID, "err", err)
		}
	}
	return r.Store.Schedules.Advance(ctx, s, next, last)
}

// ScheduledUnit is a new unit as a schedule asks for it.
func ScheduledUnit(s work.Schedule) work.Unit {
	return work.Unit{ID: uuid.Must(uuid.NewV7()), Tenant: s.Tenant, Title: s.Title, Spec: s.Unit}
}

// ScheduleBody is what a caller wants to happen again and again.
type ScheduleBody struct {
	Cron     string   `json:"cron" doc:"Five fields (minute hour day month weekday), or @hourly, @daily, @every 90s" example:"0 6 * * 1-5"`
	Timezone string   `json:"timezone,omitempty" doc:"An IANA name; UTC when left out" example:"Europe/Berlin"`
	CatchUp  string   `json:"catch_up,omitempty" enum:"skip,one,all" doc:"About times that passed while nothing ran: make no unit, one, or one for each; one when left out"`
	Paused   bool     `json:"paused,omitempty" doc:"Makes no units until it is put again without this"`
	Unit     UnitBody `json:"unit" doc:"What its units are asked for; without not_before, delay, deadline and expires_at"`
}

// NewSchedule turns what is said about a schedule into one.
func (r *Rules) NewSchedule(ctx context.Context, name string, b *ScheduleBody) (work.Schedule, error) {
	s := work.Schedule{Tenant: work.DefaultTenant, Name: name, Cron: strings.TrimSpace(b.Cron),
		Timezone: cmp.Or(b.Timezone, "UTC"), CatchUp: work.CatchUp(cmp.Or(b.CatchUp, string(work.CatchUpOne))), Paused: b.Paused}
	var err error
	if s.NextAt, err = s.After(time.Now()); err != nil {
		return s, err
	}
	n, err := r.NewUnit(ctx, &b.Unit)
	if err != nil {
		return s, work.Within("#/unit", err)
	}
	if n.NotBefore != nil || n.Delay > 0 || n.Deadline != nil || n.ExpiresAt != nil {
		return s, work.Invalidf("#/unit", "a scheduled unit has no not_before, delay, deadline or expires_at: the schedule says when it runs, and timeout for how long")
	}
	s.Unit, s.Title = n.Spec, n.Title
	return s, nil
}
