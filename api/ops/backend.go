package ops

import (
	"context"

	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// BackendView is one backend over all live worker processes.
type BackendView struct {
	Name         string            `json:"name"`
	Status       string            `json:"status" enum:"available,paused,unavailable,unknown" doc:"unknown: no live worker process was told of it"`
	Capabilities []work.Capability `json:"capabilities" nullable:"false" doc:"What a unit may ask of it"`
	Paused       *OperatorPause    `json:"paused" doc:"By an operator, everywhere; null: not so"`
	Slots        int               `json:"slots" doc:"Of worker processes that can run it now, shared with their other backends"`
	Processes    []BackendProcess  `json:"processes" nullable:"false"`
}

// BackendProcess is what one worker process says of a backend.
type BackendProcess struct {
	ID        string      `json:"id"`
	Hostname  string      `json:"hostname"`
	Available bool        `json:"available"`
	Version   string      `json:"version,omitempty"`
	Detail    string      `json:"detail,omitempty" doc:"Why it is not available, and how to mend it"`
	Paused    *work.Pause `json:"paused,omitempty" doc:"Why its units do not begin there just now"`

	Limits []work.ModelLimit `json:"limits,omitempty" doc:"Models whose rate limit was met there; units of other models do not wait for it"`
}

type backendsAnswer struct {
	Body struct {
		Items []BackendView `json:"items" nullable:"false"`
	} `nameHint:"Backends"`
}

func (o *Operations) ListBackends(ctx context.Context, _ *struct{}) (*backendsAnswer, error) {
	processes, err := o.store.Processes.List(ctx)
	if err != nil {
		return nil, err
	}
	pauses, err := o.store.Pauses.List(ctx)
	if err != nil {
		return nil, err
	}
	var answer backendsAnswer
	answer.Body.Items = ViewBackends(processes, pauses)
	return &answer, nil
}

// ViewBackends looks at every backend of the design, so that a caller sees the
// missing ones too.
func ViewBackends(processes []work.Process, pauses []store.Pause) []BackendView {
	views := make([]BackendView, 0, len(backend.Names))
	for _, name := range backend.Names {
		v := BackendView{Name: name, Status: "unknown", Capabilities: backend.Capabilities(name), Processes: []BackendProcess{}}
		for _, p := range processes {
			if o, ok := offerOf(p, name); ok && p.Live {
				v.add(p, o)
			}
		}
		if v.Paused = PauseOf(store.PauseOf(pauses, store.PauseBackend, name)); v.Paused != nil && v.Status == "available" {
			v.Status, v.Slots = "paused", 0
		}
		views = append(views, v)
	}
	return views
}

// statuses of a backend, from the worst to the best: the best of its worker
// processes counts.
var statuses = map[string]int{"unknown": 0, "unavailable": 1, "paused": 2, "available": 3}

func (v *BackendView) add(p work.Process, o work.Offer) {
	status := statusOf(o)
	if statuses[status] > statuses[v.Status] {
		v.Status = status
	}
	if status == "available" {
		v.Slots += p.Slots
	}
	v.Processes = append(v.Processes, BackendProcess{ID: p.ID.String(), Hostname: p.Hostname,
		Available: o.Available, Version: o.Version, Detail: o.Detail, Paused: o.Paused, Limits: o.Limits})
}

func statusOf(o work.Offer) string {
	switch {
	case !o.Available:
		return "unavailable"
	case o.Paused != nil:
		return "paused"
	}
	return "available"
}

func offerOf(p work.Process, name string) (work.Offer, bool) {
	for _, o := range p.Backends {
		if o.Name == name {
			return o, true
		}
	}
	return work.Offer{}, false
}
