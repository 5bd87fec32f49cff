package web

import (
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/api/query"
	"piecework/api/web/page"
	"piecework/internal/work"
	"piecework/store"
)

// webhooks are the pages of endpoints and deliveries.
type webhooks struct{ *site }

// webhooksPage shows endpoints and deliveries.
func (a webhooks) webhooksPage(c echo.Context) error {
	ctx := c.Request().Context()
	shown := page.Webhooks{Now: time.Now(), Status: c.QueryParam("status"), Endpoint: c.QueryParam("endpoint")}
	f := store.DeliveryFilter{Tenant: work.DefaultTenant}
	var err error
	if f.States, err = query.States(shown.Status, work.DeliveryStates); err != nil {
		return err
	}
	if shown.Endpoint != "" {
		if f.Endpoint, err = uuid.Parse(shown.Endpoint); err != nil {
			return problem.Parameter("endpoint", "must be an id")
		}
	}
	if f.After, err = query.After(c.QueryParam("after")); err != nil {
		return err
	}
	if shown.Endpoints, err = a.Store.Endpoints.List(ctx, work.DefaultTenant); err != nil {
		return err
	}
	deliveries, next, err := a.Store.Deliveries.List(ctx, f)
	if err != nil {
		return err
	}
	shown.Deliveries = deliveries
	if next != nil {
		shown.Next = next.String()
	}
	if shown.Notice, err = a.notice(ctx, c.QueryParam("done"), "/webhooks"+shown.Query()); err != nil {
		return err
	}
	return a.render(c, shown)
}

func (a webhooks) redeliverForm(c echo.Context) error {
	values, err := a.form(c)
	if err != nil {
		return err
	}
	id, err := query.ID(c.Param("id"))
	if err == nil {
		_, err = a.Store.Deliveries.Redeliver(c.Request().Context(), work.DefaultTenant, id)
	}
	return a.acted(c, ownPath(values.Get("back")), "redelivered", err)
}
