package ops

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"piecework/api/problem"
	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// OperatorPause is why a person has paused something.
type OperatorPause struct {
	Since time.Time `json:"since"`
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
}

func PauseOf(p *store.Pause) *OperatorPause {
	if p == nil || p.Since == nil {
		return nil
	}
	return &OperatorPause{Since: p.Since.UTC(), By: p.By, Why: p.Why}
}

// Words are the pause for a person.
func (p *OperatorPause) Words() string {
	text := "paused since " + work.When(p.Since)
	if p.By != "" {
		text += " by " + p.By
	}
	if p.Why != "" {
		text += ": " + p.Why
	}
	return text
}

type NewPause struct {
	By  string `json:"by,omitempty" maxLength:"200" doc:"Who pauses it"`
	Why string `json:"why,omitempty" maxLength:"1000" doc:"For those who wonder why nothing happens"`
}

// PauseState is a queue or a backend after a pause or a resume.
type PauseState struct {
	Name   string         `json:"name"`
	Paused *OperatorPause `json:"paused" doc:"null: its units begin"`
}

type pauseAnswer struct{ Body PauseState }

// ByQueue is a queue in the path.
type ByQueue struct {
	Name string `path:"name" pattern:"^[a-z0-9_-]{1,64}$" doc:"The queue" example:"default"`
}

// ByBackend is a backend in the path.
type ByBackend struct {
	Name string `path:"name" doc:"The backend" example:"claude"`
}

type pauseQueueInput struct {
	ByQueue
	Body *NewPause
}

type pauseBackendInput struct {
	ByBackend
	Body *NewPause
}

func (o *Operations) PauseQueue(ctx context.Context, in *pauseQueueInput) (*pauseAnswer, error) {
	return o.Pause(ctx, store.PauseQueue, in.Name, in.Body)
}

func (o *Operations) ResumeQueue(ctx context.Context, in *ByQueue) (*pauseAnswer, error) {
	return o.Resume(ctx, store.PauseQueue, in.Name)
}

func (o *Operations) PauseBackend(ctx context.Context, in *pauseBackendInput) (*pauseAnswer, error) {
	if err := KnownBackend(in.Name); err != nil {
		return nil, err
	}
	return o.Pause(ctx, store.PauseBackend, in.Name, in.Body)
}

func (o *Operations) ResumeBackend(ctx context.Context, in *ByBackend) (*pauseAnswer, error) {
	if err := KnownBackend(in.Name); err != nil {
		return nil, err
	}
	return o.Resume(ctx, store.PauseBackend, in.Name)
}

func KnownBackend(name string) error {
	if slices.Contains(backend.Names, name) {
		return nil
	}
	return problem.New(http.StatusNotFound, fmt.Sprintf("there is no backend %.100q; there are %s", name, strings.Join(backend.Names, ", ")))
}

func (o *Operations) Pause(ctx context.Context, kind store.PauseKind, name string, body *NewPause) (*pauseAnswer, error) {
	if body == nil {
		body = &NewPause{}
	}
	p, err := o.store.Pauses.Pause(ctx, kind, name, body.By, body.Why)
	if err != nil {
		return nil, err
	}
	o.log.Warn("paused", "kind", kind, "name", name, "by", p.By, "why", p.Why)
	return o.answerPause(ctx, p), nil
}

func (o *Operations) Resume(ctx context.Context, kind store.PauseKind, name string) (*pauseAnswer, error) {
	p, err := o.store.Pauses.Resume(ctx, kind, name)
	if err != nil {
		return nil, err
	}
	o.log.Warn("resumed", "kind", kind, "name", name)
	return o.answerPause(ctx, p), nil
}

func (o *Operations) answerPause(ctx context.Context, p store.Pause) *pauseAnswer {
	if err := o.bell.PauseChanged(context.WithoutCancel(ctx), p.Name); err != nil {
		o.log.Debug("tell of a pause; the next beats will", "err", err)
	}
	return &pauseAnswer{PauseState{Name: p.Name, Paused: PauseOf(&p)}}
}

// whyHeld is what operators have to do with a unit's wait.
func whyHeld(u work.Unit, pauses []store.Pause) (reasons []Reason) {
	if p := PauseOf(store.PauseOf(pauses, store.PauseQueue, u.Queue)); p != nil {
		reasons = append(reasons, Reason{Code: "queue_paused", Held: store.PauseQueue, Detail: fmt.Sprintf(
			"the queue %s is %s (go on with `piecework queue resume %s`)", u.Queue, p.Words(), u.Queue)})
	}
	if p := PauseOf(store.PauseOf(pauses, store.PauseBackend, u.Backend)); p != nil {
		reasons = append(reasons, Reason{Code: "backend_paused", Held: store.PauseBackend, Detail: fmt.Sprintf(
			"the backend %s is %s (go on with `piecework backend resume %s`)", u.Backend, p.Words(), u.Backend)})
	}
	return reasons
}
