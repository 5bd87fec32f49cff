package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"piecework/internal/work"
)

// Choice is the flags that choose the units of cancel and retry.
type Choice struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Ids of the units."`
	Filter
	All    bool `help:"All units there are that it can be done to."`
	DryRun bool `help:"With a filter: show what would be changed, and change nothing."`
}

// query is the filter for a bulk, nil when there are ids.
func (c *Choice) query() (url.Values, error) {
	query, err := c.Filter.query()
	if err != nil {
		return nil, err
	}
	filtered := len(query) > 0 || c.All
	switch {
	case len(c.IDs) > 0 && (filtered || c.DryRun):
		return nil, usagef("give either ids, or a filter or --all")
	case len(c.IDs) > 0:
		return nil, nil
	case !filtered:
		return nil, usagef("give ids, a filter such as --status or --backend, or --all")
	}
	if c.All {
		query.Set("all", "true")
	}
	if c.DryRun {
		query.Set("dry_run", "true")
	}
	return query, nil
}

// CancelCommand is `piecework cancel`.
type CancelCommand struct {
	Remote
	Choice
}

// Run asks for units to be cancelled.
func (c *CancelCommand) Run(app *App) error {
	return c.run(app, c.Remote, "cancel", "cancelled", nil)
}

// RetryCommand is `piecework retry`.
type RetryCommand struct {
	Remote
	Choice
	Model    string `help:"Use this model from now on."`
	Prompt   string `help:"Use this prompt template from now on." placeholder:"TEXT"`
	MaxTurns int    `help:"Allow this many turns from now on." placeholder:"N"`
}

// changes is the body of a retry.
type changes struct {
	Model    string `json:"model,omitempty"`
	Prompt   string `json:"prompt,omitempty"`
	MaxTurns int    `json:"max_turns,omitempty"`
}

// Run queues units again.
func (c *RetryCommand) Run(app *App) error {
	return c.run(app, c.Remote, "retry", "retried", changes{Model: c.Model, Prompt: c.Prompt, MaxTurns: c.MaxTurns})
}

func (c *Choice) run(app *App, remote Remote, verb, done string, body any) error {
	query, err := c.query()
	if err != nil {
		return err
	}
	if query == nil {
		return eachUnit(app, remote, c.IDs, func(id string) request {
			return request{method: http.MethodPost, path: unitPath(id, verb), body: body}
		})
	}
	client, err := newClient(app, remote)
	if err != nil {
		return err
	}
	document, err := client.do(app.Ctx, request{method: http.MethodPost, path: "/work-units/" + verb, query: query, body: body})
	if err != nil {
		return fmt.Errorf("%s units: %w", verb, err)
	}
	if remote.JSON {
		return printJSON(app.Stdout, document)
	}
	return showBulk(app, document, done)
}

// bulk is the answer to POST /work-units/retry and /cancel.
type bulk struct {
	DryRun  bool `json:"dry_run"`
	Count   int  `json:"count"`
	Stopped int  `json:"stopped"`
	work.Cost
	More  bool              `json:"more"`
	Items []json.RawMessage `json:"items"`
}

func showBulk(app *App, document []byte, done string) error {
	var b bulk
	if err := json.Unmarshal(document, &b); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	var units []*unit
	for _, item := range b.Items {
		u, err := parseUnit(item)
		if err != nil {
			return err
		}
		units = append(units, u)
	}
	if err := showUnits(app.Stdout, units, false); err != nil {
		return err
	}
	if b.Count > len(units) && len(units) > 0 {
		_, _ = fmt.Fprintf(app.Stdout, "… and %d more\n", b.Count-len(units))
	}
	line := fmt.Sprintf("%d units %s", b.Count, done)
	if b.DryRun {
		line = fmt.Sprintf("%d units would be %s", b.Count, done)
	}
	if b.Stopped > 0 {
		line += fmt.Sprintf(", of which %d were running and end soon", b.Stopped)
	}
	_, err := fmt.Fprintf(app.Stdout, "%s; they have cost %s so far\n", line, b.CostText())
	if b.More && !b.DryRun {
		_, _ = fmt.Fprintln(app.Stderr, "there are more: run it again")
	}
	return err
}

// eachUnit makes one call for each id and goes on past those that fail; the
// first failure decides the exit code.
func eachUnit(app *App, remote Remote, ids []string, call func(id string) request) error {
	client, err := newClient(app, remote)
	if err != nil {
		return err
	}
	var units []*unit
	var failed []error
	for _, id := range ids {
		u, err := client.unitCall(app.Ctx, call(id))
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", safeLine(id), err))
			continue
		}
		units = append(units, u)
	}
	if err := showUnits(app.Stdout, units, remote.JSON); err != nil {
		return err
	}
	return errors.Join(failed...)
}
