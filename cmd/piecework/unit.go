package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"piecework/internal/work"
)

// unit is a unit as the API shows it, and the document it came in.
type unit struct {
	work.Unit
	Runs     []work.Run `json:"runs"`
	document []byte
	waits    []string // why it has not begun, where that was asked
}

func parseUnit(document []byte) (*unit, error) {
	u := &unit{document: document}
	if err := json.Unmarshal(document, u); err != nil {
		return nil, &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return u, nil
}

// unitPath is where the API keeps a unit; more is a part of it or an action.
func unitPath(id string, more ...string) string {
	return strings.Join(append([]string{"/work-units", url.PathEscape(id)}, more...), "/")
}

func (c *client) submit(ctx context.Context, body *submission, key string) (*unit, error) {
	return c.unitCall(ctx, body.request(key))
}

func (c *client) unit(ctx context.Context, id string) (*unit, error) {
	return c.unitCall(ctx, request{method: http.MethodGet, path: unitPath(id)})
}

func (c *client) unitCall(ctx context.Context, r request) (*unit, error) {
	document, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	return parseUnit(document)
}

// GetCommand is `piecework get`.
type GetCommand struct {
	Remote
	ID string `arg:"" help:"The unit's id."`
}

// Run prints one unit with its runs.
func (c *GetCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	u, err := client.unit(app.Ctx, c.ID)
	if err != nil {
		return fmt.Errorf("get %s: %w", c.ID, err)
	}
	if c.JSON {
		return printJSON(app.Stdout, u.document)
	}
	if u.State == work.Queued {
		if u.waits, err = client.explain(app.Ctx, c.ID); err != nil {
			return fmt.Errorf("explain %s: %w", c.ID, err)
		}
	}
	return printUnit(app.Stdout, u)
}

// explain returns why a unit waits, in words.
func (c *client) explain(ctx context.Context, id string) ([]string, error) {
	document, err := c.do(ctx, request{method: http.MethodGet, path: unitPath(id, "explain")})
	if err != nil {
		return nil, err
	}
	var e struct {
		Reasons []struct {
			Detail string `json:"detail"`
		} `json:"reasons"`
	}
	if err := json.Unmarshal(document, &e); err != nil {
		return nil, &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	var words []string
	for _, r := range e.Reasons {
		words = append(words, r.Detail)
	}
	return words, nil
}

func printUnit(w io.Writer, u *unit) error {
	facts := newTable(w, "unit", u.ID.String())
	facts.row("status", string(u.State))
	for _, why := range u.waits {
		facts.row("waits", why)
	}
	facts.row("title", u.Title)
	facts.row("backend", strings.TrimSpace(u.Backend+" "+u.Model))
	facts.row("queue", fmt.Sprintf("%s, priority %d", u.Queue, u.Priority))
	if labels := string(u.Labels); labels != "" && labels != "{}" && labels != "null" {
		facts.row("labels", labels)
	}
	if len(u.Files) > 0 {
		facts.row("files", strings.Join(u.Files, " "))
	}
	facts.row("created", clock(&u.CreatedAt))
	if u.NotBefore != nil {
		facts.row("not before", clock(u.NotBefore))
	}
	if u.ExpiresAt != nil && u.StartedAt == nil {
		facts.row("expires", clock(u.ExpiresAt)+" unless it has started")
	}
	facts.row("started", clock(u.StartedAt))
	facts.row("finished", clock(u.FinishedAt))
	facts.row("took", took(u.StartedAt, u.FinishedAt))
	facts.row("cost", u.CostText())
	if u.Lane != "" {
		facts.row("lane", u.Lane)
	}
	switch u.Cache {
	case work.CacheHit:
		facts.row("cache", "hit: the result of run "+u.CachedFrom.String())
	case work.CacheMiss:
		facts.row("cache", "miss")
	}
	if u.Error != nil {
		facts.row("error", u.Error.Error())
		facts.row("advice", u.Error.Class.Advice())
	}
	if err := facts.flush(); err != nil {
		return err
	}
	if err := printRuns(w, u.Runs); err != nil {
		return err
	}
	if n := len(u.Runs); n > 0 && n < u.RunCount {
		if _, err := fmt.Fprintf(w, "(the newest %d of %d runs)\n", n, u.RunCount); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	if err := printOutputFiles(w, u.Runs); err != nil {
		return err
	}
	if u.Output == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.TrimRight(work.Visible(*u.Output), "\n"))
	return err
}

func printRuns(w io.Writer, runs []work.Run) error {
	if len(runs) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	t := newTable(w, "RUN", "ID", "STATUS", "TOOK", "TURNS", "TOOLS", "COST", "ERROR")
	for _, r := range runs {
		cost, failure := "-", ""
		if r.CompletedAt != nil {
			cost = r.Cost().CostText()
		}
		if r.Error != nil {
			failure = excerpt(r.Error.Error(), 80)
		}
		t.row(strconv.Itoa(r.Attempt), r.ID.String(), string(r.Status), took(&r.StartedAt, r.CompletedAt),
			strconv.Itoa(r.NumTurns), strconv.Itoa(r.ToolCalls), cost, failure)
	}
	return t.flush()
}

// printOutputFiles shows what runs left behind; GET /files/{id}/content has
// what was stored.
func printOutputFiles(w io.Writer, runs []work.Run) error {
	t, some := newTable(w, "RUN", "FILE", "BYTES", "ID"), false
	for _, r := range runs {
		for _, f := range r.OutputFiles {
			id := "not stored: " + f.Reason
			if f.ID != nil {
				id = f.ID.String()
			}
			t.row(strconv.Itoa(r.Attempt), f.Name, strconv.FormatInt(f.Size, 10), id)
			some = true
		}
	}
	if !some {
		return nil
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return t.flush()
}

// Filter is the flags that choose units. One that was given without a value is
// sent so: the server knows whether that is safe.
type Filter struct {
	Status  *string  `help:"Only units in this state, or these with commas between." placeholder:"STATE"`
	Backend *string  `help:"Only units of this backend." short:"b" placeholder:"NAME"`
	Class   *string  `help:"Only units with an error of this class." placeholder:"CLASS"`
	Label   []string `help:"Only units with this label." short:"l" sep:"none" placeholder:"KEY=VALUE"`
	Query   *string  `name:"q" help:"Only units whose title contains this." placeholder:"TEXT"`
}

func (f *Filter) query() (url.Values, error) {
	query := url.Values{}
	for name, value := range map[string]*string{"status": f.Status, "backend": f.Backend, "class": f.Class, "q": f.Query} {
		if value != nil {
			query.Set(name, *value)
		}
	}
	labels, err := keyValues("--label", f.Label)
	if err != nil {
		return nil, err
	}
	for key, value := range labels {
		query.Add("label", key+":"+value)
	}
	return query, nil
}

// LsCommand is `piecework ls`.
type LsCommand struct {
	Remote
	Filter
	After string `help:"Go on after this cursor." placeholder:"CURSOR"`
	Limit int    `help:"How many to show." default:"20" short:"n"`
	All   bool   `help:"Show all there are."`
}

// itemList is the answer to GET /work-units and GET /batches.
type itemList struct {
	Items []json.RawMessage `json:"items"`
	Next  *string           `json:"next"`
}

// The server's own page size bounds each request of --all.
const pageOfAll = 100

// Run prints the newest units.
func (c *LsCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	query, err := c.query()
	if err != nil {
		return err
	}
	list, err := client.list(app.Ctx, "/work-units", query, c.All)
	if err != nil {
		return fmt.Errorf("list units: %w", err)
	}
	if c.JSON {
		document, err := json.Marshal(list)
		if err != nil {
			return fmt.Errorf("encode the list: %w", err)
		}
		return printJSON(app.Stdout, document)
	}
	units := make([]*unit, len(list.Items))
	for i, item := range list.Items {
		if units[i], err = parseUnit(item); err != nil {
			return err
		}
	}
	if err := printUnits(app.Stdout, units); err != nil {
		return err
	}
	if list.Next != nil {
		_, _ = fmt.Fprintf(app.Stderr, "there are more: --all, or --after %s\n", safeLine(*list.Next))
	}
	return nil
}

func (c *LsCommand) query() (url.Values, error) {
	query, err := c.Filter.query()
	if err != nil {
		return nil, err
	}
	if c.After != "" {
		query.Set("after", c.After)
	}
	switch {
	case c.Limit < 1:
		return nil, usagef("--limit must be at least 1")
	case c.All:
		query.Set("limit", strconv.Itoa(pageOfAll))
	default:
		query.Set("limit", strconv.Itoa(c.Limit))
	}
	return query, nil
}

// list reads one page, or every page there is.
func (c *client) list(ctx context.Context, path string, query url.Values, all bool) (*itemList, error) {
	whole := &itemList{Items: []json.RawMessage{}}
	for {
		document, err := c.get(ctx, path, query)
		if err != nil {
			return nil, err
		}
		var page itemList
		if err := json.Unmarshal(document, &page); err != nil {
			return nil, &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
		}
		whole.Items, whole.Next = append(whole.Items, page.Items...), page.Next
		if !all || page.Next == nil {
			return whole, nil
		}
		query.Set("after", *page.Next)
	}
}

func printUnits(w io.Writer, units []*unit) error {
	t := newTable(w, "ID", "STATUS", "BACKEND", "CREATED", "TOOK", "COST", "TITLE")
	for _, u := range units {
		t.row(u.ID.String(), string(u.State), u.Backend, clock(&u.CreatedAt), took(u.StartedAt, u.FinishedAt),
			u.CostText(), excerpt(u.Title, 60))
	}
	return t.flush()
}

// showUnits prints units as a table, or as one JSON document per line.
func showUnits(w io.Writer, units []*unit, asJSON bool) error {
	if !asJSON {
		if len(units) == 0 {
			return nil
		}
		return printUnits(w, units)
	}
	for _, u := range units {
		if err := printLine(w, u.document); err != nil {
			return err
		}
	}
	return nil
}
