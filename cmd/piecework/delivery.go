package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"piecework/internal/work"
)

func oneDelivery(app *App, remote Remote, what, path string) error {
	d, err := callFor[work.Delivery](app, remote, what, request{method: http.MethodPost, path: path})
	if err != nil || d == nil {
		return err
	}
	return printDeliveries(app, &deliveryList{Items: []work.Delivery{*d}})
}

// DeliveryFilter is the flags that choose deliveries.
type DeliveryFilter struct {
	Endpoint string `help:"Only those to this endpoint." placeholder:"ID"`
	Unit     string `help:"Only those about this unit." placeholder:"ID"`
	Batch    string `help:"Only those about this batch and its units." placeholder:"ID"`
	Status   string `help:"Only those in this state, or these with commas between: pending, delivered, dead, cancelled." placeholder:"STATE"`
	Since    string `help:"Only those written since then: a time such as 2030-01-31T18:00:00Z, or so long ago, such as 24h." placeholder:"TIME"`
	Until    string `help:"Only those written before." placeholder:"TIME"`
}

func (f DeliveryFilter) query() (url.Values, error) {
	query := url.Values{}
	for name, value := range map[string]string{"endpoint": f.Endpoint, "unit": f.Unit, "batch": f.Batch, "status": f.Status} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, value := range map[string]string{"since": f.Since, "until": f.Until} {
		if value == "" {
			continue
		}
		if ago, err := time.ParseDuration(value); err == nil {
			value = time.Now().Add(-ago).UTC().Format(time.RFC3339)
		}
		if _, err := time.Parse(time.RFC3339, value); err != nil {
			return nil, usagef("--%s: %q is no time such as 2030-01-31T18:00:00Z or 24h", name, value)
		}
		query.Set(name, value)
	}
	return query, nil
}

// deliveryList is the answer to GET /deliveries.
type deliveryList struct {
	Items []work.Delivery `json:"items"`
	Next  *string         `json:"next"`
}

// WebhookDeliveriesCommand is `piecework webhook deliveries`.
type WebhookDeliveriesCommand struct {
	Remote
	DeliveryFilter
	After string `help:"Go on after this cursor." placeholder:"CURSOR"`
	Limit int    `help:"How many to show." default:"20" short:"n"`
}

// Run prints the newest deliveries.
func (c *WebhookDeliveriesCommand) Run(app *App) error {
	query, err := c.query()
	if err != nil {
		return err
	}
	query.Set("limit", strconv.Itoa(c.Limit))
	if c.After != "" {
		query.Set("after", c.After)
	}
	list, err := callFor[deliveryList](app, c.Remote, "list deliveries", request{method: http.MethodGet, path: "/deliveries", query: query})
	if err != nil || list == nil {
		return err
	}
	return printDeliveries(app, list)
}

func printDeliveries(app *App, list *deliveryList) error {
	t := newTable(app.Stdout, "ID", "EVENT", "STATUS", "TRIES", "WRITTEN", "NEXT", "TO", "LAST ERROR")
	for _, d := range list.Items {
		failure := ""
		if d.LastError != nil {
			failure = excerpt(*d.LastError, 60)
		}
		t.row(d.ID.String(), d.EventType, string(d.State), strconv.Itoa(d.Attempts), clock(&d.CreatedAt), clock(d.NextAt),
			excerpt(d.URL, 50), failure)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if list.Next != nil {
		_, _ = fmt.Fprintf(app.Stderr, "there are more: --after %s\n", safeLine(*list.Next))
	}
	return nil
}

// WebhookRedeliverCommand is `piecework webhook redeliver`.
type WebhookRedeliverCommand struct {
	Remote
	DeliveryFilter
	ID  string `arg:"" optional:"" help:"The delivery's id."`
	All bool   `help:"All that are dead."`
}

// Run delivers again.
func (c *WebhookRedeliverCommand) Run(app *App) error {
	query, err := c.query()
	if err != nil {
		return err
	}
	if c.All {
		query.Set("all", "true")
	}
	switch {
	case c.ID != "" && len(query) > 0:
		return usagef("give either an id, or a filter or --all")
	case c.ID != "":
		return oneDelivery(app, c.Remote, "redeliver", "/deliveries/"+url.PathEscape(c.ID)+"/redeliver")
	case len(query) == 0:
		return usagef("give an id, a filter such as --endpoint or --since, or --all")
	}
	done, err := callFor[struct {
		Count int  `json:"count"`
		More  bool `json:"more"`
	}](app, c.Remote, "redeliver", request{method: http.MethodPost, path: "/deliveries/redeliver", query: query})
	if err != nil || done == nil {
		return err
	}
	_, err = fmt.Fprintf(app.Stdout, "%d deliveries are delivered again\n", done.Count)
	if done.More {
		_, _ = fmt.Fprintln(app.Stderr, "there are more: run it again")
	}
	return err
}
