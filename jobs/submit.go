package jobs

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"piecework/internal/backend"
	"piecework/internal/blob"
	"piecework/internal/expr"
	"piecework/internal/roots"
	"piecework/internal/strictjson"
	"piecework/internal/webhook"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// Rules are what an operator lets units, batches, triggers and schedules ask for.
// Their methods make such of what callers have written, or say what is wrong with it.
type Rules struct {
	Store      *store.Store
	Roots      roots.Roots
	Files      *blob.Store
	Buckets    blob.Buckets // that batches may read
	FilePolicy work.FilePolicy

	ProjectSettings string        // of units that do not say; work.SettingsNever: none may have them read
	MCPServers      []string      // names that units may use
	AcceptCommands  bool          // acceptance checks of units may be commands
	Webhooks        webhook.Guard // which addresses messages may go to
	// Prices are what models cost, as far as it is known here. Nil: no limit on
	// costs is refused.
	Prices *backend.Prices
}

// Submitter commits units and batches that the rules allow, and has their messages
// sent.
type Submitter struct {
	*Rules
	queue    *queue.Client
	log      *slog.Logger
	schemas  strictjson.Schemas
	language *expr.Language
	notify   []func(uuid.UUID) // of units that were accepted
	accepted *prometheus.CounterVec
	wake     chan struct{}  // has one when there is a batch to enumerate
	enqueues sync.WaitGroup // of accepted units, whose callers have their answers
}

// NewSubmitter makes a Submitter.
func NewSubmitter(rules *Rules, q *queue.Client, log *slog.Logger, registry *prometheus.Registry) *Submitter {
	return &Submitter{Rules: rules, queue: q, log: log, wake: make(chan struct{}, 1), language: expr.New(),
		schemas: strictjson.NewSchemas(reflect.TypeFor[UnitBody](), reflect.TypeFor[BatchOptions]()),
		accepted: promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
			Name: "piecework_units_accepted_total", Help: "Units committed to Postgres.",
		}, []string{"backend"})}
}

// OnSubmit has a function called with the id of each unit that is accepted. Call it
// before anything is submitted.
func (s *Submitter) OnSubmit(notify func(uuid.UUID)) { s.notify = append(s.notify, notify) }

// Submit commits a unit and has its message sent. replayed: its idempotency key, or
// the delivery that it comes of, had made it before.
func (s *Submitter) Submit(ctx context.Context, n store.NewUnit) (unit work.Unit, replayed bool, err error) {
	unit, replayed, err = s.Store.Units.Accept(ctx, n)
	if err == nil && !replayed {
		s.Submitted(ctx, unit)
	}
	return unit, replayed, err
}

// Submitted counts a unit that was committed just now and has its message sent.
// Whatever goes wrong here is not the caller's problem, who does not wait for it.
func (s *Submitter) Submitted(ctx context.Context, u work.Unit) {
	s.accepted.WithLabelValues(u.Backend).Inc()
	for _, notify := range s.notify {
		notify(u.ID)
	}
	if u.NotBefore != nil || u.State != work.Queued {
		return // the reconciler sends it when the unit may run
	}
	ctx = context.WithoutCancel(ctx)
	s.enqueues.Go(func() {
		if err := s.queue.Enqueue(ctx, store.MessageOf(u)); err != nil {
			s.log.Warn("unit accepted, but not enqueued; the reconciler will", "unit", u.ID, "err", err)
		}
	})
}

// Wait waits for the messages of what was submitted.
func (s *Submitter) Wait() { s.enqueues.Wait() }

// advancedAtOnce is how many batches are looked at before a retry of many units is
// answered; the reconciler looks at the others.
const advancedAtOnce = 20

// Requeued sends the messages of units that were retried, and lets their batches
// admit those that are held. They are committed: what goes wrong here is not the
// caller's problem. It returns the batches.
func (s *Submitter) Requeued(ctx context.Context, moved []store.Moved) []uuid.UUID {
	ctx = context.WithoutCancel(ctx)
	var messages []store.Message
	var batches []uuid.UUID
	for _, m := range moved {
		switch {
		case !m.Held && m.State == work.Queued:
			messages = append(messages, m.Message)
		case m.Held && !slices.Contains(batches, *m.BatchID) && len(batches) < advancedAtOnce:
			batches = append(batches, *m.BatchID)
		}
	}
	if err := s.queue.Enqueue(ctx, messages...); err != nil {
		s.log.Warn("units are queued again, but not all are enqueued; the reconciler will", "units", len(messages), "err", err)
	}
	for _, id := range batches {
		if err := AdvanceBatch(ctx, s.Store, s.queue, s.log, id); err != nil {
			s.log.Debug("advance a batch; the reconciler will", "batch", id, "err", err)
		}
	}
	return batches
}

// EnumerateSoon says that there is a batch whose units are to be made.
func (s *Submitter) EnumerateSoon(ctx context.Context, batch uuid.UUID) {
	s.wakeEnumerator()
	ctx = context.WithoutCancel(ctx)
	s.enqueues.Go(func() {
		if err := s.queue.BatchSubmitted(ctx, batch); err != nil {
			s.log.Debug("tell of a batch; a worker process will find it", "batch", batch, "err", err)
		}
	})
}

// wakeEnumerator wakes the Enumerator of this process, if there is one.
func (s *Submitter) wakeEnumerator() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// RemoveBlob removes bytes that did not become a file, or are one no more. If
// it cannot, a worker process will.
func (s *Submitter) RemoveBlob(ctx context.Context, id uuid.UUID) {
	ctx = context.WithoutCancel(ctx)
	err := s.Files.Delete(ctx, id)
	if err == nil {
		err = s.Store.Files.BlobsGone(ctx, []uuid.UUID{id})
	}
	if err != nil {
		s.log.Warn("the bytes of a file could not be removed; a worker process will try again", "file", id, "err", err)
	}
}
