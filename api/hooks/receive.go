// Package hooks has webhooks in both directions: those that come for triggers, and
// the endpoints to which ours go.
//
//	trigger.go        triggers: put, read, list, delete; what came for them
//	receive.go        webhooks that come for triggers
//	message.go        a webhook as expressions see it
//	receive_batch.go  the batches that they make
//	endpoint.go       endpoints, and the secrets by which they know that it is us
//	delivery.go       what was sent to them, and how often it was tried
//	describe.go       what the API's description says about them
package hooks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"piecework/api/body"
	"piecework/api/problem"
	"piecework/api/query"
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

// TriggerOptions is what triggers need.
type TriggerOptions struct {
	Store     *store.Store
	Submitter *jobs.Submitter
	Sealer    webhook.Sealer
	Bodies    *body.Reader
	Log       *slog.Logger
}

// Triggers are the routes of triggers, and what receives webhooks for them.
type Triggers struct {
	TriggerOptions
	busy     chan struct{} // has a token for each webhook that is worked on
	cache    triggerCache
	received *prometheus.CounterVec
}

// NewTriggers makes them.
func NewTriggers(o TriggerOptions, registry *prometheus.Registry) *Triggers {
	return &Triggers{TriggerOptions: o, busy: make(chan struct{}, maxReceiving), cache: triggerCache{triggers: map[string]cachedTrigger{}},
		received: promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
			Name: "piecework_trigger_deliveries_total", Help: "Webhooks that came for triggers.",
		}, []string{"outcome"})}
}

// Acquire takes one of the places for webhooks that are worked on, if one is free.
func (a *Triggers) Acquire() (release func(), ok bool) {
	select {
	case a.busy <- struct{}{}:
		return func() { <-a.busy }, true
	default:
		return nil, false
	}
}

// hook is a trigger that is ready to receive.
type hook struct {
	work.Trigger
	rules   jobs.TriggerRules
	batch   *jobs.TriggerBatch // nil: it makes units
	secrets []string
	payload map[string]json.RawMessage // of the unit, before anything came
	refused sync.Once                  // one line of the log in each hookAge tells of refusals
}

// triggerCache has the triggers that were asked for lately.
type triggerCache struct {
	mu       sync.Mutex
	triggers map[string]cachedTrigger
}

type cachedTrigger struct {
	*hook
	err   error
	until time.Time
}

func (c *triggerCache) find(name string) (cachedTrigger, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached, ok := c.triggers[name]
	return cached, ok && time.Now().Before(cached.until)
}

func (c *triggerCache) put(name string, t cachedTrigger) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.triggers) >= maxHooks {
		clear(c.triggers) // somebody tries names
	}
	t.until = time.Now().Add(hookAge)
	c.triggers[name] = t
}

func (c *triggerCache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.triggers, name)
}

// hook finds a trigger, as it was at most hookAge ago.
func (a *Triggers) hook(ctx context.Context, name string) (*hook, error) {
	if !query.Name.MatchString(name) {
		return nil, work.ErrNotFound
	}
	if cached, ok := a.cache.find(name); ok {
		return cached.hook, cached.err
	}
	h, err := a.readHook(ctx, name)
	if err == nil || errors.Is(err, work.ErrNotFound) {
		a.cache.put(name, cachedTrigger{hook: h, err: err})
	}
	return h, err
}

func (a *Triggers) readHook(ctx context.Context, name string) (*hook, error) {
	t, err := a.Store.Triggers.Get(ctx, work.DefaultTenant, name)
	if err != nil {
		return nil, err
	}
	h := &hook{Trigger: t, payload: map[string]json.RawMessage{}}
	if h.rules, err = a.Submitter.CompileTrigger(t); err != nil {
		return nil, fmt.Errorf("compile trigger %s: %w", name, errors.New(err.Error())) // not the sender's fault
	}
	for _, stored := range t.Sealed {
		secret, err := a.Sealer.Open(sealOwner(&t), stored)
		if err != nil {
			a.Log.Error("a trigger cannot be used", "trigger", name, "err", err)
			return nil, problem.New(http.StatusServiceUnavailable, "this trigger cannot check signatures now; the server's log says why")
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

// Receipt answers a webhook.
type Receipt struct {
	Outcome  string     `json:"outcome"` // accepted, duplicate, filtered, paused, pong
	Delivery string     `json:"delivery,omitempty"`
	Event    string     `json:"event,omitempty"`
	UnitID   *uuid.UUID `json:"unit_id,omitempty"`
	BatchID  *uuid.UUID `json:"batch_id,omitempty"`
	Detail   string     `json:"detail,omitempty"`
}

// Receive takes what came for a trigger: it computes the signature of the
// raw body while that comes in, looks at nothing else of it before, and makes a
// unit or a batch at most once.
func (a *Triggers) Receive(c echo.Context) error {
	outcome := "failed"
	defer func() { a.received.WithLabelValues(outcome).Inc() }()
	ctx := c.Request().Context()
	h, err := a.hook(ctx, c.Param("name"))
	if err != nil {
		return err
	}
	if enc := c.Request().Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return problem.New(http.StatusUnsupportedMediaType, "send the body without Content-Encoding")
	}
	verifier, err := webhook.Begin(h.Scheme, h.secrets, c.Request().Header, time.Now())
	if err != nil {
		outcome = "refused"
		return a.refuseWebhook(c, h, err) // before anything of the body is read
	}
	release, ok := a.Acquire()
	if !ok {
		outcome = "shed"
		busy := problem.New(http.StatusTooManyRequests, "too many webhooks at once; send this one again")
		busy.RetryAfter = 1
		return busy
	}
	defer release()
	came := &body.Pieces{Budget: a.Bodies.Budget}
	defer came.Drop()
	if problem := a.readHookBody(c, h, verifier, came); problem != nil {
		if problem.RetryAfter > 0 {
			outcome = "shed"
		}
		return problem
	}
	proof, err := verifier.Done(time.Now())
	if err != nil {
		outcome = "refused"
		return a.refuseWebhook(c, h, err)
	}
	sent, err := came.Whole()
	if err != nil {
		outcome = "shed"
		return body.ErrNoRoom.Again()
	}
	m, err := readMessage(h, c.Request().Header, sent)
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
func (a *Triggers) refuseWebhook(c echo.Context, h *hook, why error) error {
	h.refused.Do(func() {
		a.Log.Warn("webhook refused", "trigger", h.Name, "why", why, "request_id", problem.RequestID(c))
	})
	if h.Preset == webhook.Basic {
		c.Response().Header().Set("WWW-Authenticate", `Basic realm="piecework"`)
	}
	return problem.New(http.StatusUnauthorized, "this webhook does not prove who sent it")
}

// take decides what becomes of a verified message, and has it committed.
func (a *Triggers) take(ctx context.Context, h *hook, m *message, proof webhook.Proof) (Receipt, error) {
	if err := h.identify(ctx, m, proof); err != nil {
		return Receipt{}, err
	}
	d := work.TriggerDelivery{ID: uuid.Must(uuid.NewV7()), Tenant: h.Tenant, Trigger: h.Name, Delivery: m.Delivery, Event: m.Event}
	got := Receipt{Delivery: m.Delivery, Event: m.Event}
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
	n, err := h.newUnit(ctx, m, int(a.Bodies.Max))
	if err != nil {
		return got, err
	}
	n.ID, n.Delivery = d.ID, &d
	unit, again, err := a.Submitter.Submit(ctx, n)
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
func (r *Receipt) repeats(noted work.TriggerDelivery) {
	r.Outcome, r.UnitID, r.BatchID, r.Detail = "duplicate", noted.UnitID, noted.BatchID, ""
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
