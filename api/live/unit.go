package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"piecework/api/view"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/store"
)

// followUnit brings a reader to where the others of its unit are, and keeps it
// there until leaveUnit.
func (h *Hub) followUnit(ctx context.Context, r *unitReader) error {
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
func (h *Hub) leaveUnit(r *unitReader) {
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
	hub     *Hub
	id      uuid.UUID
	streams int // the hub's mu guards it

	flushing sync.Mutex // held while one reads and publishes

	mu      sync.Mutex
	dirty   bool
	pending []*unitReader // to be brought to head
	readers map[*unitReader]bool
	head    unitCursor // where readers are
	seen    store.Head // what the rows looked like
}

func (t *unitTopic) notify() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dirty = true
}

func (t *unitTopic) due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dirty
}

func (t *unitTopic) differs(h store.Head) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen != h
}

// flush publishes what the readers do not know yet.
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
	sent := map[unitCursor]bundle[unitCursor]{}
	first := true
	for at := range places {
		b := view.bundle(at)
		sent[at] = b
		// They all arrive at the same place, unless one came with a place that it
		// made up: then the others must not be led there.
		if first || b.at.Rev < t.head.Rev && b.at.Attempt == t.head.Attempt {
			t.head = b.at
		}
		first = false
	}
	t.seen = view.head()
	for r := range t.readers {
		t.push(r, sent[head])
	}
	for _, r := range pending {
		if r.tenant != view.unit.Tenant {
			r.fail(work.ErrNotFound)
			continue
		}
		t.readers[r] = true
		t.push(r, sent[r.at])
	}
	return nil
}

func (t *unitTopic) push(r *unitReader, b bundle[unitCursor]) {
	if len(b.data) > 0 && !r.push(b) {
		delete(t.readers, r)
		t.hub.lagged.Inc()
	}
}

// fail ends the streams of those who could not be brought in, and of everybody
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
func (t *unitTopic) read(ctx context.Context, places map[unitCursor]bool) (*unitChanges, error) {
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
	view := &unitChanges{unit: unit, runs: runs, steps: make([][]transcript.Step, len(runs))}
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

// unitChanges is what one look at a unit has found: its row, its runs, and of each
// run the steps that somebody may not know.
type unitChanges struct {
	unit  store.LiveUnit
	runs  []store.LiveRun
	steps [][]transcript.Step
}

func (n *unitChanges) head() store.Head {
	return store.Head{ID: n.unit.ID, Changed: n.unit.Changed, RunChanged: n.unit.RunChanged}
}

// begin returns the first run that somebody at a place wants, and the place as
// far as it exists. Somebody without a place, or with one in a run that there is
// not, begins with the newest run.
func (n *unitChanges) begin(at unitCursor) (int, unitCursor) {
	newest := len(n.runs) - 1
	if at == (unitCursor{}) || newest < 0 && at.Attempt > 0 || newest >= 0 && at.Attempt > n.runs[newest].Attempt {
		return max(newest, 0), unitCursor{}
	}
	for i, run := range n.runs {
		if run.Attempt < at.Attempt {
			continue
		}
		if run.Attempt == at.Attempt && run.Rev != nil {
			at.Rev = min(at.Rev, *run.Rev)
		}
		return i, at
	}
	return 0, at
}

// from reports whether somebody at a place wants steps of run i, and after which
// revision.
func (n *unitChanges) from(i int, at unitCursor) (rev int, wants bool) {
	first, at := n.begin(at)
	if i == first && n.runs[i].Attempt == at.Attempt {
		return at.Rev, true
	}
	return 0, i >= first
}

// bundle is what somebody at a place does not know: the rest of the run that was
// being sent, the runs after it, the unit, the end. Each event's id says what
// was sent up to there, so that whoever breaks off goes on exactly there.
func (n *unitChanges) bundle(at unitCursor) bundle[unitCursor] {
	var out bytes.Buffer
	first, at := n.begin(at)
	for i := first; i < len(n.runs); i++ {
		run := n.runs[i]
		if run.Attempt > at.Attempt {
			at = unitCursor{Unit: at.Unit, Attempt: run.Attempt, Run: run.Changed}
			put(&out, eventRun, at, view.RunItem{Run: run.Run})
		}
		for _, s := range n.steps[i] {
			if s.Rev > at.Rev {
				at.Rev, at.Ended = s.Rev, false
				put(&out, eventStep, at, stepEvent{run.ID, run.Attempt, s})
			}
		}
		if run.Changed != at.Run {
			at.Run, at.Ended = run.Changed, false
			put(&out, eventRun, at, view.RunItem{Run: run.Run})
		}
	}
	if n.unit.Changed != at.Unit {
		at.Unit, at.Ended = n.unit.Changed, false
		put(&out, eventUnit, at, newUnitEvent(n.unit))
	}
	if n.unit.State.Final() && !at.Ended {
		at.Ended = true
		put(&out, eventEnd, at, endEvent{n.unit.ID, n.unit.State})
	}
	return bundle[unitCursor]{out.Bytes(), at}
}

type unitReader struct {
	reader[unitCursor]
	unit   uuid.UUID
	tenant string
	at     unitCursor
	topic  *unitTopic
}
