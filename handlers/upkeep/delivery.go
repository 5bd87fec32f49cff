package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

const (
	// deliveryLease is how long a try may take before others make another.
	deliveryLease = webhook.Timeout + 20*time.Second
	// retryEvery is the pause before a try is written down again.
	retryEvery = time.Second
	// slowest is the longest that one answer puts off a receiver's other messages.
	slowest = time.Hour
	// dueReceivers is how many receivers are looked for at once without Redis.
	dueReceivers = 1000
)

// Deliveries brings messages to receivers of webhooks.
type Deliveries struct {
	Store     *store.Store
	Queue     *queue.Client
	Log       *slog.Logger
	Process   uuid.UUID
	Sender    *webhook.Sender
	Redact    func(string) string
	Heartbeat *Heartbeat
	Drain     *Drain
	WakeUp    Signal // something is to be delivered

	receivers *receivers
	ended     *prometheus.CounterVec
}

// Init makes Deliveries ready.
func (d *Deliveries) Init(r prometheus.Registerer) {
	d.WakeUp, d.receivers = NewSignal(), newReceivers(d.deliverNext)
	d.ended = promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "piecework_delivery_tries_total", Help: "Tries to deliver a webhook, by how they ended.",
	}, []string{"outcome"})
}

// Offer says that something may be due for a receiver. It does not wait.
func (d *Deliveries) Offer(receiver uuid.UUID) { d.receivers.offer(receiver) }

// Wait keeps the messages of deliveries for others while this process has
// lost Postgres.
func (d *Deliveries) Wait(string, string) time.Duration {
	if d.Heartbeat.CutOff() {
		return Never
	}
	return 0
}

// Close lets messages on their way arrive for the grace period, and gives up the rest.
func (d *Deliveries) Close() { d.receivers.close(d.Drain.Grace) }

// deliverNext makes one try to deliver to a receiver, if something is due.
func (d *Deliveries) deliverNext(to uuid.UUID) (found, took bool) {
	one, err := d.Store.Deliveries.Claim(d.receivers.ctx, to, d.Process, deliveryLease, webhook.NewSecret())
	if err != nil || one == nil {
		if err != nil {
			d.Log.Debug("look for a delivery; the reconciler enqueues it again", "receiver", to, "err", err)
		}
		return false, false
	}
	answer := d.Sender.Send(d.receivers.ctx, webhook.Message{
		ID: one.WebhookID, URL: one.URL, Body: []byte(d.Redact(string(one.Body))), Secrets: one.Secrets.All(),
	}, time.Now())
	try := tryOf(one, answer, rand.Float64())
	if answer.Err != nil && d.receivers.ctx.Err() != nil {
		try = store.Try{ID: one.ID, Attempt: one.Attempts, Released: true, Error: "the worker process shut down before an answer came"}
	}
	state, err := d.record(try)
	if err != nil {
		d.Log.Warn("a try to deliver is not noted; it will be made again", "delivery", one.ID, "err", err)
		return true, try.Delivered
	}
	d.ended.WithLabelValues(outcomeOf(try)).Inc()
	if state == work.DeliveryDead {
		d.Log.Warn("delivery given up", "delivery", one.ID, "endpoint", one.EndpointID,
			"unit", one.UnitID, "event", one.EventType, "attempts", one.Attempts, "err", answer.Err)
	}
	if err := d.obey(to, one, answer); err != nil {
		d.Log.Warn("note what a receiver asks for", "receiver", to, "err", err)
	}
	return true, try.Delivered
}

// obey does what a receiver asks for besides: leave it alone, for a while
// or for good.
func (d *Deliveries) obey(to uuid.UUID, one *store.ClaimedDelivery, answer webhook.Answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryLease)
	defer cancel()
	if answer.Gone() && one.EndpointID != nil {
		disabled, err := d.Store.Endpoints.DisableGone(ctx, *one.EndpointID, one.URL)
		if disabled {
			d.Log.Warn("webhook endpoint disabled: it answered 410", "endpoint", one.EndpointID)
		}
		return err
	}
	if answer.RetryAfter > 0 {
		return d.Store.Deliveries.Defer(ctx, to, min(answer.RetryAfter, slowest))
	}
	return nil
}

// tryOf is what is written down of an answer.
func tryOf(d *store.ClaimedDelivery, a webhook.Answer, chance float64) store.Try {
	t := store.Try{ID: d.ID, Attempt: d.Attempts, Status: a.Status, Response: a.Body, Delivered: a.Err == nil}
	if a.Err == nil {
		return t
	}
	t.Error = a.Err.Error()
	if t.Dead = a.Gone() || d.Failed+1 >= webhook.Tries; !t.Dead {
		t.Wait = webhook.Wait(d.Failed+1, a.RetryAfter, chance)
	}
	return t
}

func outcomeOf(t store.Try) string {
	switch {
	case t.Delivered:
		return "delivered"
	case t.Dead:
		return "dead"
	case t.Released:
		return "released"
	}
	return "failed"
}

// record writes down a try, again and again while Postgres is away, for as
// long as nobody else may have begun another.
func (d *Deliveries) record(t store.Try) (work.DeliveryState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryLease-webhook.Timeout)
	defer cancel()
	stopWaiting := d.Drain.Bound(cancel)
	defer stopWaiting()
	for {
		state, err := d.Store.Deliveries.Finish(ctx, t)
		if !errors.As(err, new(*work.Unavailable)) || ctx.Err() != nil {
			return state, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

// Poll delivers without Redis: it asks Postgres for receivers that something is due
// for.
func (d *Deliveries) Poll(ctx context.Context) error {
	if d.Queue.Up() {
		return nil
	}
	due, err := d.Store.Deliveries.DueReceivers(ctx, dueReceivers)
	if err != nil {
		return fmt.Errorf("look for deliveries without redis: %w", err)
	}
	for _, to := range due {
		d.Offer(to)
	}
	return nil
}
