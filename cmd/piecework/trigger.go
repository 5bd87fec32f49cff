package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"piecework/internal/webhook"
	"piecework/internal/work"
)

// TriggerCommand is `piecework trigger`.
type TriggerCommand struct {
	Ls   TriggerLsCommand   `cmd:"" aliases:"list" help:"List triggers."`
	Put  TriggerPutCommand  `cmd:"" help:"Make a trigger, or replace the one of its name."`
	Show TriggerShowCommand `cmd:"" help:"Show a trigger, and what came for it lately."`
	Rm   TriggerRmCommand   `cmd:"" aliases:"delete" help:"Delete a trigger; its units and batches stay."`
	Send TriggerSendCommand `cmd:"" help:"Send a trigger a webhook, signed as its senders sign, for trying it out."`
}

func triggerPath(name, more string) string { return "/triggers/" + url.PathEscape(name) + more }

// TriggerLsCommand is `piecework trigger ls`.
type TriggerLsCommand struct{ Remote }

// Run prints every trigger.
func (c *TriggerLsCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	document, err := client.get(app.Ctx, "/triggers", nil)
	if err != nil {
		return fmt.Errorf("list triggers: %w", err)
	}
	if c.JSON {
		return printJSON(app.Stdout, document)
	}
	var list struct {
		Items []work.Trigger `json:"items"`
	}
	if err := json.Unmarshal(document, &list); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return printTriggers(app.Stdout, list.Items)
}

func printTriggers(w io.Writer, triggers []work.Trigger) error {
	t := newTable(w, "NAME", "PRESET", "STATE", "SECRETS", "EVENTS", "FILTER", "BACKEND", "PROMPT")
	for _, g := range triggers {
		unit, items := g.Unit, ""
		if unit == nil {
			var batch struct {
				Items string    `json:"items"`
				Unit  work.Spec `json:"unit"`
			}
			if err := json.Unmarshal(g.Batch, &batch); err != nil {
				return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
			}
			unit, items = &batch.Unit, "for each of "+batch.Items+": "
		}
		state := "active"
		if g.Paused {
			state = "paused"
		}
		var secrets []string
		for _, s := range g.Secrets {
			secrets = append(secrets, s.Fingerprint)
		}
		events := strings.Join(g.Events, ",")
		if events == "" {
			events = "*"
		}
		t.row(g.Name, g.Preset, state, strings.Join(secrets, ","), excerpt(events, 40), excerpt(g.Filter, 40), unit.Backend,
			excerpt(items+unit.Prompt, 60))
	}
	return t.flush()
}

// TriggerPutCommand is `piecework trigger put`.
type TriggerPutCommand struct {
	Remote
	Name       string   `arg:"" help:"The trigger's name: webhooks come to /triggers/NAME."`
	Preset     string   `arg:"" help:"How senders prove who they are: ${enum}." enum:"github,stripe,slack,standard,hmac,basic,api_key"`
	Unit       string   `arg:"" default:"-" placeholder:"PATH" help:"File with the unit as the API takes it, in JSON; - is standard input."`
	Batch      bool     `help:"The file has a batch instead, with items, the expression for its list."`
	SecretFile []string `help:"File with the secret; a second one has the secret before it, while senders change over. When left out, those that the trigger has stay." sep:"none" placeholder:"PATH"`
	Event      []string `help:"Event that makes a unit; * stands for any characters. All by default." sep:"none" placeholder:"NAME"`
	Filter     string   `help:"Expression that must be true, such as 'body.action == \"opened\"'." placeholder:"EXPR"`
	Map        []string `help:"One key of the payload; without any the payload gets body, event and delivery." sep:"none" placeholder:"KEY=EXPR"`
	MaxBody    int64    `name:"max-body-bytes" help:"Largest body that it takes; 1048576 by default, 26214400 at most." placeholder:"BYTES"`
	Paused     bool     `help:"Make no units for now."`

	Header          string `help:"Has the signature (hmac) or the key (api_key)." placeholder:"NAME"`
	Algorithm       string `help:"sha256 or sha512 (hmac)." placeholder:"NAME"`
	Encoding        string `help:"Of the signature: hex or base64 (hmac)." placeholder:"NAME"`
	Prefix          string `help:"Stands before the signature or the key." placeholder:"TEXT"`
	Signed          string `help:"What is signed (hmac), such as {timestamp}.{body}." placeholder:"TEMPLATE"`
	TimestampHeader string `help:"Has the {timestamp} (hmac)." placeholder:"NAME"`
	IDHeader        string `name:"id-header" help:"Has the delivery's {id}." placeholder:"NAME"`
	Username        string `help:"The user name (basic)." placeholder:"NAME"`
	Tolerance       string `help:"How far a timestamp may be from now." placeholder:"DURATION"`
	EventFrom       string `help:"Expression for the event (hmac, basic, api_key)." placeholder:"EXPR"`
	DeliveryFrom    string `help:"Expression for the delivery's id (hmac, basic, api_key)." placeholder:"EXPR"`
}

// Run puts the trigger and prints it.
func (c *TriggerPutCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	body, err := c.body(app)
	if err != nil {
		return err
	}
	document, err := client.do(app.Ctx, request{method: http.MethodPut, path: triggerPath(c.Name, ""), body: body})
	if err != nil {
		return fmt.Errorf("put trigger %s: %w", safeLine(c.Name), err)
	}
	if c.JSON {
		return printJSON(app.Stdout, document)
	}
	var t work.Trigger
	if err := json.Unmarshal(document, &t); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	return printTriggers(app.Stdout, []work.Trigger{t})
}

// body is what was said; what was not is left to the server.
func (c *TriggerPutCommand) body(app *App) (map[string]any, error) {
	unit, err := readUnit(app, c.Unit)
	if err != nil {
		return nil, err
	}
	body := map[string]any{"preset": c.Preset, "paused": c.Paused}
	if c.Batch {
		body["batch"] = unit
	} else {
		body["unit"] = unit
	}
	for name, value := range map[string]string{
		"filter": c.Filter, "header": c.Header, "algorithm": c.Algorithm, "encoding": c.Encoding, "prefix": c.Prefix, "signed": c.Signed,
		"timestamp_header": c.TimestampHeader, "id_header": c.IDHeader, "username": c.Username, "tolerance": c.Tolerance,
		"event_from": c.EventFrom, "delivery_from": c.DeliveryFrom,
	} {
		if value != "" {
			body[name] = value
		}
	}
	if c.MaxBody != 0 {
		body["max_body_bytes"] = c.MaxBody
	}
	if len(c.Event) > 0 {
		body["events"] = c.Event
	}
	mapping := map[string]string{}
	for _, pair := range c.Map {
		key, source, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, usagef("--map: %q: write KEY=EXPR, such as title=body.title", pair)
		}
		mapping[key] = source
	}
	if len(mapping) > 0 {
		body["mapping"] = mapping
	}
	var secrets []string
	for _, path := range c.SecretFile {
		secret, err := readSecret(path)
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) > 0 {
		body["secrets"] = secrets
	}
	return body, nil
}

// readSecret reads a file whose last line end nobody means. Secrets come in no
// other way: a command line can be seen by others.
func readSecret(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", usagef("--secret-file: %w", err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// TriggerShowCommand is `piecework trigger show`.
type TriggerShowCommand struct {
	Remote
	Name  string `arg:"" help:"The trigger's name."`
	Limit int    `help:"How much of what came to show." default:"20" placeholder:"N"`
}

// Run prints the trigger and what came for it.
func (c *TriggerShowCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	document, err := client.get(app.Ctx, triggerPath(c.Name, ""), nil)
	if err != nil {
		return fmt.Errorf("show trigger %s: %w", safeLine(c.Name), err)
	}
	came, err := client.get(app.Ctx, triggerPath(c.Name, "/deliveries"), url.Values{"limit": {fmt.Sprint(c.Limit)}})
	if err != nil {
		return fmt.Errorf("show what came for trigger %s: %w", safeLine(c.Name), err)
	}
	var list struct {
		Items []work.TriggerDelivery `json:"items"`
	}
	var t work.Trigger
	if err := errors.Join(json.Unmarshal(document, &t), json.Unmarshal(came, &list)); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	if c.JSON {
		whole, err := json.Marshal(map[string]any{"trigger": json.RawMessage(document), "deliveries": list.Items})
		if err != nil {
			return err
		}
		return printJSON(app.Stdout, whole)
	}
	if err := printTriggers(app.Stdout, []work.Trigger{t}); err != nil {
		return err
	}
	fmt.Fprintf(app.Stdout, "takes bodies of %d bytes at most\n", t.MaxBodyBytes)
	for _, key := range slices.Sorted(maps.Keys(t.Mapping)) {
		fmt.Fprintf(app.Stdout, "%s = %s\n", safeLine(key), safeLine(t.Mapping[key]))
	}
	fmt.Fprintln(app.Stdout)
	return printTriggerDeliveries(app.Stdout, list.Items)
}

func printTriggerDeliveries(w io.Writer, deliveries []work.TriggerDelivery) error {
	t := newTable(w, "RECEIVED", "OUTCOME", "EVENT", "MADE", "AGAIN", "DELIVERY")
	for _, d := range deliveries {
		made := "-"
		switch {
		case d.UnitID != nil:
			made = d.UnitID.String()
		case d.BatchID != nil:
			made = "batch " + d.BatchID.String()
		}
		t.row(clock(&d.ReceivedAt), d.Outcome, excerpt(d.Event, 40), made, fmt.Sprint(d.Duplicates), excerpt(d.Delivery, 60))
	}
	return t.flush()
}

// TriggerRmCommand is `piecework trigger rm`.
type TriggerRmCommand struct {
	Remote
	Name string `arg:"" help:"The trigger's name."`
}

// Run deletes the trigger.
func (c *TriggerRmCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	if _, err := client.do(app.Ctx, request{method: http.MethodDelete, path: triggerPath(c.Name, "")}); err != nil {
		return fmt.Errorf("delete trigger %s: %w", safeLine(c.Name), err)
	}
	return nil
}

// TriggerSendCommand is `piecework trigger send`.
type TriggerSendCommand struct {
	Remote
	Name       string `arg:"" help:"The trigger's name."`
	Body       string `arg:"" default:"-" placeholder:"PATH" help:"File with the body, in JSON; - is standard input."`
	SecretFile string `help:"File with a secret of the trigger." required:"" placeholder:"PATH"`
	Event      string `help:"The event, where a header has it (github)." placeholder:"NAME"`
	ID         string `name:"id" help:"The delivery's id, where a header has it; a new one by default." placeholder:"ID"`
}

// Run sends the webhook and prints what became of it.
func (c *TriggerSendCommand) Run(app *App) error {
	client, err := newClient(app, c.Remote)
	if err != nil {
		return err
	}
	secret, err := readSecret(c.SecretFile)
	if err != nil {
		return err
	}
	body, err := readInput(app, c.Body)
	if err != nil {
		return usagef("read the body: %w", err)
	}
	document, err := client.get(app.Ctx, triggerPath(c.Name, ""), nil)
	if err != nil {
		return fmt.Errorf("send to trigger %s: %w", safeLine(c.Name), err)
	}
	var t work.Trigger
	if err := json.Unmarshal(document, &t); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	if c.ID == "" {
		c.ID = uuid.NewString()
	}
	header, err := webhook.Imitate(t.Scheme, secret, c.Event, c.ID, body, time.Now())
	if err != nil {
		return usagef("--secret-file: %w", err)
	}
	document, err = client.do(app.Ctx, request{method: http.MethodPost, path: triggerPath(c.Name, ""), stream: bytes.NewReader(body),
		header: header})
	if p := (*problem)(nil); errors.As(err, &p) && p.Status == http.StatusUnauthorized {
		return usagef("trigger %s has no such secret: its fingerprints are in `piecework trigger ls`, that of this one is %s", safeLine(c.Name), webhook.Fingerprint(secret))
	}
	if err != nil {
		return fmt.Errorf("send to trigger %s: %w", safeLine(c.Name), err)
	}
	if c.JSON {
		return printJSON(app.Stdout, document)
	}
	var got struct {
		Outcome string     `json:"outcome"`
		UnitID  *uuid.UUID `json:"unit_id"`
		BatchID *uuid.UUID `json:"batch_id"`
		Detail  string     `json:"detail"`
	}
	if err := json.Unmarshal(document, &got); err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("read the answer: %w", err)}
	}
	switch {
	case got.UnitID != nil:
		fmt.Fprintln(app.Stdout, got.Outcome, got.UnitID)
	case got.BatchID != nil:
		fmt.Fprintln(app.Stdout, got.Outcome, "batch", got.BatchID)
	case got.Detail != "":
		fmt.Fprintln(app.Stdout, safeLine(got.Outcome+": "+got.Detail))
	default:
		fmt.Fprintln(app.Stdout, safeLine(got.Outcome))
	}
	return nil
}
