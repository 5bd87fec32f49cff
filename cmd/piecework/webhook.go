package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"piecework/internal/work"
)

// WebhookCommand is `piecework webhook`.
type WebhookCommand struct {
	Add        WebhookAddCommand        `cmd:"" help:"Add an endpoint, and show its secret."`
	Ls         WebhookLsCommand         `cmd:"" aliases:"list" help:"List endpoints."`
	Show       WebhookShowCommand       `cmd:"" help:"Show an endpoint, its secret and its newest deliveries."`
	Set        WebhookSetCommand        `cmd:"" help:"Change, disable or enable an endpoint."`
	Rotate     WebhookRotateCommand     `cmd:"" help:"Give an endpoint, or callbacks, another secret."`
	Rm         WebhookRmCommand         `cmd:"" aliases:"delete" help:"Delete an endpoint; its deliveries can still be read."`
	Test       WebhookTestCommand       `cmd:"" help:"Send an endpoint a message that tells of nothing."`
	Secret     WebhookSecretCommand     `cmd:"" help:"Show what signs the messages of an endpoint, or of callbacks."`
	Deliveries WebhookDeliveriesCommand `cmd:"" help:"List deliveries, newest first."`
	Redeliver  WebhookRedeliverCommand  `cmd:"" help:"Deliver again: one, or all that a filter chooses."`
}

const callbackSecret = "/callback-secret"

func endpointPath(id, more string) string { return "/webhook-endpoints/" + url.PathEscape(id) + more }

// endpoint is an endpoint as the API shows it, with its secret where it does.
type endpoint struct {
	work.Endpoint
	Secret string `json:"secret"`
}

// callFor makes one call and reads its answer. With --json it prints it, and
// returns nil.
func callFor[T any](app *App, remote Remote, what string, r request) (*T, error) {
	client, err := newClient(app, remote)
	if err != nil {
		return nil, err
	}
	document, err := client.do(app.Ctx, r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if remote.JSON {
		return nil, printJSON(app.Stdout, document)
	}
	value := new(T)
	if err := json.Unmarshal(document, value); err != nil {
		return nil, &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return value, nil
}

// EndpointFlags are what an endpoint is made of.
type EndpointFlags struct {
	Events      string `help:"Types of events with commas between, such as work_unit.failed or batch.*; everything by default." placeholder:"TYPE,…"`
	Description string `help:"What it is for." placeholder:"TEXT"`
}

func (f EndpointFlags) events() []string {
	if f.Events == "" {
		return nil
	}
	events := strings.Split(f.Events, ",")
	for i := range events {
		events[i] = strings.TrimSpace(events[i])
	}
	return events
}

// WebhookAddCommand is `piecework webhook add`.
type WebhookAddCommand struct {
	Remote
	EndpointFlags
	URL string `arg:"" help:"Where messages are sent."`
}

type endpointBody struct {
	URL         string   `json:"url"`
	Description string   `json:"description,omitempty"`
	Events      []string `json:"events,omitempty"`
	Disabled    bool     `json:"disabled,omitempty"`
}

// Run adds the endpoint and prints it with its secret.
func (c *WebhookAddCommand) Run(app *App) error {
	e, err := callFor[endpoint](app, c.Remote, "add endpoint", request{method: http.MethodPost, path: "/webhook-endpoints",
		body: endpointBody{URL: c.URL, Description: c.Description, Events: c.events()}})
	if err != nil || e == nil {
		return err
	}
	return printEndpoint(app, e.Endpoint, work.Secrets{Secret: e.Secret})
}

func printEndpoint(app *App, e work.Endpoint, secrets work.Secrets) error {
	t := newTable(app.Stdout, "id", e.ID.String())
	t.row("url", e.URL)
	t.row("events", strings.Join(e.Events, ", "))
	if e.Description != "" {
		t.row("description", e.Description)
	}
	if e.DisabledAt != nil {
		t.row("disabled", clock(e.DisabledAt)+": "+e.DisabledWhy)
	}
	if secrets.Secret != "" {
		t.row("secret", secrets.Secret)
	}
	if secrets.Previous != nil {
		t.row("also signs until "+clock(secrets.PreviousUntil), *secrets.Previous)
	}
	return t.flush()
}

// WebhookLsCommand is `piecework webhook ls`.
type WebhookLsCommand struct{ Remote }

// Run prints every endpoint.
func (c *WebhookLsCommand) Run(app *App) error {
	endpoints, err := items[work.Endpoint](app, c.Remote, "/webhook-endpoints")
	if err != nil || c.JSON {
		return err
	}
	t := newTable(app.Stdout, "ID", "URL", "EVENTS", "STATUS", "DESCRIPTION")
	for _, e := range endpoints {
		status := "enabled"
		if e.DisabledAt != nil {
			status = "disabled: " + e.DisabledWhy
		}
		t.row(e.ID.String(), excerpt(e.URL, 60), strings.Join(e.Events, ","), status, excerpt(e.Description, 40))
	}
	return t.flush()
}

// WebhookShowCommand is `piecework webhook show`.
type WebhookShowCommand struct {
	Remote
	ID string `arg:"" help:"The endpoint's id."`
}

// Run prints the endpoint.
func (c *WebhookShowCommand) Run(app *App) error {
	e, err := callFor[work.Endpoint](app, c.Remote, "show endpoint", request{method: http.MethodGet, path: endpointPath(c.ID, "")})
	if err != nil || e == nil {
		return err
	}
	secrets, err := callFor[work.Secrets](app, c.Remote, "show secret", request{method: http.MethodGet, path: endpointPath(c.ID, "/secret")})
	if err != nil {
		return err
	}
	if err := printEndpoint(app, *e, *secrets); err != nil {
		return err
	}
	newest, err := callFor[deliveryList](app, c.Remote, "list deliveries", request{
		method: http.MethodGet, path: "/deliveries", query: url.Values{"endpoint": {c.ID}, "limit": {"10"}}})
	if err != nil || len(newest.Items) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(app.Stdout)
	return printDeliveries(app, newest)
}

// WebhookSetCommand is `piecework webhook set`.
type WebhookSetCommand struct {
	Remote
	EndpointFlags
	ID      string `arg:"" help:"The endpoint's id."`
	URL     string `help:"Where messages are sent from now on."`
	Disable bool   `help:"Send it nothing; what was to be delivered is cancelled." xor:"able"`
	Enable  bool   `help:"Send it messages again." xor:"able"`
}

// Run changes what was given and leaves the rest.
func (c *WebhookSetCommand) Run(app *App) error {
	quiet := c.Remote
	quiet.JSON = false
	e, err := callFor[work.Endpoint](app, quiet, "read endpoint", request{method: http.MethodGet, path: endpointPath(c.ID, "")})
	if err != nil {
		return err
	}
	body := endpointBody{URL: e.URL, Description: e.Description, Events: e.Events, Disabled: c.Disable || e.DisabledAt != nil && !c.Enable}
	if c.URL != "" {
		body.URL = c.URL
	}
	if c.Description != "" {
		body.Description = c.Description
	}
	if c.Events != "" {
		body.Events = c.events()
	}
	after, err := callFor[work.Endpoint](app, c.Remote, "change endpoint", request{method: http.MethodPut, path: endpointPath(c.ID, ""), body: body})
	if err != nil || after == nil {
		return err
	}
	return printEndpoint(app, *after, work.Secrets{})
}

// WebhookSecretCommand is `piecework webhook secret`.
type WebhookSecretCommand struct {
	Remote
	ID string `arg:"" optional:"" help:"The endpoint's id; what signs callbacks when left out."`
}

// Run prints the secrets.
func (c *WebhookSecretCommand) Run(app *App) error {
	path := callbackSecret
	if c.ID != "" {
		path = endpointPath(c.ID, "/secret")
	}
	return printSecrets(app, c.Remote, "show secret", request{method: http.MethodGet, path: path})
}

func printSecrets(app *App, remote Remote, what string, r request) error {
	secrets, err := callFor[work.Secrets](app, remote, what, r)
	if err != nil || secrets == nil {
		return err
	}
	_, err = fmt.Fprintln(app.Stdout, safeLine(secrets.Secret))
	if secrets.Previous != nil {
		_, _ = fmt.Fprintf(app.Stderr, "until %s the one before signs too: %s\n", clock(secrets.PreviousUntil), safeLine(*secrets.Previous))
	}
	return err
}

// WebhookRotateCommand is `piecework webhook rotate`.
type WebhookRotateCommand struct {
	Remote
	ID      string        `arg:"" optional:"" help:"The endpoint's id; callbacks when left out."`
	Overlap time.Duration `help:"For so long the secret before signs too (${default})." default:"24h"`
}

// Run makes another secret and prints it.
func (c *WebhookRotateCommand) Run(app *App) error {
	path := callbackSecret + "/rotate"
	if c.ID != "" {
		path = endpointPath(c.ID, "/rotate")
	}
	return printSecrets(app, c.Remote, "rotate secret", request{method: http.MethodPost, path: path, body: map[string]any{"overlap": c.Overlap.String()}})
}

// WebhookRmCommand is `piecework webhook rm`.
type WebhookRmCommand struct {
	Remote
	ID string `arg:"" help:"The endpoint's id."`
}

// Run deletes the endpoint.
func (c *WebhookRmCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	if _, err := client.do(app.Ctx, request{method: http.MethodDelete, path: endpointPath(c.ID, "")}); err != nil {
		return fmt.Errorf("delete endpoint: %w", err)
	}
	return nil
}

// WebhookTestCommand is `piecework webhook test`.
type WebhookTestCommand struct {
	Remote
	ID string `arg:"" help:"The endpoint's id."`
}

// Run sends a message and prints its delivery.
func (c *WebhookTestCommand) Run(app *App) error {
	return oneDelivery(app, c.Remote, "test endpoint", endpointPath(c.ID, "/test"))
}
