package hooks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/api/query"
	"piecework/internal/strictjson"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/store"
)

// endpointBody is where somebody wants to be told, and of what.
type endpointBody struct {
	URL         string   `json:"url" doc:"Gets signed POSTs" example:"https://example.com/hooks"`
	Description string   `json:"description,omitempty" maxLength:"500"`
	Events      []string `json:"events,omitempty" nullable:"false" maxItems:"50" doc:"Types of events, noun.* or *; everything when left out" example:"[\"work_unit.failed\",\"batch.*\"]"`
}

type addEndpointInput struct {
	Body endpointBody
}

// endpointChange is an endpoint as it is to be from now on.
type endpointChange struct {
	URL         string   `json:"url" doc:"Gets signed POSTs" example:"https://example.com/hooks"`
	Description string   `json:"description,omitempty" maxLength:"500"`
	Events      []string `json:"events,omitempty" nullable:"false" maxItems:"50" doc:"Types of events, noun.* or *; everything when left out"`
	Disabled    bool     `json:"disabled,omitempty" doc:"Gets no messages; what was to be delivered to it is cancelled"`
}

type putEndpointInput struct {
	query.ByID
	Body endpointChange
}

type endpointAnswer struct{ Body work.Endpoint }

type AddedEndpoint struct {
	work.Endpoint
	Secret string `json:"secret" doc:"Signs its messages: whsec_ and base64, as Standard Webhooks has it"`
}

type addedAnswer struct{ Body AddedEndpoint }

type endpointList struct {
	Body struct {
		Items []work.Endpoint `json:"items" nullable:"false"`
	} `nameHint:"EndpointList"`
}

type secretsAnswer struct{ Body work.Secrets }

// Endpoints are the routes of webhook endpoints and their secrets.
type Endpoints struct {
	Store *store.Store
	Guard webhook.Guard // which addresses messages may go to
}

// endpoint checks what a caller wants.
func (a *Endpoints) endpoint(b *endpointBody) (work.Endpoint, error) {
	e := work.Endpoint{Tenant: work.DefaultTenant, URL: b.URL, Description: b.Description, Events: b.Events}
	if err := a.Guard.CheckURL(b.URL); err != nil {
		return e, work.Invalidf("#/url", "%v", err)
	}
	if len(e.Events) == 0 {
		e.Events = []string{"*"}
	}
	for i, pattern := range e.Events {
		if !work.KnownEvents(pattern) {
			return e, work.Invalidf(fmt.Sprintf("#/events/%d", i), "there is no event %.100q; there are %s, noun.* for all of a noun, and *", pattern, strings.Join(work.Events, ", "))
		}
	}
	slices.Sort(e.Events)
	e.Events = slices.Compact(e.Events)
	return e, nil
}

func (a *Endpoints) Add(ctx context.Context, in *addEndpointInput) (*addedAnswer, error) {
	e, err := a.endpoint(&in.Body)
	if err != nil {
		return nil, err
	}
	e.ID = uuid.Must(uuid.NewV7())
	secret := webhook.NewSecret()
	e, err = a.Store.Endpoints.Add(ctx, e, secret)
	return &addedAnswer{AddedEndpoint{e, secret}}, err
}

func (a *Endpoints) Put(ctx context.Context, in *putEndpointInput) (*endpointAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.endpoint(&endpointBody{URL: in.Body.URL, Description: in.Body.Description, Events: in.Body.Events})
	if err != nil {
		return nil, err
	}
	e.ID = id
	e, err = a.Store.Endpoints.Put(ctx, e, in.Body.Disabled)
	return &endpointAnswer{e}, err
}

func (a *Endpoints) List(ctx context.Context, _ *struct{}) (*endpointList, error) {
	endpoints, err := a.Store.Endpoints.List(ctx, work.DefaultTenant)
	var list endpointList
	list.Body.Items = endpoints
	return &list, err
}

func (a *Endpoints) Get(ctx context.Context, in *query.ByID) (*endpointAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.Store.Endpoints.Get(ctx, work.DefaultTenant, id)
	return &endpointAnswer{e}, err
}

func (a *Endpoints) Delete(ctx context.Context, in *query.ByID) (*struct{}, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	return nil, a.Store.Endpoints.Delete(ctx, work.DefaultTenant, id)
}

func (a *Endpoints) Test(ctx context.Context, in *query.ByID) (*deliveryAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	d, err := a.Store.Deliveries.AddTest(ctx, work.DefaultTenant, id)
	return &deliveryAnswer{d}, err
}

func (a *Endpoints) GetSecret(ctx context.Context, in *query.ByID) (*secretsAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	secrets, err := a.Store.Endpoints.Secrets(ctx, work.DefaultTenant, id)
	return &secretsAnswer{secrets}, err
}

func (a *Endpoints) GetCallbackSecret(ctx context.Context, _ *struct{}) (*secretsAnswer, error) {
	secrets, err := a.Store.Endpoints.CallbackSecrets(ctx, work.DefaultTenant, webhook.NewSecret())
	return &secretsAnswer{secrets}, err
}

// rotationBody says how long the old secret goes on to sign.
type rotationBody struct {
	Overlap *strictjson.Duration `json:"overlap,omitempty" doc:"For so long the secret before signs too; seconds or as \"1h30m\", 24 h when left out"`
}

// overlaps are the shortest and the longest overlap, and the usual one.
const (
	usualOverlap   = 24 * time.Hour
	longestOverlap = 30 * 24 * time.Hour
)

func (b *rotationBody) overlap() (time.Duration, error) {
	if b == nil || b.Overlap == nil {
		return usualOverlap, nil
	}
	var v work.Seconds
	if err := v.UnmarshalJSON(*b.Overlap); err != nil {
		return 0, work.Invalidf("#/overlap", "%.200v", err)
	}
	if !(v >= 0 && v <= work.Seconds(longestOverlap.Seconds())) {
		return 0, work.Invalidf("#/overlap", "must lie between 0 and %v seconds", longestOverlap.Seconds())
	}
	return v.Duration(), nil
}

type rotateInput struct {
	query.ByID
	Body *rotationBody
}

func (a *Endpoints) RotateSecret(ctx context.Context, in *rotateInput) (*secretsAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	overlap, err := in.Body.overlap()
	if err != nil {
		return nil, err
	}
	secrets, err := a.Store.Endpoints.Rotate(ctx, work.DefaultTenant, id, webhook.NewSecret(), overlap)
	return &secretsAnswer{secrets}, err
}

func (a *Endpoints) RotateCallbackSecret(ctx context.Context, in *struct{ Body *rotationBody }) (*secretsAnswer, error) {
	overlap, err := in.Body.overlap()
	if err != nil {
		return nil, err
	}
	secrets, err := a.Store.Endpoints.RotateCallbacks(ctx, work.DefaultTenant, webhook.NewSecret(), overlap)
	return &secretsAnswer{secrets}, err
}
