package web

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/ops"
	"piecework/api/problem"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/store"
)

// overviews are the pages of operators.
type overviews struct{ *site }

func (a overviews) overviewPage(c echo.Context) error {
	window, ok := work.WindowOf(cmp.Or(c.QueryParam("window"), work.DefaultWindow))
	if !ok {
		names := make([]string, len(work.Windows))
		for i, w := range work.Windows {
			names[i] = w.Name
		}
		return problem.Parameter("window", "must be one of "+strings.Join(names, ", "))
	}
	ctx, now := c.Request().Context(), time.Now()
	s, pauses, err := a.Ops.Stats(ctx, window, now)
	if err != nil {
		return err
	}
	schedules, err := a.Store.Schedules.List(ctx, work.DefaultTenant)
	if err != nil {
		return err
	}
	batches, err := a.Store.Batches.Count(ctx, store.BatchFilter{Tenant: work.DefaultTenant}, ops.MaxCounts)
	if err != nil {
		return err
	}
	shown := page.Overview{Figures: s.Figures, Processes: s.Processes, Schedules: schedules, Batches: batches, Now: now}
	for _, name := range slices.Sorted(maps.Keys(s.Checks)) {
		// What is said of the backends has a place of its own.
		if name != "backends" && !strings.HasPrefix(name, "backend ") {
			shown.Checks = append(shown.Checks, page.Check{Name: name, OK: s.Checks[name].OK, Detail: s.Checks[name].Detail})
		}
	}
	for _, q := range s.Queues {
		view := page.Queue{Name: q.Name, Scheduled: q.Queued - q.Due, Due: q.Due, Running: q.Running, Processes: q.Processes,
			OldestWait: q.OldestWait}
		if q.Paused != nil {
			view.Paused = q.Paused.Words()
		}
		shown.Queues = append(shown.Queues, view)
	}
	for _, b := range ops.ViewBackends(s.Processes, pauses) {
		view := page.Backend{Name: b.Name, Status: b.Status, Slots: b.Slots, Shut: shut(&b, now)}
		if b.Paused != nil { // also one that is not there
			view.Status = "paused"
		}
		if view.Status == "paused" || view.Status == "unavailable" {
			view.Detail = b.Trouble()
		}
		shown.Backends = append(shown.Backends, view)
	}
	return a.render(c, shown)
}

func (a overviews) processesPage(c echo.Context) error {
	ctx := c.Request().Context()
	processes, err := a.Store.Processes.List(ctx)
	if err != nil {
		return err
	}
	runs, _, err := a.Store.Runs.List(ctx, store.RunFilter{Tenant: work.DefaultTenant, Statuses: []work.RunStatus{work.RunRunning},
		Limit: 1000})
	if err != nil {
		return err
	}
	held := map[uuid.UUID][]work.Run{}
	for _, r := range runs {
		if r.WorkerProcess != nil {
			held[*r.WorkerProcess] = append(held[*r.WorkerProcess], r)
		}
	}
	shown := page.Processes{Now: time.Now()}
	for _, p := range processes {
		shown.Processes = append(shown.Processes, page.Process{Process: p, Runs: held[p.ID]})
	}
	return a.render(c, shown)
}

// shut lists what keeps units from beginning in some of the worker processes that
// the backend is in: what each of them met with its own credential.
func shut(v *ops.BackendView, now time.Time) (list []page.Shut) {
	of := 0
	note := func(s page.Shut) {
		if s.Until != nil && !s.Until.After(now) {
			return // it is over, and the process has not said so yet
		}
		i := slices.IndexFunc(list, func(known page.Shut) bool { return known.Model == s.Model && known.Class == s.Class })
		if i < 0 {
			i, list = len(list), append(list, s)
		}
		list[i].Processes++
		if list[i].Until != nil && (s.Until == nil || s.Until.After(*list[i].Until)) {
			list[i].Until = s.Until
		}
	}
	for _, p := range v.Processes {
		if !p.Available {
			continue
		}
		of++
		if p.Paused != nil && v.Status == "available" { // else it is told of the whole backend
			note(page.Shut{Class: p.Paused.Class, Message: p.Paused.Message, Until: p.Paused.Until})
		}
		for _, l := range p.Limits {
			if l.Until != nil {
				note(page.Shut{Model: l.Name(), Class: work.ClassRateLimit, Message: l.Message, Until: l.Until})
			}
		}
	}
	for i := range list {
		list[i].Of = of
	}
	slices.SortFunc(list, func(a, b page.Shut) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Class, b.Class)) })
	return list
}
