package ops

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"piecework/internal/work"
	"piecework/store"
)

// Stats is what the overview shows, for scripts.
type Stats struct {
	work.Figures
	Queues    []QueueView      `json:"queues" nullable:"false" doc:"As they were at to: now, or some seconds ago when very many units wait or have just ended"`
	Processes []work.Process   `json:"worker_processes" nullable:"false" doc:"Those that have not stopped, newest first"`
	Checks    map[string]Check `json:"checks" doc:"As in /readyz"`
}

type statsInput struct {
	Window string `query:"window" enum:"1h,24h,7d,30d" default:"24h" doc:"How far back: minutes of an hour, hours of a day, quarters of seven days, or thirty days"`
}

type statsAnswer struct {
	Body Stats `nameHint:"Stats"`
}

func (o *Operations) GetStats(ctx context.Context, in *statsInput) (*statsAnswer, error) {
	window, _ := work.WindowOf(cmp.Or(in.Window, work.DefaultWindow)) // the schema knows the others
	s, _, err := o.Stats(ctx, window, time.Now())
	return &statsAnswer{s}, err
}

func (o *Operations) Stats(ctx context.Context, window work.Window, now time.Time) (s Stats, pauses []store.Pause, err error) {
	counted, err := o.counted[window.Name].get(ctx, func(ctx context.Context) (counted, int64, error) { return o.count(ctx, window, now) })
	if err != nil {
		return s, nil, err
	}
	s.Figures = counted.figures
	if pauses, err = o.store.Pauses.List(ctx); err != nil {
		return s, nil, err
	}
	if s.Processes, err = o.store.Processes.List(ctx); err != nil {
		return s, nil, err
	}
	s.Queues = viewQueues(counted.queues, pauses, s.Processes)
	ready, err := o.Readyz(ctx, nil)
	if err != nil {
		return s, nil, err
	}
	s.Checks = ready.Body.Checks
	s.Checks["reconciler"] = o.checkReconciler(ctx)
	return s, pauses, nil
}

// counted is what the overview counts rows for. Its time is the figures' To.
type counted struct {
	figures work.Figures
	queues  []store.Queue
}

func (o *Operations) count(ctx context.Context, window work.Window, now time.Time) (c counted, rows int64, err error) {
	if c.figures, err = o.store.Overview.Figures(ctx, work.DefaultTenant, window, now); err != nil {
		return c, 0, err
	}
	if c.queues, err = o.store.Queues.List(ctx, work.DefaultTenant); err != nil {
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

func (o *Operations) checkReconciler(ctx context.Context) Check {
	ago, err := o.store.Overview.ReconcilerSeen(ctx)
	switch {
	case err != nil:
		return Check{Detail: "cannot be looked for"}
	case ago == nil:
		return Check{Detail: "was never here: no worker process has run yet, so nothing frees lost units or rings lost bells"}
	case *ago > reconcilerLate:
		return Check{Detail: fmt.Sprintf("was last here %s ago: lost units are not freed; start a worker process", ago.Round(time.Minute))}
	}
	return Check{OK: true, Detail: fmt.Sprintf("was here %s ago", ago.Round(time.Second))}
}

// MaxCounts is how many units of one state, or units that were searched for, are
// counted at most.
const MaxCounts = 10_000

// unitCounts are units by state.
type unitCounts struct {
	ByState map[work.State]int
	Most    int // a count that is not below it may be higher
	At      time.Time
}

// CountUnits counts the units of a filter by state. When the filter takes all units
// and they are many, the counts are cached for a few seconds.
func (o *Operations) CountUnits(ctx context.Context, f store.UnitFilter, all bool) (unitCounts, error) {
	ask := func(ctx context.Context) (c unitCounts, rows int64, err error) {
		c.At = time.Now()
		c.Most = MaxCounts
		var whole bool
		if c.ByState, whole, err = o.store.Units.Count(ctx, f, MaxCounts); !whole {
			c.Most = 0
		}
		for _, n := range c.ByState {
			rows += int64(n)
		}
		return c, rows, err
	}
	if all {
		return o.unitCounts.get(ctx, ask)
	}
	c, _, err := ask(ctx)
	return c, err
}
