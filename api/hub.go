package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/jobs"
	"piecework/store"
)

// hub brings what changes in the ledger to the open streams of this process.
// It reads a thing once, however many follow it, and nothing that nobody
// follows. Notices through Redis say when to look; without them it looks on a
// timer, so nothing depends on them.
//
// Those who follow the same thing are all at the same place. A new one, and one
// that fell behind, is brought there by a read of its own, which the same lock
// keeps apart from what comes next: so it misses nothing and hears nothing
// twice.
type hub struct {
	store *store.Store
	bell  *jobs.Bell
	log   *slog.Logger
	news  chan struct{} // has one when there is something to look at

	mu    sync.Mutex
	units map[uuid.UUID]*unitTopic
	feed  *feed

	batches batchNews

	closing context.Context // ends when streams are to end
	end     context.CancelFunc

	writeWait time.Duration

	open   prometheus.Gauge
	lagged prometheus.Counter
	reads  prometheus.Counter
}

const (
	roundPause = 20 * time.Millisecond // between two looks, so that what comes together is read together
	flushers   = 4                     // topics read at once
	readTime   = 10 * time.Second      // that one look may take
)

func newHub(s *store.Store, bell *jobs.Bell, log *slog.Logger, registry *prometheus.Registry) *hub {
	metrics := promauto.With(registry)
	h := &hub{store: s, bell: bell, log: log, news: make(chan struct{}, 1), units: map[uuid.UUID]*unitTopic{}, writeWait: writeWait,
		open: metrics.NewGauge(prometheus.GaugeOpts{
			Name: "piecework_event_streams", Help: "Open event streams."}),
		lagged: metrics.NewCounter(prometheus.CounterOpts{
			Name: "piecework_event_streams_lagged_total", Help: "Times that a reader of an event stream fell behind."}),
		reads: metrics.NewCounter(prometheus.CounterOpts{
			Name: "piecework_event_reads_total", Help: "Looks at the ledger for all event streams together."}),
	}
	h.feed = &feed{hub: h, readers: map[*feedReader]bool{}}
	h.closing, h.end = context.WithCancel(context.Background())
	return h
}

// run looks for changes until ctx ends: when told to, and every so often.
func (h *hub) run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.poll(ctx)
		case <-h.news:
		}
		h.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(roundPause):
		}
	}
}

// poke says that a unit has changed.
func (h *hub) poke(id uuid.UUID) {
	h.mu.Lock()
	t := h.units[id]
	h.mu.Unlock()
	if t != nil {
		t.mark()
	}
	if h.feed.mark() || t != nil {
		h.signal()
	}
}

// draft shows words that are being written to those who follow their unit. Who
// has something else to read first goes without.
func (h *hub) draft(d jobs.Draft) {
	h.mu.Lock()
	t := h.units[d.Unit]
	h.mu.Unlock()
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Attempt != t.head.Attempt || d.Rev < t.head.Rev {
		return // the step that has them was told
	}
	text, _ := json.Marshal(draftEvent{d.Attempt, d.Rev, d.Type, d.Text}) // texts and numbers
	b := bundle[unitCursor]{fmt.Appendf(nil, "event: %s\ndata: %s\n\n", eventDraft, text), t.head}
	for r := range t.readers {
		r.offer(b)
	}
}

func (h *hub) signal() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// poll marks what has changed without anybody saying so.
func (h *hub) poll(ctx context.Context) {
	h.feed.mark()
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
			t.mark()
		}
		delete(topics, head.ID)
	}
	for _, t := range topics { // the unit is gone
		t.mark()
	}
}

// round reads what is marked.
func (h *hub) round(ctx context.Context) {
	var topics []*unitTopic
	h.mu.Lock()
	for _, t := range h.units {
		if t.marked() {
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

// followUnit brings a reader to where the others of its unit are, and keeps it
// there until leaveUnit.
func (h *hub) followUnit(ctx context.Context, r *unitReader) error {
	h.mu.Lock()
	if r.topic == nil {
		r.topic = h.units[r.unit]
		if r.topic == nil {
			r.topic = &unitTopic{hub: h, id: r.unit, readers: map[*unitReader]bool{}}
			h.units[r.unit] = r.topic
		}
		r.topic.streams++
	}
	h.mu.Unlock()
	r.topic.mu.Lock()
	r.topic.pending = append(r.topic.pending, r)
	r.topic.mu.Unlock()
	// Perhaps somebody else's flush takes the reader along; then this one finds
	// nothing to do. Whoever goes away meanwhile must not break it off for others.
	if err := r.topic.flush(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return r.failure()
}

// leaveUnit forgets a reader.
func (h *hub) leaveUnit(r *unitReader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.topic.mu.Lock()
	delete(r.topic.readers, r)
	r.topic.mu.Unlock()
	if r.topic.streams--; r.topic.streams == 0 {
		delete(h.units, r.unit)
	}
}

// unitTopic is a unit that somebody follows.
type unitTopic struct {
	hub     *hub
	id      uuid.UUID
	streams int // the hub's mu guards it

	flushing sync.Mutex // held while one reads and tells

	mu      sync.Mutex
	dirty   bool
	pending []*unitReader // to be brought to head
	readers map[*unitReader]bool
	head    unitCursor // where readers are
	seen    store.Head // what the rows looked like
}

func (t *unitTopic) mark() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dirty = true
}

func (t *unitTopic) marked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dirty
}

func (t *unitTopic) differs(h store.Head) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen != h
}

// flush tells everybody what they do not know yet.
func (t *unitTopic) flush(ctx context.Context) error {
	t.flushing.Lock()
	defer t.flushing.Unlock()
	t.mu.Lock()
	pending, head, followed := t.pending, t.head, len(t.readers) > 0
	t.pending, t.dirty = nil, false
	t.mu.Unlock()
	if len(pending) == 0 && !followed {
		return nil
	}
	places := map[unitCursor]bool{}
	if followed {
		places[head] = true
	}
	for _, r := range pending {
		places[r.at] = true
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	view, err := t.read(ctx, places)

	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.fail(pending, err)
		return fmt.Errorf("follow unit %s: %w", t.id, err)
	}
	told := map[unitCursor]bundle[unitCursor]{}
	first := true
	for at := range places {
		b := view.bundle(at)
		told[at] = b
		// They all arrive at the same place, unless one came with a place that it
		// made up: then the others must not be led there.
		if first || b.at.Rev < t.head.Rev && b.at.Attempt == t.head.Attempt {
			t.head = b.at
		}
		first = false
	}
	t.seen = view.head()
	for r := range t.readers {
		t.push(r, told[head])
	}
	for _, r := range pending {
		if r.tenant != view.unit.Tenant {
			r.fail(work.ErrNotFound)
			continue
		}
		t.readers[r] = true
		t.push(r, told[r.at])
	}
	return nil
}

func (t *unitTopic) push(r *unitReader, b bundle[unitCursor]) {
	if len(b.data) > 0 && !r.push(b) {
		delete(t.readers, r)
		t.hub.lagged.Inc()
	}
}

// fail tells those who waited that they could not be brought in, and everybody
// when there is no unit any more; mu is held.
func (t *unitTopic) fail(pending []*unitReader, err error) {
	for _, r := range pending {
		r.fail(err)
	}
	t.dirty = !errors.Is(err, work.ErrNotFound)
	if t.dirty {
		return
	}
	for r := range t.readers {
		r.fail(err)
		delete(t.readers, r)
	}
}

// read reads what those at any of the places may not know.
func (t *unitTopic) read(ctx context.Context, places map[unitCursor]bool) (*unitNews, error) {
	attempt := 0
	for at := range places {
		if from := max(at.Attempt, 1); at != (unitCursor{}) && (attempt == 0 || from < attempt) {
			attempt = from
		}
	}
	t.hub.reads.Inc()
	unit, runs, err := t.hub.store.Events.Unit(ctx, t.id, attempt)
	if err != nil {
		return nil, err
	}
	view := &unitNews{unit: unit, runs: runs, steps: make([][]transcript.Step, len(runs))}
	for i, run := range runs {
		from := -1
		for at := range places {
			if rev, wants := view.from(i, at); wants && (from < 0 || rev < from) {
				from = rev
			}
		}
		if from < 0 || run.Rev != nil && *run.Rev <= from {
			continue
		}
		t.hub.reads.Inc()
		if view.steps[i], err = t.hub.store.Transcripts.StepsAfter(ctx, run.ID, from); err != nil {
			return nil, err
		}
	}
	return view, nil
}
