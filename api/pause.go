package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"piecework/api/web"
	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

// operatorPause is why a person has paused something.
type operatorPause struct {
	Since time.Time `json:"since"`
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
}

func viewPause(p *store.Pause) *operatorPause {
	if p == nil || p.Since == nil {
		return nil
	}
	return &operatorPause{Since: p.Since.UTC(), By: p.By, Why: p.Why}
}

// words are the pause for a person.
func (p *operatorPause) words() string {
	text := "paused since " + web.When(p.Since)
	if p.By != "" {
		text += " by " + p.By
	}
	if p.Why != "" {
		text += ": " + p.Why
	}
	return text
}

type newPause struct {
	By  string `json:"by,omitempty" maxLength:"200" doc:"Who pauses it"`
	Why string `json:"why,omitempty" maxLength:"1000" doc:"For those who wonder why nothing happens"`
}

// pauseState is a queue or a backend after a pause or a resume.
type pauseState struct {
	Name   string         `json:"name"`
	Paused *operatorPause `json:"paused" doc:"null: its units begin"`
}

type pauseAnswer struct{ Body pauseState }

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
	Body *newPause
}

type pauseBackendInput struct {
	ByBackend
	Body *newPause
}

func (a *API) pauseQueue(ctx context.Context, in *pauseQueueInput) (*pauseAnswer, error) {
	return a.pause(ctx, store.PauseQueue, in.Name, in.Body)
}

func (a *API) resumeQueue(ctx context.Context, in *ByQueue) (*pauseAnswer, error) {
	return a.resume(ctx, store.PauseQueue, in.Name)
}

func (a *API) pauseBackend(ctx context.Context, in *pauseBackendInput) (*pauseAnswer, error) {
	if err := knownBackend(in.Name); err != nil {
		return nil, err
	}
	return a.pause(ctx, store.PauseBackend, in.Name, in.Body)
}

func (a *API) resumeBackend(ctx context.Context, in *ByBackend) (*pauseAnswer, error) {
	if err := knownBackend(in.Name); err != nil {
		return nil, err
	}
	return a.resume(ctx, store.PauseBackend, in.Name)
}

func knownBackend(name string) error {
	if slices.Contains(backend.Names, name) {
		return nil
	}
	return newProblem(http.StatusNotFound, fmt.Sprintf("there is no backend %.100q; there are %s", name, strings.Join(backend.Names, ", ")))
}

func (a *API) pause(ctx context.Context, kind store.PauseKind, name string, body *newPause) (*pauseAnswer, error) {
	if body == nil {
		body = &newPause{}
	}
	p, err := a.Store.Pauses.Pause(ctx, kind, name, body.By, body.Why)
	if err != nil {
		return nil, err
	}
	a.Log.Warn("paused", "kind", kind, "name", name, "by", p.By, "why", p.Why)
	return a.answerPause(ctx, p), nil
}

func (a *API) resume(ctx context.Context, kind store.PauseKind, name string) (*pauseAnswer, error) {
	p, err := a.Store.Pauses.Resume(ctx, kind, name)
	if err != nil {
		return nil, err
	}
	a.Log.Warn("resumed", "kind", kind, "name", name)
	return a.answerPause(ctx, p), nil
}

func (a *API) answerPause(ctx context.Context, p store.Pause) *pauseAnswer {
	if err := a.Bell.PauseChanged(context.WithoutCancel(ctx), p.Name); err != nil {
		a.Log.Debug("tell of a pause; the next beats will", "err", err)
	}
	return &pauseAnswer{pauseState{Name: p.Name, Paused: viewPause(&p)}}
}

// whyHeld is what operators have to do with a unit's wait.
func whyHeld(u work.Unit, pauses []store.Pause) (reasons []reason) {
	if p := viewPause(store.PauseOf(pauses, store.PauseQueue, u.Queue)); p != nil {
		reasons = append(reasons, reason{Code: "queue_paused", held: store.PauseQueue, Detail: fmt.Sprintf(
			"the queue %s is %s (go on with `piecework queue resume %s`)", u.Queue, p.words(), u.Queue)})
	}
	if p := viewPause(store.PauseOf(pauses, store.PauseBackend, u.Backend)); p != nil {
		reasons = append(reasons, reason{Code: "backend_paused", held: store.PauseBackend, Detail: fmt.Sprintf(
			"the backend %s is %s (go on with `piecework backend resume %s`)", u.Backend, p.words(), u.Backend)})
	}
	return reasons
}
