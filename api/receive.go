package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"piecework/internal/expr"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

const (
	// maxReceiving is how many webhooks are worked on at once. Those beyond are
	// sent away before they cost anything: senders come again, and what has been
	// taken is answered in time.
	maxReceiving = 512
	// hookAge is how old what is known of a trigger may be: another process may
	// have put it anew.
	hookAge  = time.Second
	maxHooks = 1000
	// maxName is the longest name of a delivery or an event that is kept as it is.
	maxName = 200
)

// hook is a trigger that is ready to receive.
type hook struct {
	work.Trigger
	rules   jobs.TriggerRules
	batch   *jobs.TriggerBatch // nil: it makes units
	secrets []string
	payload map[string]json.RawMessage // of the unit, before anything came
	refused sync.Once                  // one line of the log in each hookAge tells of refusals
}

// hooks are the triggers that were asked for lately.
type hooks struct {
	busy chan struct{} // has a token for each webhook that is worked on

	mu   sync.Mutex
	held map[string]heldHook
}

type heldHook struct {
	*hook
	err   error
	until time.Time
}

func newHooks() *hooks {
	return &hooks{busy: make(chan struct{}, maxReceiving), held: map[string]heldHook{}}
}

func (h *hooks) find(name string) (heldHook, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held, ok := h.held[name]
	return held, ok && time.Now().Before(held.until)
}

func (h *hooks) keep(name string, held heldHook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.held) >= maxHooks {
		clear(h.held) // somebody tries names
	}
	held.until = time.Now().Add(hookAge)
	h.held[name] = held
}

func (h *hooks) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, name)
}

// hook finds a trigger, as it was at most hookAge ago.
func (a *API) hook(ctx context.Context, name string) (*hook, error) {
	if !nameForm.MatchString(name) {
		return nil, work.ErrNotFound
	}
	if held, ok := a.hooks.find(name); ok {
		return held.hook, held.err
	}
	h, err := a.readHook(ctx, name)
	if err == nil || errors.Is(err, work.ErrNotFound) {
		a.hooks.keep(name, heldHook{hook: h, err: err})
	}
	return h, err
}

func (a *API) readHook(ctx context.Context, name string) (*hook, error) {
	t, err := a.Store.Triggers.Get(ctx, work.DefaultTenant, name)
	if err != nil {
		return nil, err
	}
	h := &hook{Trigger: t, payload: map[string]json.RawMessage{}}
	if h.rules, err = a.CompileTrigger(t); err != nil {
		return nil, fmt.Errorf("compile trigger %s: %w", name, errors.New(err.Error())) // not the sender's fault
	}
	for _, stored := range t.Sealed {
		secret, err := a.Sealer.Open(sealOwner(&t), stored)
		if err != nil {
			a.Log.Error("a trigger cannot be used", "trigger", name, "err", err)
			return nil, newProblem(http.StatusServiceUnavailable, "this trigger cannot check signatures now; the server's log says why")
		}
		h.secrets = append(h.secrets, secret)
	}
	if t.Unit == nil {
		h.batch, err = jobs.ReadTriggerBatch(t)
		return h, err
	}
	if err := json.Unmarshal(t.Unit.Payload, &h.payload); err != nil {
		return nil, fmt.Errorf("read the payload of trigger %s: %w", name, err)
	}
	return h, nil
}

// receipt answers a webhook.
type receipt struct {
	Outcome  string     `json:"outcome"` // accepted, duplicate, filtered, paused, pong
	Delivery string     `json:"delivery,omitempty"`
	Event    string     `json:"event,omitempty"`
	UnitID   *uuid.UUID `json:"unit_id,omitempty"`
	BatchID  *uuid.UUID `json:"batch_id,omitempty"`
	Detail   string     `json:"detail,omitempty"`
}

// receiveWebhook takes what came for a trigger: it computes the signature of the
// raw body while that comes in, looks at nothing else of it before, and makes a
// unit or a batch at most once.
func (a *API) receiveWebhook(c echo.Context) error {
	outcome := "failed"
	defer func() { a.received.WithLabelValues(outcome).Inc() }()
	ctx := c.Request().Context()
	h, err := a.hook(ctx, c.Param("name"))
	if err != nil {
		return err
	}
	if enc := c.Request().Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return newProblem(http.StatusUnsupportedMediaType, "send the body without Content-Encoding")
	}
	verifier, err := webhook.Begin(h.Scheme, h.secrets, c.Request().Header, time.Now())
	if err != nil {
		outcome = "refused"
		return a.refuseWebhook(c, h, err) // before anything of the body is read
	}
	select {
	case a.hooks.busy <- struct{}{}:
		defer func() { <-a.hooks.busy }()
	default:
		outcome = "shed"
		busy := newProblem(http.StatusTooManyRequests, "too many webhooks at once; send this one again")
		busy.retryAfter = 1
		return busy
	}
	came := &pieces{budget: a.flight}
	defer came.drop()
	if problem := a.readHookBody(c, h, verifier, came); problem != nil {
		if problem.retryAfter > 0 {
			outcome = "shed"
		}
		return problem
	}
	proof, err := verifier.Done(time.Now())
	if err != nil {
		outcome = "refused"
		return a.refuseWebhook(c, h, err)
	}
	body, err := came.whole()
	if err != nil {
		outcome = "shed"
		return errNoRoom.again()
	}
	m, err := readMessage(h, c.Request().Header, body)
	if err != nil {
		return err
	}
	if answer := m.handshake(h.Preset); answer != nil {
		outcome = "pong"
		return c.JSON(http.StatusOK, answer)
	}
	got, err := a.take(ctx, h, m, proof)
	if err != nil {
		return err
	}
	outcome = got.Outcome
	return answerReceipt(c, h, m, got)
}

// refuseWebhook answers who does not prove to be the sender.
func (a *API) refuseWebhook(c echo.Context, h *hook, why error) error {
	h.refused.Do(func() {
		a.Log.Warn("webhook refused", "trigger", h.Name, "why", why, "request_id", requestID(c))
	})
	if h.Preset == webhook.Basic {
		c.Response().Header().Set("WWW-Authenticate", `Basic realm="piecework"`)
	}
	return newProblem(http.StatusUnauthorized, "this webhook does not prove who sent it")
}

func answerReceipt(c echo.Context, h *hook, m *message, got receipt) error {
	status := http.StatusOK
	switch {
	case got.UnitID != nil:
		c.Response().Header().Set(echo.HeaderLocation, "/work-units/"+got.UnitID.String())
	case got.BatchID != nil:
		c.Response().Header().Set(echo.HeaderLocation, "/batches/"+got.BatchID.String())
	}
	if h.Preset == webhook.Slack && m.form {
		// Slack shows the answer to a command or a button to the person, and
		// takes no status but this.
		return c.NoContent(status)
	}
	if got.Outcome == work.DeliveryAccepted {
		status = http.StatusAccepted
	}
	return c.JSON(status, got)
}

// take decides what becomes of a verified message, and has it committed.
func (a *API) take(ctx context.Context, h *hook, m *message, proof webhook.Proof) (receipt, error) {
	if err := h.identify(ctx, m, proof); err != nil {
		return receipt{}, err
	}
	d := work.TriggerDelivery{ID: uuid.Must(uuid.NewV7()), Tenant: h.Tenant, Trigger: h.Name, Delivery: m.Delivery, Event: m.Event}
	got := receipt{Delivery: m.Delivery, Event: m.Event}
	if d.Outcome, got.Detail = h.declines(ctx, m); d.Outcome != "" {
		noted, err := a.Store.Triggers.Decline(ctx, d)
		got.Outcome = d.Outcome
		if noted.Outcome == work.DeliveryAccepted { // before the trigger was changed
			got.repeats(noted)
		}
		return got, err
	}
	if h.batch != nil {
		noted, err := a.takeBatch(ctx, h, m, d)
		if got.Outcome, got.BatchID = noted.Outcome, noted.BatchID; err == nil && noted.ID != d.ID {
			got.repeats(noted)
		}
		return got, err
	}
	n, err := h.newUnit(ctx, m, int(a.MaxBody))
	if err != nil {
		return got, err
	}
	n.ID, n.Delivery = d.ID, &d
	unit, again, err := a.Submit(ctx, n)
	if errors.Is(err, store.ErrMadeBatch) {
		noted, err := a.Store.Triggers.Redelivered(ctx, d)
		got.repeats(noted)
		return got, err
	}
	if err != nil {
		return got, err
	}
	got.Outcome, got.UnitID = work.DeliveryAccepted, &unit.ID
	if again {
		got.Outcome = "duplicate"
	}
	return got, nil
}

// repeats says what the same delivery made before.
func (r *receipt) repeats(noted work.TriggerDelivery) {
	r.Outcome, r.UnitID, r.BatchID, r.Detail = "duplicate", noted.UnitID, noted.BatchID, ""
}

// message is a verified webhook as expressions see it.
type message struct {
	expr.Vars
	raw  json.RawMessage // the body as JSON
	form bool            // it came as a form
}

// readMessage reads the body by its content type. GitHub and Slack put JSON
// into the field payload of a form.
func readMessage(h *hook, header http.Header, body []byte) (*message, error) {
	m := &message{Vars: expr.Vars{Headers: webhook.Public(h.Scheme, header)}, raw: body}
	kind, _, _ := mime.ParseMediaType(header.Get("Content-Type")) // what cannot be read is no form
	switch {
	case kind == "application/x-www-form-urlencoded":
		if err := m.readForm(body); err != nil {
			return nil, err
		}
	case len(bytes.TrimSpace(body)) == 0:
		m.raw = json.RawMessage("null")
	case kind != "" && kind != "application/json" && !strings.HasSuffix(kind, "+json") && !json.Valid(body):
		text, err := json.Marshal(work.Clean(string(body)))
		if err != nil {
			return nil, err
		}
		m.raw = text
	}
	if problem := checkJSON(m.raw); problem != nil {
		return nil, problem
	}
	var err error
	m.Body, err = expr.Read(m.raw)
	return m, err
}

func (m *message) readForm(body []byte) error {
	m.form = true
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return newProblem(http.StatusBadRequest, "the form in the body cannot be read")
	}
	if payload := values.Get("payload"); payload != "" {
		m.raw = json.RawMessage(payload)
		return nil
	}
	fields := map[string]string{}
	for name := range values {
		fields[work.Clean(name)] = work.Clean(values.Get(name))
	}
	m.raw, err = json.Marshal(fields)
	return err
}

// text is a text in the body, by the path to it; empty when there is none.
func (m *message) text(path ...string) string {
	at := m.Body
	for _, name := range path {
		object, ok := at.(map[string]any)
		if !ok {
			return ""
		}
		at = object[name]
	}
	text, _ := at.(string)
	return text
}

// handshake is the answer to what a sender asks before it sends, nil for all
// else.
func (m *message) handshake(preset string) any {
	switch {
	case preset == webhook.GitHub && m.Headers["x-github-event"] == "ping":
		return receipt{Outcome: "pong"}
	case preset == webhook.Slack && m.text("type") == "url_verification":
		return map[string]string{"challenge": m.text("challenge")}
	}
	return nil
}

// identify finds the names of event and delivery. A delivery without a name is
// known by what was signed, so that a replay of it is no second one; where
// nothing is signed either, each is another.
func (h *hook) identify(ctx context.Context, m *message, proof webhook.Proof) error {
	m.Delivery = proof.ID
	switch h.Preset {
	case webhook.GitHub:
		m.Event = m.Headers["x-github-event"]
	case webhook.Standard:
		m.Event = m.text("type")
	case webhook.Stripe:
		m.Event, m.Delivery = m.text("type"), m.text("id")
	case webhook.Slack:
		m.Event = cmp.Or(m.text("event", "type"), m.text("command"), m.text("type"))
		m.Delivery = cmp.Or(m.text("event_id"), m.text("trigger_id"))
	}
	for name, part := range map[string]struct {
		program *expr.Program
		into    *string
	}{"event_from": {h.rules.Event, &m.Event}, "delivery_from": {h.rules.Delivery, &m.Delivery}} {
		if part.program == nil {
			continue
		}
		text, err := part.program.Text(ctx, m.Vars)
		if err != nil && !errors.Is(err, expr.ErrMissing) {
			return work.Invalidf("#", "the trigger's %s: %v", name, err)
		}
		*part.into = text
	}
	m.Event, _ = work.Cut(work.Clean(m.Event), maxName)
	m.Delivery = work.Clean(cmp.Or(m.Delivery, proof.Digest, uuid.NewString()))
	if len(m.Delivery) > maxName {
		sum := sha256.Sum256([]byte(m.Delivery))
		m.Delivery = hex.EncodeToString(sum[:])
	}
	return nil
}

// declines tells why a message makes no unit, if it makes none. A condition
// about something that is not there does not hold.
func (h *hook) declines(ctx context.Context, m *message) (outcome, detail string) {
	switch {
	case h.Paused:
		return work.DeliveryPaused, "the trigger is paused; send this again when it is not"
	case !h.Wants(m.Event):
		return work.DeliveryFiltered, fmt.Sprintf("the event %q is not one of the trigger's", m.Event)
	case h.rules.Filter == nil:
		return "", ""
	}
	wanted, err := h.rules.Filter.Bool(ctx, m.Vars)
	switch {
	case err != nil:
		return work.DeliveryFiltered, "the trigger's filter: " + work.Clean(err.Error())
	case !wanted:
		return work.DeliveryFiltered, "the trigger's filter does not hold"
	}
	return "", ""
}

// newUnit is the unit that a message makes. What the mapping does not find is
// left out of the payload: the unit's missing_key says what follows.
func (h *hook) newUnit(ctx context.Context, m *message, limit int) (store.NewUnit, error) {
	n := store.NewUnit{Unit: work.Unit{Tenant: h.Tenant, Spec: *h.Unit}}
	payload, err := h.mapped(ctx, m, limit)
	if err != nil {
		return n, err
	}
	if len(h.rules.Keys) == 0 {
		event, _ := json.Marshal(m.Event) // texts always can be
		delivery, _ := json.Marshal(m.Delivery)
		payload["body"], payload["event"], payload["delivery"] = m.raw, event, delivery
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(payload); err != nil {
		return n, fmt.Errorf("encode the payload: %w", err)
	}
	n.Payload = text.Bytes()
	n.Title = jobs.Title(&n.Spec)
	return n, nil
}
