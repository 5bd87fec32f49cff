package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"piecework/internal/strictjson"
	"piecework/internal/webhook"
	"piecework/internal/work"
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
	ByID
	Body endpointChange
}

type endpointAnswer struct{ Body work.Endpoint }

type addedEndpoint struct {
	work.Endpoint
	Secret string `json:"secret" doc:"Signs its messages: whsec_ and base64, as Standard Webhooks has it"`
}

type addedAnswer struct{ Body addedEndpoint }

type endpointList struct {
	Body struct {
		Items []work.Endpoint `json:"items" nullable:"false"`
	} `nameHint:"EndpointList"`
}

type secretsAnswer struct{ Body work.Secrets }

// endpoint checks what a caller wants.
func (a *API) endpoint(b *endpointBody) (work.Endpoint, error) {
	e := work.Endpoint{Tenant: work.DefaultTenant, URL: b.URL, Description: b.Description, Events: b.Events}
	if err := a.Webhooks.CheckURL(b.URL); err != nil {
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

func (a *API) addEndpoint(ctx context.Context, in *addEndpointInput) (*addedAnswer, error) {
	e, err := a.endpoint(&in.Body)
	if err != nil {
		return nil, err
	}
	e.ID = uuid.Must(uuid.NewV7())
	secret := webhook.NewSecret()
	e, err = a.Store.Endpoints.Add(ctx, e, secret)
	return &addedAnswer{addedEndpoint{e, secret}}, err
}

func (a *API) putEndpoint(ctx context.Context, in *putEndpointInput) (*endpointAnswer, error) {
	id, err := parseID(in.ID)
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

func (a *API) listEndpoints(ctx context.Context, _ *struct{}) (*endpointList, error) {
	endpoints, err := a.Store.Endpoints.List(ctx, work.DefaultTenant)
	var list endpointList
	list.Body.Items = endpoints
	return &list, err
}

func (a *API) getEndpoint(ctx context.Context, in *ByID) (*endpointAnswer, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.Store.Endpoints.Get(ctx, work.DefaultTenant, id)
	return &endpointAnswer{e}, err
}

func (a *API) deleteEndpoint(ctx context.Context, in *ByID) (*struct{}, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return nil, err
	}
	return nil, a.Store.Endpoints.Delete(ctx, work.DefaultTenant, id)
}

func (a *API) testEndpoint(ctx context.Context, in *ByID) (*deliveryAnswer, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return nil, err
	}
	d, err := a.Store.Deliveries.AddTest(ctx, work.DefaultTenant, id)
	return &deliveryAnswer{d}, err
}

func (a *API) getSecret(ctx context.Context, in *ByID) (*secretsAnswer, error) {
	id, err := parseID(in.ID)
	if err != nil {
		return nil, err
	}
	secrets, err := a.Store.Endpoints.Secrets(ctx, work.DefaultTenant, id)
	return &secretsAnswer{secrets}, err
}

func (a *API) getCallbackSecret(ctx context.Context, _ *struct{}) (*secretsAnswer, error) {
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
	ByID
	Body *rotationBody
}

func (a *API) rotateSecret(ctx context.Context, in *rotateInput) (*secretsAnswer, error) {
	id, err := parseID(in.ID)
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

func (a *API) rotateCallbackSecret(ctx context.Context, in *struct{ Body *rotationBody }) (*secretsAnswer, error) {
	overlap, err := in.Body.overlap()
	if err != nil {
		return nil, err
	}
	secrets, err := a.Store.Endpoints.RotateCallbacks(ctx, work.DefaultTenant, webhook.NewSecret(), overlap)
	return &secretsAnswer{secrets}, err
}

func describeWebhooks(schemas map[string]*huma.Schema) {
	for _, name := range []string{"Endpoint", "AddedEndpoint"} {
		p := schemas[name].Properties
		p["id"].Format = "uuid"
		p["disabled_at"].Description, p["disabled_why"].Description = "Since then it gets no messages", "410: its receiver wanted no more"
		p["previous_secret_until"].Description = "Until then the secret before signs too"
	}
	p := schemas["Delivery"].Properties
	p["status"].Enum = words(work.DeliveryStates)
	for _, field := range []string{"id", "endpoint_id", "unit_id", "batch_id"} {
		p[field].Format, p[field].Nullable = "uuid", field != "id"
	}
	for field, text := range map[string]string{
		"webhook_id": "The header webhook-id, the same at every try", "endpoint_id": "null: to a callback_url",
		"url": "That was tried last, or will be first", "next_at": "Of the next try; null: there is none", "last_status": "Of HTTP; null: there was no answer",
		"response": "The start of the last answer", "body": "As it is sent; absent in lists", "attempts": "Tries so far",
	} {
		p[field].Description = text
	}
	schemas["DeliveryList"].Properties["next"] = nextCursor()
}

func exampleEndpoint(at time.Time) work.Endpoint {
	return work.Endpoint{ID: uuid.MustParse("0198f0c2-7b60-7a02-b1f1-3d5e6f708192"), URL: "https://example.com/hooks", Description: "The CRM",
		Events: []string{"work_unit.failed"}, CreatedAt: at}
}

const exampleSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // of Standard Webhooks' own example

func webhookExamples(unit work.Unit) map[string]any {
	at := unit.CreatedAt
	e := exampleEndpoint(at)
	status, body := 204, `{"type" : "work_unit.failed", "timestamp" : "2026-01-02T03:04:06.500Z", "data" : {"id": "`+exampleID+`", "status": "failed"}}`
	d := work.Delivery{ID: uuid.MustParse("0198f0c2-7b61-7a02-b1f1-3d5e6f708192"), EndpointID: &e.ID, URL: e.URL, UnitID: &unit.ID,
		EventType: "work_unit.failed", State: work.DeliveryDelivered, Attempts: 1, LastStatus: &status, TriedAt: &at, CreatedAt: at, DeliveredAt: &at}
	d.WebhookID = work.WebhookID(d.ID)
	whole := d
	whole.Body = &body
	return map[string]any{
		"Endpoint": e, "EndpointList": map[string]any{"items": []work.Endpoint{e}}, "AddedEndpoint": addedEndpoint{e, exampleSecret},
		"NewEndpoint":    map[string]any{"url": e.URL, "description": e.Description, "events": e.Events},
		"EndpointChange": map[string]any{"url": e.URL, "events": e.Events, "disabled": true},
		"Secrets":        work.Secrets{Secret: exampleSecret}, "Rotation": map[string]any{"overlap": "1h"},
		"Delivery": whole, "DeliveryList": map[string]any{"items": []work.Delivery{d}, "next": nil}, "Redelivery": map[string]any{"count": 12, "more": false},
	}
}
