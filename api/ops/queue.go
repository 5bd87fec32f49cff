package ops

import (
	"context"
	"slices"
	"strings"

	"piecework/internal/work"
	"piecework/store"
)

// QueueView is one queue: what waits and runs in it.
type QueueView struct {
	Name       string         `json:"name"`
	Queued     int            `json:"queued"`
	Due        int            `json:"due" doc:"Those of the queued units that may begin now"`
	OldestWait *work.Seconds  `json:"oldest_wait" doc:"Seconds since the oldest of the due units was submitted or became due; null when there is none"`
	Running    int            `json:"running"`
	Processes  int            `json:"processes" doc:"Live worker processes that take units from it"`
	Paused     *OperatorPause `json:"paused" doc:"null: its units begin"`
}

type queuesAnswer struct {
	Body struct {
		Items []QueueView `json:"items" nullable:"false" doc:"Queues that have units, are paused, or are served by a live worker process"`
	} `nameHint:"Queues"`
}

func (o *Operations) ListQueues(ctx context.Context, _ *struct{}) (*queuesAnswer, error) {
	queues, err := o.store.Queues.List(ctx, work.DefaultTenant)
	if err != nil {
		return nil, err
	}
	pauses, err := o.store.Pauses.List(ctx)
	if err != nil {
		return nil, err
	}
	processes, err := o.store.Processes.List(ctx)
	if err != nil {
		return nil, err
	}
	var answer queuesAnswer
	answer.Body.Items = viewQueues(queues, pauses, processes)
	return &answer, nil
}

func viewQueues(queues []store.Queue, pauses []store.Pause, processes []work.Process) []QueueView {
	views := map[string]*QueueView{}
	of := func(name string) *QueueView {
		if views[name] == nil {
			views[name] = &QueueView{Name: name}
		}
		return views[name]
	}
	for _, q := range queues {
		*of(q.Name) = QueueView{Name: q.Name, Queued: q.Queued, Due: q.Due, OldestWait: q.Oldest, Running: q.Running}
	}
	for _, p := range pauses {
		if p.Kind == store.PauseQueue && p.Since != nil {
			of(p.Name).Paused = PauseOf(&p)
		}
	}
	for _, p := range processes {
		for _, name := range p.Queues {
			if p.Live {
				of(name).Processes++
			}
		}
	}
	all := make([]QueueView, 0, len(views))
	for _, v := range views {
		all = append(all, *v)
	}
	slices.SortFunc(all, func(a, b QueueView) int { return strings.Compare(a.Name, b.Name) })
	return all
}
