package hooks

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/internal/work"
	"piecework/store"
)

// ByDelivery chooses deliveries.
type ByDelivery struct {
	Endpoint string    `query:"endpoint" doc:"Those to this endpoint" format:"uuid"`
	Unit     string    `query:"unit" doc:"Those about this unit" format:"uuid"`
	Batch    string    `query:"batch" doc:"Those about this batch and its units" format:"uuid"`
	Status   string    `query:"status" doc:"One or more states, separated by commas" example:"dead,pending"`
	Since    time.Time `query:"since" doc:"Those that were written then or later"`
	Until    time.Time `query:"until" doc:"Those that were written before"`
}

func (in *ByDelivery) filter() (f store.DeliveryFilter, err error) {
	f = store.DeliveryFilter{Tenant: work.DefaultTenant, Since: in.Since, Until: in.Until}
	if f.States, err = query.States(in.Status, work.DeliveryStates); err != nil {
		return f, err
	}
	for _, p := range []struct {
		name, text string
		id         *uuid.UUID
	}{{"endpoint", in.Endpoint, &f.Endpoint}, {"unit", in.Unit, &f.Unit}, {"batch", in.Batch, &f.Batch}} {
		if p.text == "" {
			continue
		}
		if *p.id, err = uuid.Parse(p.text); err != nil {
			return f, problem.Parameter(p.name, "must be an id")
		}
	}
	return f, nil
}

type listDeliveriesInput struct {
	ByDelivery
	After string `query:"after" doc:"The next of the page before"`
	Limit int    `query:"limit" default:"50" minimum:"1" maximum:"500"`
}

type deliveryList struct {
	Body struct {
		Items []work.Delivery `json:"items" nullable:"false"`
		Next  *uuid.UUID      `json:"next"`
	} `nameHint:"DeliveryList"`
}

// Deliveries are the routes of what was sent to endpoints.
type Deliveries struct{ Store *store.Store }

type deliveryAnswer struct{ Body work.Delivery }

func (a *Deliveries) List(ctx context.Context, in *listDeliveriesInput) (*deliveryList, error) {
	f, err := in.filter()
	if err != nil {
		return nil, err
	}
	f.Limit = in.Limit
	if f.After, err = query.After(in.After); err != nil {
		return nil, err
	}
	var list deliveryList
	list.Body.Items, list.Body.Next, err = a.Store.Deliveries.List(ctx, f)
	return &list, err
}

func (a *Deliveries) Get(ctx context.Context, in *query.ByID) (*deliveryAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	d, err := a.Store.Deliveries.Get(ctx, work.DefaultTenant, id)
	return &deliveryAnswer{d}, err
}

func (a *Deliveries) Redeliver(ctx context.Context, in *query.ByID) (*deliveryAnswer, error) {
	id, err := query.ID(in.ID)
	if err != nil {
		return nil, err
	}
	d, err := a.Store.Deliveries.Redeliver(ctx, work.DefaultTenant, id)
	return &deliveryAnswer{d}, err
}

type redeliverInput struct {
	ByDelivery
	All bool `query:"all" doc:"Needed when there is no filter: the call then means every delivery that is dead"`
}

// Resolve refuses parameters without a value.
func (in *redeliverInput) Resolve(ctx huma.Context) []error { return query.Blank(ctx) }

type Redelivery struct {
	Count int  `json:"count" doc:"Deliveries that are delivered again"`
	More  bool `json:"more" doc:"Others may match: one call takes 10000, the oldest first. Call again"`
}

type redeliveryAnswer struct{ Body Redelivery }

func (a *Deliveries) RedeliverAll(ctx context.Context, in *redeliverInput) (*redeliveryAnswer, error) {
	f, err := in.filter()
	if err != nil {
		return nil, err
	}
	if !in.All && f.Endpoint == uuid.Nil && f.Unit == uuid.Nil && f.Batch == uuid.Nil && len(f.States) == 0 && f.Since.IsZero() &&
		f.Until.IsZero() {
		return nil, problem.Parameter("all", "without a filter every dead delivery would be delivered again: give a filter, or all=true if you mean it")
	}
	if len(f.States) == 0 {
		f.States = []work.DeliveryState{work.DeliveryDead}
	}
	n, err := a.Store.Deliveries.RedeliverAll(ctx, f)
	return &redeliveryAnswer{Redelivery{Count: n, More: n == store.MaxBulk}}, err
}
