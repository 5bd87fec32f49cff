package hooks

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"piecework/api/query"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

type triggerInput struct {
	query.ByName
	Body jobs.TriggerBody
}

type triggerAnswer struct{ Body work.Trigger }

type triggerList struct {
	Body struct {
		Items []work.Trigger `json:"items" nullable:"false"`
	} `nameHint:"TriggerList"`
}

func (a *Triggers) Put(ctx context.Context, in *triggerInput) (*triggerAnswer, error) {
	if !query.Name.MatchString(in.Name) {
		return nil, work.Invalidf("#/name", "%.100q: a name has 1 to 64 lower-case letters, digits, - and _, and begins with no sign", in.Name)
	}
	t, err := a.Submitter.NewTrigger(ctx, in.Name, &in.Body)
	if err != nil {
		return nil, err
	}
	if _, err := a.Submitter.CompileTrigger(t); err != nil {
		return nil, err
	}
	if err := a.setSecrets(ctx, &t, in.Body.Secrets); err != nil {
		return nil, err
	}
	saved, err := a.Store.Triggers.Put(ctx, t)
	a.cache.forget(in.Name)
	return &triggerAnswer{saved}, err
}

// setSecrets seals new secrets. Without any the trigger that is replaced keeps
// its own, if they are of the same kind.
func (a *Triggers) setSecrets(ctx context.Context, t *work.Trigger, secrets []string) error {
	if len(secrets) == 0 {
		had, err := a.Store.Triggers.Get(ctx, t.Tenant, t.Name)
		if err == nil && had.Preset == t.Preset {
			return nil
		}
		return work.Invalidf("#/secrets", "is needed: the secret that you give the sender, or that it gives you")
	}
	for i, secret := range secrets {
		if wrong := webhook.CheckSecret(t.Preset, secret); wrong != "" {
			return work.Invalidf(fmt.Sprintf("#/secrets/%d", i), "%s", wrong)
		}
		t.Sealed = append(t.Sealed, a.Sealer.Seal(sealOwner(t), secret))
		t.Secrets = append(t.Secrets, work.Secret{Fingerprint: webhook.Fingerprint(secret)})
	}
	return nil
}

func sealOwner(t *work.Trigger) string { return "trigger " + t.Tenant + " " + t.Name }

func (a *Triggers) Get(ctx context.Context, in *query.ByName) (*triggerAnswer, error) {
	t, err := a.Store.Triggers.Get(ctx, work.DefaultTenant, in.Name)
	return &triggerAnswer{t}, err
}

func (a *Triggers) List(ctx context.Context, _ *struct{}) (*triggerList, error) {
	triggers, err := a.Store.Triggers.List(ctx, work.DefaultTenant)
	var list triggerList
	list.Body.Items = triggers
	return &list, err
}

func (a *Triggers) Delete(ctx context.Context, in *query.ByName) (*struct{}, error) {
	err := a.Store.Triggers.Delete(ctx, work.DefaultTenant, in.Name)
	a.cache.forget(in.Name)
	return nil, err
}

type listTriggerDeliveriesInput struct {
	query.ByName
	After string `query:"after" doc:"The next of the page before"`
	Limit int    `query:"limit" default:"50" minimum:"1" maximum:"500"`
}

type triggerDeliveryList struct {
	Body struct {
		Items []work.TriggerDelivery `json:"items" nullable:"false"`
		Next  *uuid.UUID             `json:"next" doc:"Give it as after to get the next page; null on the last"`
	} `nameHint:"TriggerDeliveries"`
}

// ListDeliveries also tells what came for a trigger that is no more.
func (a *Triggers) ListDeliveries(ctx context.Context, in *listTriggerDeliveriesInput) (*triggerDeliveryList, error) {
	after, err := query.After(in.After)
	if err != nil {
		return nil, err
	}
	var list triggerDeliveryList
	list.Body.Items, list.Body.Next, err = a.Store.Triggers.Received(ctx, store.TriggerDeliveryFilter{
		Tenant: work.DefaultTenant, Trigger: in.Name, After: after, Limit: in.Limit})
	return &list, err
}
