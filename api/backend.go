package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"piecework/api/web"
	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// backendView is one backend over all live worker processes.
type backendView struct {
	Name         string            `json:"name"`
	Status       string            `json:"status" enum:"available,paused,unavailable,unknown" doc:"unknown: no live worker process was told of it"`
	Capabilities []work.Capability `json:"capabilities" nullable:"false" doc:"What a unit may ask of it"`
	Paused       *operatorPause    `json:"paused" doc:"By an operator, everywhere; null: not so"`
	Slots        int               `json:"slots" doc:"Of worker processes that can run it now, shared with their other backends"`
	Processes    []backendProcess  `json:"processes" nullable:"false"`
}

// backendProcess is what one worker process says of a backend.
type backendProcess struct {
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
		Items []backendView `json:"items" nullable:"false"`
	} `nameHint:"Backends"`
}

func (a *API) listBackends(ctx context.Context, _ *struct{}) (*backendsAnswer, error) {
	processes, err := a.Store.Processes.List(ctx)
	if err != nil {
		return nil, err
	}
	pauses, err := a.Store.Pauses.List(ctx)
	if err != nil {
		return nil, err
	}
	var answer backendsAnswer
	answer.Body.Items = viewBackends(processes, pauses)
	return &answer, nil
}

// viewBackends looks at every backend of the design, so that a caller sees the
// missing ones too.
func viewBackends(processes []work.Process, pauses []store.Pause) []backendView {
	views := make([]backendView, 0, len(backend.Names))
	for _, name := range backend.Names {
		v := backendView{Name: name, Status: "unknown", Capabilities: backend.Capabilities(name), Processes: []backendProcess{}}
		for _, p := range processes {
			if o, ok := offerOf(p, name); ok && p.Live {
				v.add(p, o)
			}
		}
		if v.Paused = viewPause(store.PauseOf(pauses, store.PauseBackend, name)); v.Paused != nil && v.Status == "available" {
			v.Status, v.Slots = "paused", 0
		}
		views = append(views, v)
	}
	return views
}

// statuses of a backend, from the worst to the best: the best of its worker
// processes counts.
var statuses = map[string]int{"unknown": 0, "unavailable": 1, "paused": 2, "available": 3}

func (v *backendView) add(p work.Process, o work.Offer) {
	status := statusOf(o)
	if statuses[status] > statuses[v.Status] {
		v.Status = status
	}
	if status == "available" {
		v.Slots += p.Slots
	}
	v.Processes = append(v.Processes, backendProcess{ID: p.ID.String(), Hostname: p.Hostname,
		Available: o.Available, Version: o.Version, Detail: o.Detail, Paused: o.Paused, Limits: o.Limits})
}

// shut lists what keeps units from beginning in some of the worker processes that
// the backend is in: what each of them met with its own credential.
func (v *backendView) shut(now time.Time) (list []web.Shut) {
	of := 0
	note := func(s web.Shut) {
		if s.Until != nil && !s.Until.After(now) {
			return // it is over, and the process has not said so yet
		}
		i := slices.IndexFunc(list, func(known web.Shut) bool { return known.Model == s.Model && known.Class == s.Class })
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
			note(web.Shut{Class: p.Paused.Class, Message: p.Paused.Message, Until: p.Paused.Until})
		}
		for _, l := range p.Limits {
			if l.Until != nil {
				note(web.Shut{Model: l.Name(), Class: work.ClassRateLimit, Message: l.Message, Until: l.Until})
			}
		}
	}
	for i := range list {
		list[i].Of = of
	}
	slices.SortFunc(list, func(a, b web.Shut) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Class, b.Class)) })
	return list
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
