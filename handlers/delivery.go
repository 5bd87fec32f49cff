package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

const (
	// deliveriesAtOnce is how many messages a worker process has on their way.
	deliveriesAtOnce = 16
	// perReceiver is how many of them go to one receiver. While its messages
	// fail it is one, so that receivers which are down leave room for others.
	perReceiver = 4
	// deliveryLease is how long a try may take before others make another.
	deliveryLease = webhook.Timeout + 20*time.Second
	// slowest is the longest that one answer puts off a receiver's other messages.
	slowest = time.Hour
	// keepDeliveries is how long a settled delivery can be read.
	keepDeliveries = 30 * 24 * time.Hour
)

// courier counts the messages on their way.
type courier struct {
	ctx    context.Context // ends when those on their way are to be given up
	giveUp context.CancelFunc

	mu        sync.Mutex
	idle      *sync.Cond // busy has become 0
	busy      int
	closed    bool
	receivers map[uuid.UUID]*receiver // that have messages on their way
}

type receiver struct {
	busy    int
	failing bool // its last message was not taken
	again   bool // a bell rang that nobody could heed
}

func newCourier() *courier {
	c := &courier{receivers: map[uuid.UUID]*receiver{}}
	c.idle = sync.NewCond(&c.mu)
	c.ctx, c.giveUp = context.WithCancel(context.Background())
	return c
}

// enter tells whether the caller may deliver to a receiver; it then must leave.
func (c *courier) enter(id uuid.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.receivers[id]
	if c.closed || c.busy >= deliveriesAtOnce {
		return false
	}
	if r == nil {
		r = &receiver{}
		c.receivers[id] = r
	}
	if r.busy >= perReceiver || r.failing && r.busy >= 1 {
		r.again = true
		return false
	}
	r.busy++
	c.busy++
	return true
}

// stays tells whether whoever made a try goes on with its receiver. If not, the
// caller has left.
func (c *courier) stays(id uuid.UUID, found, took bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.receivers[id]
	if found {
		r.failing = !took
	}
	if !c.closed && (found || r.again) && (!r.failing || r.busy == 1) {
		r.again = false
		return true
	}
	c.leaves(id)
	return false
}

// leave is the end of what enter began.
func (c *courier) leave(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaves(id)
}

func (c *courier) leaves(id uuid.UUID) {
	r := c.receivers[id]
	r.busy--
	c.busy--
	if r.busy == 0 {
		delete(c.receivers, id)
	}
	if c.busy == 0 {
		c.idle.Broadcast()
	}
}

// close lets messages on their way arrive for a time, and gives up the rest.
// No other begins.
func (c *courier) close(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	late := time.AfterFunc(grace, c.giveUp)
	defer late.Stop()
	for c.busy > 0 {
		c.idle.Wait()
	}
	c.giveUp()
}

// serveDeliveries starts an Asynq server for the bells of deliveries: slow
// receivers hold up no unit.
func (w *Worker) serveDeliveries() (stop func(), err error) {
	client := w.Bell.ServerClient(1, jobs.Gate{
		Wait: func(string, string) time.Duration { return 0 }, Took: func(string) {},
	}, w.deliveryRung)
	server := asynq.NewServerFromRedisClient(client, asynq.Config{
		Concurrency: deliveriesAtOnce, Queues: map[string]int{jobs.DeliveryLane: 1}, TaskCheckInterval: jobs.CheckInterval,
		ShutdownTimeout: time.Second, Logger: asynqLog{w.Log}, LogLevel: asynq.WarnLevel,
	})
	err = server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var task jobs.DeliverTask
		if err := json.Unmarshal(t.Payload(), &task); err != nil {
			return fmt.Errorf("read task: %w", err)
		}
		return w.deliver(task.Receiver)
	}))
	if err != nil {
		return nil, fmt.Errorf("start asynq server of deliveries: %w", err)
	}
	return func() {
		client.Release()
		server.Stop()
		w.courier.close(w.Grace)
		server.Shutdown()
	}, nil
}

// wakeDeliveries ends the wait for bells.
func (w *Worker) wakeDeliveries() {
	select {
	case w.deliveryRung <- struct{}{}:
	default:
	}
}

// deliver delivers to a receiver until nothing is due for it, unless enough
// others are at it.
func (w *Worker) deliver(to uuid.UUID) error {
	if !w.courier.enter(to) {
		return nil
	}
	for {
		found, took, err := w.deliverNext(to)
		if err != nil && !found {
			w.courier.leave(to)
			return err
		}
		if !w.courier.stays(to, found, took) {
			return err
		}
	}
}

// deliverNext makes one try, if something is due.
func (w *Worker) deliverNext(to uuid.UUID) (found, took bool, err error) {
	d, err := w.Store.ClaimDelivery(w.courier.ctx, to, w.id, deliveryLease, webhook.NewSecret())
	if err != nil || d == nil {
		return false, false, err
	}
	answer := w.Sender.Send(w.courier.ctx, webhook.Message{ID: d.WebhookID, URL: d.URL, Body: []byte(w.redact(string(d.Body))), Secrets: d.Secrets.All()}, time.Now())
	try := tryOf(d, answer, rand.Float64())
	if answer.Err != nil && w.courier.ctx.Err() != nil {
		try = store.Try{ID: d.ID, Attempt: d.Attempts, Released: true, Error: "the worker process shut down before an answer came"}
	}
	state, err := w.noteTry(try)
	if err != nil {
		w.Log.Warn("a try to deliver is not noted; it will be made again", "delivery", d.ID, "err", err)
		return true, try.Delivered, err
	}
	w.metrics.deliveries.WithLabelValues(outcomeOf(try)).Inc()
	if state == work.DeliveryDead {
		w.Log.Warn("delivery given up", "delivery", d.ID, "endpoint", d.EndpointID, "unit", d.UnitID, "event", d.EventType, "attempts", d.Attempts, "err", answer.Err)
	}
	return true, try.Delivered, w.heedAnswer(to, d, answer)
}

// heedAnswer does what a receiver asks for besides: leave it alone, for a while
// or for good.
func (w *Worker) heedAnswer(to uuid.UUID, d *store.ClaimedDelivery, answer webhook.Answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryLease)
	defer cancel()
	if answer.Gone() && d.EndpointID != nil {
		disabled, err := w.Store.EndpointGone(ctx, *d.EndpointID, d.URL)
		if disabled {
			w.Log.Warn("webhook endpoint disabled: it answered 410", "endpoint", d.EndpointID)
		}
		return err
	}
	if answer.RetryAfter > 0 {
		return w.Store.Slow(ctx, to, min(answer.RetryAfter, slowest))
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
	for {
		state, err := w.Store.Tried(ctx, t)
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
	var trips sync.WaitGroup
	defer trips.Wait()
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
		due, err := w.Store.DueReceivers(ctx, deliveriesAtOnce)
		if err != nil {
			w.Log.Warn("look for deliveries without redis", "err", err)
			continue
		}
		for _, to := range due {
			trips.Go(func() {
				if err := w.deliver(to); err != nil {
					w.Log.Debug("deliver without redis", "err", err)
				}
			})
		}
	}
}

// pruneDeliveries deletes what was settled long ago.
func (w *Worker) pruneDeliveries(ctx context.Context, before time.Time) {
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = w.Store.PruneDeliveries(ctx, before); err != nil {
			w.Log.Warn("prune deliveries", "err", err)
			return
		}
	}
}
