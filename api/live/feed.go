package live

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/store"
)

const (
	feedPause = 200 * time.Millisecond // between two batches
	maxUnits  = 500                    // in one bundle; who misses more fetches the list
)

// feed is the topic of those who follow all units. A place is a moment of the
// ledger, and everybody's is as far as head or farther.
type feed struct {
	hub *Hub

	flushing sync.Mutex // held while one reads and publishes

	mu      sync.Mutex
	dirty   bool
	next    time.Time // not before then
	pending []*feedReader
	readers map[*feedReader]bool
	head    store.Moment
}

type feedReader struct {
	reader[store.Moment]
	filter  feedFilter
	at      store.Moment // what was sent
	resumes bool         // at is known
	pushed  store.Moment // up to where
}

// feedFilter chooses units by what never changes about them: a filter by state
// would keep back that a unit has left it.
type feedFilter struct {
	tenant, worker, backend string
	labels                  map[string]string
	batched                 bool      // only units of batches
	batch                   uuid.UUID // Nil: of any
}

func (f feedFilter) takes(u *store.LiveUnit) bool {
	if u.Tenant != f.tenant || f.worker != "" && u.Worker != f.worker || f.backend != "" && u.Backend != f.backend {
		return false
	}
	if f.batched && (u.BatchID == nil || f.batch != uuid.Nil && *u.BatchID != f.batch) {
		return false
	}
	if len(f.labels) == 0 {
		return true
	}
	var labels map[string]string
	if json.Unmarshal(u.Labels, &labels) != nil {
		return false
	}
	for name, value := range f.labels {
		if had, ok := labels[name]; !ok || had != value {
			return false
		}
	}
	return true
}

func (f feedFilter) key() string {
	return fmt.Sprintf("%q %q %q %q %t %s", f.tenant, f.worker, f.backend, f.labels, f.batched, f.batch)
}

// follow brings a reader to where the others are, and keeps it there until
// leave.
func (f *feed) follow(ctx context.Context, r *feedReader) error {
	f.mu.Lock()
	f.pending = append(f.pending, r)
	f.mu.Unlock()
	if err := f.flush(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return r.failure()
}

func (f *feed) leave(r *feedReader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.readers, r)
}

// notify says that a unit has changed, and reports whether anybody follows.
func (f *feed) notify() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dirty = len(f.readers) > 0
	return f.dirty
}

// due reports whether there is something to read, and it is time to.
func (f *feed) due() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if wait := time.Until(f.next); f.dirty && wait > 0 {
		time.AfterFunc(wait, f.hub.signal)
		return false
	}
	return f.dirty
}

// flush publishes what the readers do not know yet.
func (f *feed) flush(ctx context.Context) error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	f.mu.Lock()
	pending, dirty, head := f.pending, f.dirty && len(f.readers) > 0, f.head
	f.pending, f.dirty = nil, false
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	var failed error
	if dirty {
		failed = f.publish(ctx, head)
	}
	if err := f.bring(ctx, pending); err != nil {
		for _, r := range pending {
			r.fail(err)
		}
		failed = err
	}
	if failed != nil {
		return fmt.Errorf("follow units: %w", failed)
	}
	return nil
}

// publish sends the readers what has changed since head.
func (f *feed) publish(ctx context.Context, head store.Moment) error {
	f.hub.reads.Inc()
	units, now, err := f.hub.store.Events.Changed(ctx, head, maxUnits+1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = time.Now().Add(feedPause)
	if err != nil {
		return err
	}
	changes := feedChanges{units: units, now: now, encoded: map[string][]byte{}}
	for r := range f.readers {
		f.push(r, changes.data(r.pushed, r.filter), now)
	}
	f.head = now
	return nil
}

// bring brings readers to where the others are, or beyond. A moment that comes
// after head knows what head knows.
func (f *feed) bring(ctx context.Context, pending []*feedReader) error {
	if len(pending) == 0 {
		return nil
	}
	f.hub.reads.Inc()
	now, err := f.hub.store.Events.Now(ctx)
	if err != nil {
		return err
	}
	missed := map[string]feedChanges{}
	for _, r := range pending {
		if !r.resumes || !r.at.Before(now) {
			continue
		}
		if _, read := missed[r.at.String()]; read {
			continue
		}
		f.hub.reads.Inc()
		units, then, err := f.hub.store.Events.Changed(ctx, r.at, maxUnits+1)
		if err != nil {
			return err
		}
		if len(units) == 0 {
			then = now
		}
		missed[r.at.String()] = feedChanges{units: units, now: then, encoded: map[string][]byte{}}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.readers) == 0 {
		f.head = now
	}
	for _, r := range pending {
		f.readers[r] = true
		changes, known := missed[r.at.String()]
		switch {
		case !r.resumes:
			f.push(r, event(eventHello, now, struct{}{}), now)
		case !known:
			f.push(r, event(eventLagged, now, struct{}{}), now)
		default:
			f.push(r, changes.data(r.at, r.filter), changes.now)
		}
	}
	return nil
}

// push hands over events, if there are any, that lead to a moment; mu is held.
func (f *feed) push(r *feedReader, data []byte, to store.Moment) {
	r.pushed = to
	if len(data) > 0 && !r.push(bundle[store.Moment]{data, to}) {
		delete(f.readers, r)
		f.hub.lagged.Inc()
	}
}

// feedChanges is what one look has found.
type feedChanges struct {
	units   []store.LiveUnit
	now     store.Moment
	encoded map[string][]byte // for readers at the same moment with the same filter
}

// data is the events for a reader that knows all up to a moment.
func (n feedChanges) data(at store.Moment, f feedFilter) []byte {
	if len(n.units) == 0 {
		return nil
	}
	key := at.String() + " " + f.key()
	data, done := n.encoded[key]
	if !done {
		data = n.encode(at, f)
		n.encoded[key] = data
	}
	return data
}

func (n feedChanges) encode(at store.Moment, f feedFilter) []byte {
	if len(n.units) > maxUnits {
		return event(eventLagged, n.now, struct{}{})
	}
	var items []unitEvent
	for i := range n.units {
		u := &n.units[i]
		if f.takes(u) && (!at.Saw(u.Changed) || !at.Saw(u.RunChanged)) {
			items = append(items, newUnitEvent(*u))
		}
	}
	if len(items) == 0 {
		return nil
	}
	return event(eventUnits, n.now, unitsEvent{items})
}
