package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

const (
	// deliveryLease is how long a try may take before others make another.
	deliveryLease = webhook.Timeout + 20*time.Second
	// slowest is the longest that one answer puts off a receiver's other messages.
	slowest = time.Hour
	// dueReceivers is how many receivers are looked for at once without Redis.
	dueReceivers = 1000
)

// serveDeliveries starts an Asynq server for the bells of deliveries: slow
// receivers hold up no unit.
func (w *Worker) serveDeliveries() (stop func(), err error) {
	client := w.Bell.ServerClient(1, jobs.Gate{
		Wait: w.deliveryWait, Took: func(string) {},
	}, w.deliveryRung)
	server := asynq.NewServerFromRedisClient(client, asynq.Config{
		Concurrency: 1, Queues: map[string]int{w.Bell.DeliveryLane(): 1}, TaskCheckInterval: jobs.CheckInterval,
		DelayedTaskCheckInterval: jobs.SweepInterval, JanitorInterval: jobs.SweepInterval,
		ShutdownTimeout: time.Second, Logger: asynqLog{w.Log}, LogLevel: asynq.WarnLevel,
	})
	err = server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var task jobs.DeliverTask
		if err := json.Unmarshal(t.Payload(), &task); err != nil {
			return fmt.Errorf("read task: %w", err)
		}
		w.courier.offer(task.Receiver) // it waits there, if it has to, and holds no task up
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("start asynq server of deliveries: %w", err)
	}
	return func() {
		client.Release()
		w.asynqEnds(server.Stop)
		w.courier.close(w.Grace)
		w.asynqEnds(server.Shutdown)
	}, nil
}

// deliveryWait keeps the bells of deliveries for others while this process has
// lost Postgres.
func (w *Worker) deliveryWait(string, string) time.Duration {
	if w.cutOff() {
		return never
	}
	return 0
}

// wakeDeliveries ends the wait for bells.
func (w *Worker) wakeDeliveries() {
	select {
	case w.deliveryRung <- struct{}{}:
	default:
	}
}

// deliverNext makes one try to deliver to a receiver, if something is due.
func (w *Worker) deliverNext(to uuid.UUID) (found, took bool) {
	d, err := w.Store.Deliveries.Claim(w.courier.ctx, to, w.id, deliveryLease, webhook.NewSecret())
	if err != nil || d == nil {
		if err != nil {
			w.Log.Debug("look for a delivery; the reconciler will ring again", "receiver", to, "err", err)
		}
		return false, false
	}
	answer := w.Sender.Send(w.courier.ctx, webhook.Message{ID: d.WebhookID, URL: d.URL, Body: []byte(w.redact(string(d.Body))), Secrets: d.Secrets.All()}, time.Now())
	try := tryOf(d, answer, rand.Float64())
	if answer.Err != nil && w.courier.ctx.Err() != nil {
		try = store.Try{ID: d.ID, Attempt: d.Attempts, Released: true, Error: "the worker process shut down before an answer came"}
	}
	state, err := w.noteTry(try)
	if err != nil {
		w.Log.Warn("a try to deliver is not noted; it will be made again", "delivery", d.ID, "err", err)
		return true, try.Delivered
	}
	w.metrics.deliveries.WithLabelValues(outcomeOf(try)).Inc()
	if state == work.DeliveryDead {
		w.Log.Warn("delivery given up", "delivery", d.ID, "endpoint", d.EndpointID, "unit", d.UnitID, "event", d.EventType, "attempts", d.Attempts, "err", answer.Err)
	}
	if err := w.heedAnswer(to, d, answer); err != nil {
		w.Log.Warn("note what a receiver asks for", "receiver", to, "err", err)
	}
	return true, try.Delivered
}

// heedAnswer does what a receiver asks for besides: leave it alone, for a while
// or for good.
func (w *Worker) heedAnswer(to uuid.UUID, d *store.ClaimedDelivery, answer webhook.Answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryLease)
	defer cancel()
	if answer.Gone() && d.EndpointID != nil {
		disabled, err := w.Store.Endpoints.DisableGone(ctx, *d.EndpointID, d.URL)
		if disabled {
			w.Log.Warn("webhook endpoint disabled: it answered 410", "endpoint", d.EndpointID)
		}
		return err
	}
	if answer.RetryAfter > 0 {
		return w.Store.Deliveries.Defer(ctx, to, min(answer.RetryAfter, slowest))
	}
	return nil
}

// tryOf is what the ledger is told of an answer.
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

// noteTry writes down a try, again and again while Postgres is away, for as
// long as nobody else may have begun another.
func (w *Worker) noteTry(t store.Try) (work.DeliveryState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryLease-webhook.Timeout)
	defer cancel()
	stopWaiting := w.lastly(cancel)
	defer stopWaiting()
	for {
		state, err := w.Store.Deliveries.Finish(ctx, t)
		if !errors.As(err, new(*work.Unavailable)) || ctx.Err() != nil {
			return state, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollEvery):
		}
	}
}

// pollDeliveries delivers without Redis: it asks the ledger for receivers that
// something is due for.
func (w *Worker) pollDeliveries(ctx context.Context) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.draining.Done():
			return
		case <-ticker.C:
		}
		if w.Bell.Up() {
			continue
		}
		due, err := w.Store.Deliveries.DueReceivers(ctx, dueReceivers)
		if err != nil {
			w.Log.Warn("look for deliveries without redis", "err", err)
			continue
		}
		for _, to := range due {
			w.courier.offer(to)
		}
	}
}
