// Package live has the event streams: what has changed in Postgres, read once
// for all who follow it.
//
//	hub.go       looks for changes, at notices and on a timer
//	unit.go      those who follow one unit
//	feed.go      those who follow all units
//	batch.go     pages that follow batches
//	wait.go      requests that wait for a unit to change
//	stream.go    one open stream: its queue, and how it is written
//	event.go     the events
//	cursor.go    the ids of a unit's events
//	routes.go    how streams are asked for
//	describe.go  what the API's description says about them
package live

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"piecework/jobs/queue"
	"piecework/store"
)

// Hub brings what changes in the ledger to the open streams of this process.
// It reads a thing once, however many follow it, and nothing that nobody
// follows. Notices through Redis say when to look; without them it looks on a
// timer, so nothing depends on them.
//
// Those who follow the same thing are all at the same place. A new one, and one
// that fell behind, is brought there by a read of its own, which the same lock
// keeps apart from what comes next: so it misses nothing and gets nothing
// twice.
type Hub struct {
	store *store.Store
	bell  *queue.Client
	log   *slog.Logger
	wake  chan struct{} // has one when there is something to look at

	mu    sync.Mutex
	units map[uuid.UUID]*unitTopic
	feed  *feed

	batches batchTopic
	watchers

	closing context.Context // ends when streams are to end
	end     context.CancelFunc

	WriteWait time.Duration // how long a reader may take for a piece

	open   prometheus.Gauge
	lagged prometheus.Counter
	reads  prometheus.Counter
}

const (
	roundPause = 20 * time.Millisecond // between two looks, so that what comes together is read together
	flushers   = 4                     // topics read at once
	readTime   = 10 * time.Second      // that one look may take
)

// New makes a hub without readers. Run makes it look.
func New(s *store.Store, bell *queue.Client, log *slog.Logger, registry *prometheus.Registry) *Hub {
	metrics := promauto.With(registry)
	h := &Hub{store: s, bell: bell, log: log, wake: make(chan struct{}, 1), units: map[uuid.UUID]*unitTopic{}, WriteWait: writeWait,
		open: metrics.NewGauge(prometheus.GaugeOpts{
			Name: "piecework_event_streams", Help: "Open event streams."}),
		lagged: metrics.NewCounter(prometheus.CounterOpts{
			Name: "piecework_event_streams_lagged_total", Help: "Times that a reader of an event stream fell behind."}),
		reads: metrics.NewCounter(prometheus.CounterOpts{
			Name: "piecework_event_reads_total", Help: "Reads of Postgres for all event streams together."}),
	}
	h.feed = &feed{hub: h, readers: map[*feedReader]bool{}}
	h.closing, h.end = context.WithCancel(context.Background())
	return h
}

// Close ends the streams, which would otherwise go on for as long as their
// readers like.
func (h *Hub) Close() { h.end() }

// Run looks for changes until ctx ends: at every notice, and every so often.
func (h *Hub) Run(ctx context.Context, every time.Duration) {
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() { h.look(ctx, every) })
	h.bell.Listen(ctx, h.receive, queue.NoticeUnit, queue.NoticeSteps, queue.NoticeDraft)
}

func (h *Hub) receive(n queue.Notice) {
	switch n.Kind {
	case queue.NoticeDraft:
		h.draft(n.Draft)
		return
	case queue.NoticeUnit:
		h.wakeWaiting(n.Unit)
	}
	h.Notify(n.Unit)
}

func (h *Hub) look(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.poll(ctx)
		case <-h.wake:
		}
		h.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(roundPause):
		}
	}
}

// Notify says that a unit has changed.
func (h *Hub) Notify(id uuid.UUID) {
	h.mu.Lock()
	t := h.units[id]
	h.mu.Unlock()
	if t != nil {
		t.notify()
	}
	if h.feed.notify() || t != nil {
		h.signal()
	}
}

// draft shows words that are being written to those who follow their unit. Who
// has something else to read first goes without.
func (h *Hub) draft(d queue.Draft) {
	h.mu.Lock()
	t := h.units[d.Unit]
	h.mu.Unlock()
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Attempt != t.head.Attempt || d.Rev < t.head.Rev {
		return // the step that has them was sent
	}
	text, _ := json.Marshal(draftEvent{d.Attempt, d.Rev, d.Type, d.Text}) // texts and numbers
	b := bundle[unitCursor]{fmt.Appendf(nil, "event: %s\ndata: %s\n\n", eventDraft, text), t.head}
	for r := range t.readers {
		r.offer(b)
	}
}

func (h *Hub) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// poll marks what has changed without anybody saying so.
func (h *Hub) poll(ctx context.Context) {
	h.feed.notify()
	if err := h.lookAtBatches(ctx); err != nil {
		h.log.Debug("look for changes of batches", "err", err)
	}
	topics := map[uuid.UUID]*unitTopic{}
	var ids []uuid.UUID
	h.mu.Lock()
	for id, t := range h.units {
		topics[id] = t
		ids = append(ids, id)
	}
	h.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	h.bell.Watched(ids)
	h.reads.Inc()
	heads, err := h.store.Events.Heads(ctx, ids)
	if err != nil {
		h.log.Debug("look for changes", "err", err)
		return
	}
	for _, head := range heads {
		if t := topics[head.ID]; t.differs(head) {
			t.notify()
		}
		delete(topics, head.ID)
	}
	for _, t := range topics { // the unit is gone
		t.notify()
	}
}

// round reads what is marked.
func (h *Hub) round(ctx context.Context) {
	var topics []*unitTopic
	h.mu.Lock()
	for _, t := range h.units {
		if t.due() {
			topics = append(topics, t)
		}
	}
	h.mu.Unlock()
	var all errgroup.Group
	all.SetLimit(flushers)
	for _, t := range topics {
		all.Go(func() error { return t.flush(ctx) })
	}
	if h.feed.due() {
		all.Go(func() error { return h.feed.flush(ctx) })
	}
	if err := all.Wait(); err != nil {
		h.log.Debug("read what has changed", "err", err)
	}
}
