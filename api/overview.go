package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/web"
	"piecework/internal/work"
	"piecework/store"
)

// stats is what the overview shows, for scripts.
type stats struct {
	work.Figures
	Queues    []queueView      `json:"queues" nullable:"false" doc:"As they were at to: now, or some seconds ago when very many units wait or have just ended"`
	Processes []work.Process   `json:"worker_processes" nullable:"false" doc:"Those that have not stopped, newest first"`
	Checks    map[string]check `json:"checks" doc:"As in /readyz"`
}

type statsInput struct {
	Window string `query:"window" enum:"1h,24h,7d,30d" default:"24h" doc:"How far back: minutes of an hour, hours of a day, quarters of seven days, or thirty days"`
}

type statsAnswer struct {
	Body stats `nameHint:"Stats"`
}

func (a *API) getStats(ctx context.Context, in *statsInput) (*statsAnswer, error) {
	window, _ := work.WindowOf(cmp.Or(in.Window, work.DefaultWindow)) // the schema knows the others
	s, _, err := a.stats(ctx, window, time.Now())
	return &statsAnswer{s}, err
}

func (a *API) stats(ctx context.Context, window work.Window, now time.Time) (s stats, pauses []store.Pause, err error) {
	counted, err := a.counted[window.Name].get(ctx, func(ctx context.Context) (counted, int64, error) { return a.count(ctx, window, now) })
	if err != nil {
		return s, nil, err
	}
	s.Figures = counted.figures
	if pauses, err = a.Store.Pauses.List(ctx); err != nil {
		return s, nil, err
	}
	if s.Processes, err = a.Store.Processes.List(ctx); err != nil {
		return s, nil, err
	}
	s.Queues = viewQueues(counted.queues, pauses, s.Processes)
	ready, err := a.readyz(ctx, nil)
	if err != nil {
		return s, nil, err
	}
	s.Checks = ready.Body.Checks
	s.Checks["reconciler"] = a.checkReconciler(ctx)
	return s, pauses, nil
}

// counted is what the overview counts rows for. Its time is the figures' To.
type counted struct {
	figures work.Figures
	queues  []store.Queue
}

func (a *API) count(ctx context.Context, window work.Window, now time.Time) (c counted, rows int64, err error) {
	if c.figures, err = a.Store.Overview.Figures(ctx, work.DefaultTenant, window, now); err != nil {
		return c, 0, err
	}
	if c.queues, err = a.Store.Queues.List(ctx, work.DefaultTenant); err != nil {
		return c, 0, err
	}
	rows = c.figures.Untallied
	for _, q := range c.queues {
		rows += int64(q.Queued + q.Running)
	}
	return c, rows, nil
}

// reconcilerLate is how long a reconciler may be silent: it does its slow
// duties once a minute.
const reconcilerLate = 3 * time.Minute

func (a *API) checkReconciler(ctx context.Context) check {
	ago, err := a.Store.Overview.ReconcilerSeen(ctx)
	switch {
	case err != nil:
		return check{Detail: "cannot be looked for"}
	case ago == nil:
		return check{Detail: "was never here: no worker process has run yet, so nothing frees lost units or rings lost bells"}
	case *ago > reconcilerLate:
		return check{Detail: fmt.Sprintf("was last here %s ago: lost units are not freed; start a worker process", ago.Round(time.Minute))}
	}
	return check{OK: true, Detail: fmt.Sprintf("was here %s ago", ago.Round(time.Second))}
}

func (a *API) overviewPage(c echo.Context) error {
	window, ok := work.WindowOf(cmp.Or(c.QueryParam("window"), work.DefaultWindow))
	if !ok {
		names := make([]string, len(work.Windows))
		for i, w := range work.Windows {
			names[i] = w.Name
		}
		return badParameter("window", "must be one of "+strings.Join(names, ", "))
	}
	ctx, now := c.Request().Context(), time.Now()
	s, pauses, err := a.stats(ctx, window, now)
	if err != nil {
		return err
	}
	schedules, err := a.Store.Schedules.List(ctx, work.DefaultTenant)
	if err != nil {
		return err
	}
	batches, err := a.Store.Batches.Count(ctx, store.BatchFilter{Tenant: work.DefaultTenant}, maxCounts)
	if err != nil {
		return err
	}
	page := web.Overview{Figures: s.Figures, Processes: s.Processes, Schedules: schedules, Batches: batches, Now: now}
	for _, name := range slices.Sorted(maps.Keys(s.Checks)) {
		// What is said of the backends has a place of its own.
		if name != "backends" && !strings.HasPrefix(name, "backend ") {
			page.Checks = append(page.Checks, web.Check{Name: name, OK: s.Checks[name].OK, Detail: s.Checks[name].Detail})
		}
	}
	for _, q := range s.Queues {
		view := web.Queue{Name: q.Name, Scheduled: q.Queued - q.Due, Due: q.Due, Running: q.Running, Processes: q.Processes, OldestWait: q.OldestWait}
		if q.Paused != nil {
			view.Paused = q.Paused.words()
		}
		page.Queues = append(page.Queues, view)
	}
	for _, b := range viewBackends(s.Processes, pauses) {
		view := web.Backend{Name: b.Name, Status: b.Status, Slots: b.Slots, Shut: b.shut(now)}
		if b.Paused != nil { // also one that is not there
			view.Status = "paused"
		}
		if view.Status == "paused" || view.Status == "unavailable" {
			view.Detail = b.trouble()
		}
		page.Backends = append(page.Backends, view)
	}
	return a.render(c, page)
}

func (a *API) processesPage(c echo.Context) error {
	ctx := c.Request().Context()
	processes, err := a.Store.Processes.List(ctx)
	if err != nil {
		return err
	}
	runs, _, err := a.Store.Runs.List(ctx, store.RunFilter{Tenant: work.DefaultTenant, Statuses: []work.RunStatus{work.RunRunning}, Limit: 1000})
	if err != nil {
		return err
	}
	held := map[uuid.UUID][]work.Run{}
	for _, r := range runs {
		if r.WorkerProcess != nil {
			held[*r.WorkerProcess] = append(held[*r.WorkerProcess], r)
		}
	}
	page := web.Processes{Now: time.Now()}
	for _, p := range processes {
		page.Processes = append(page.Processes, web.Process{Process: p, Runs: held[p.ID]})
	}
	return a.render(c, page)
}
