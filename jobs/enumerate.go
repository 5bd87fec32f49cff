package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/internal/source"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

const (
	fillEvery  = time.Second // how often batches are looked for that nobody fills
	fillAtOnce = 4           // batches
	pieceUnits = 500         // made in one transaction
	pieceBytes = 4 << 20
	pieceTime  = 3 * time.Second // so that a death costs little
	fillPause  = 2 * time.Second // after an error, before it is tried again
)

// Enumerator makes the units of batches in the background.
type Enumerator struct {
	*Submitter
	every time.Duration // between two looks for batches of which nobody has told
}

// NewEnumerator makes one; Run does its work.
func NewEnumerator(s *Submitter) *Enumerator { return &Enumerator{s, fillEvery} }

// Run makes the units of batches, and what comes after them, until ctx
// ends.
func (e *Enumerator) Run(ctx context.Context) {
	process := uuid.Must(uuid.NewV7())
	tick := time.NewTicker(e.every)
	defer tick.Stop()
	slots := make(chan struct{}, fillAtOnce)
	var filling sync.WaitGroup
	defer filling.Wait()
	filling.Go(func() { e.queue.Listen(ctx, func(queue.Notice) { e.wakeEnumerator() }, queue.NoticeBatch) })
	for ctx.Err() == nil {
		slots <- struct{}{}
		f, err := e.Store.Batches.ClaimEnumeration(ctx, process)
		if err != nil && ctx.Err() == nil {
			e.log.Debug("look for a batch to fill", "err", err)
		}
		if f != nil {
			filling.Go(func() {
				defer func() { <-slots }()
				e.fillOne(ctx, process, f)
			})
			continue
		}
		<-slots
		select {
		case <-ctx.Done():
		case <-e.wake:
		case <-tick.C:
		}
	}
}

// fillOne brings a batch as far as it gets. What fails for reasons that pass is
// left for the next look; what cannot be made right ends the batch.
func (e *Enumerator) fillOne(ctx context.Context, process uuid.UUID, f *store.Enumeration) {
	log := e.log.With("batch", f.ID)
	err := e.fillHeld(ctx, process, f)
	pause := time.Duration(0)
	switch {
	case err == nil:
		if err := AdvanceBatch(ctx, e.Store, e.queue, e.log, f.ID); err != nil {
			log.Debug("advance a batch; the reconciler will", "err", err)
		}
		return
	case errors.Is(err, work.ErrConflict):
		log.Info("the batch is no longer this process's to fill", "err", err)
		return
	case ctx.Err() == nil:
		log.Warn("the batch could not be filled; it is tried again", "err", err)
		pause = fillPause
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := e.Store.Batches.LeaveEnumeration(leave, f.ID, process, pause); err != nil {
		log.Debug("leave a batch; its lease will end", "err", err)
	}
}

// fillHeld fills a batch while another routine holds on to it, and stops when
// it has become somebody else's.
func (e *Enumerator) fillHeld(ctx context.Context, process uuid.UUID, f *store.Enumeration) error {
	filling, stop := context.WithCancelCause(ctx)
	var holding sync.WaitGroup
	defer holding.Wait()
	defer stop(nil)
	holding.Go(func() {
		tick := time.NewTicker(store.RenewEnumeration)
		defer tick.Stop()
		for {
			select {
			case <-filling.Done():
				return
			case <-tick.C:
			}
			if err := e.Store.Batches.RenewEnumeration(filling, f.ID, process); errors.Is(err, work.ErrConflict) {
				stop(err)
			}
		}
	})
	var err error
	if f.Status == work.BatchFinalizing {
		err = e.synthesize(filling, process, f)
	} else {
		err = e.enumerate(filling, process, f)
	}
	if lost := context.Cause(filling); errors.Is(lost, work.ErrConflict) && err != nil {
		return lost
	}
	return err
}

// enumeration makes the units of one batch.
type enumeration struct {
	s       *Submitter
	batch   *store.Enumeration
	process uuid.UUID
	source  batchSource

	piece    store.Chunk
	lines    map[string]int // of the custom ids in piece
	under    []*underWay    // pieces that are being committed, the oldest first
	turns    turns
	bytes    int
	begun    time.Time
	problems []work.BatchProblem // of a batch that will fail
	refused  int
}

// enumerate makes the units of a batch from where it was left, and ends or
// fails its enumeration.
func (e *Enumerator) enumerate(ctx context.Context, process uuid.UUID, f *store.Enumeration) error {
	fill := enumeration{s: e.Submitter, batch: f, process: process, turns: newTurns()}
	if err := json.Unmarshal(f.Source, &fill.source); err != nil {
		return fmt.Errorf("read the source of batch %s: %w", f.ID, err)
	}
	from := source.Place{}
	if len(f.Cursor) > 0 && string(f.Cursor) != "null" {
		if err := json.Unmarshal(f.Cursor, &from); err != nil {
			return fmt.Errorf("read the place of batch %s: %w", f.ID, err)
		}
	}
	fill.clear()
	if name := e.lacked(fill.source.Path); name != "" { // the API had it: another process may have it too
		return fmt.Errorf("this process has no root or bucket %s; give it the --roots and --buckets of the API", name)
	}
	items, closing, err := e.items(ctx, f.Batch, fill.source, from, true)
	if err == nil {
		defer closing()
		err = fill.all(ctx, items)
	}
	var invalid *work.Invalid
	switch {
	case errors.Is(err, source.ErrBroken):
		return e.Store.Batches.FailEnumeration(ctx, f.ID, process, strings.TrimPrefix(err.Error(), source.ErrBroken.Error()+": "),
			fill.problems)
	case errors.As(err, &invalid):
		return e.Store.Batches.FailEnumeration(ctx, f.ID, process, invalid.Detail, fill.problems)
	case err != nil:
		return err
	case fill.refused > 0:
		return e.Store.Batches.FailEnumeration(ctx, f.ID, process, fmt.Sprintf("%d of its items are not as they must be; problems has the first", fill.refused), fill.problems)
	}
	b, err := e.Store.Batches.Get(ctx, f.Tenant, f.ID)
	if err != nil {
		return err
	}
	if b.Counts.Total == 0 {
		return e.Store.Batches.FailEnumeration(ctx, f.ID, process, "there is nothing in its source that a unit could be made of", b.Problems)
	}
	return e.Store.Batches.FinishEnumeration(ctx, f.ID, process)
}

func (f *enumeration) clear() {
	f.piece = store.Chunk{Batch: f.batch.ID, Process: f.process, Cursor: f.piece.Cursor}
	f.lines, f.bytes, f.begun = map[string]int{}, 0, time.Now()
}

// all takes every item. After the first that is refused no more units are made
// of a batch that wants all or none, but its other items are looked at.
func (f *enumeration) all(ctx context.Context, items iter.Seq2[item, error]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer f.abandon()
	defer cancel()
	for it, err := range items {
		if err != nil {
			return errors.Join(err, f.finish(ctx))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.unit(ctx, &it)
		if err != nil {
			return err
		}
		if len(it.wrong) > 0 {
			f.refuse(it)
		} else if f.refused == 0 {
			if err := f.alone(n.CustomID); err != nil {
				return err
			}
			f.piece.Units = append(f.piece.Units, n)
			f.lines[n.CustomID] = it.line
			f.bytes += len(n.Row) + len(n.Prompt) + len(n.Payload) + len(n.SystemPrompt) + len(n.Request)
		}
		if f.piece.Cursor, err = json.Marshal(it.next); err != nil {
			return err
		}
		if len(f.piece.Units) >= pieceUnits || f.bytes > pieceBytes || len(f.piece.Problems) >= pieceUnits ||
			time.Since(f.begun) > pieceTime {
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
	}
	return f.finish(ctx)
}

func (f *enumeration) refuse(it item) {
	if f.source.OnInvalid == onInvalidSkip {
		f.piece.Problems = append(f.piece.Problems, it.problems()[0])
		return
	}
	f.refused++
	if len(f.problems) < work.MaxBatchProblems {
		f.problems = append(f.problems, it.problems()...)
	}
}

// unit makes a unit of an item, or notes what is wrong with it.
func (f *enumeration) unit(ctx context.Context, it *item) (n store.NewUnit, err error) {
	switch {
	case len(it.wrong) > 0:
		return n, nil
	case it.unit != nil && it.unit.Row != nil: // all was seen to when the batch came
		n = *it.unit
		if f.lines[n.CustomID] > 0 {
			it.wrong, it.code = []work.Invalid{repeats(n.CustomID)}, codeRepeats
		}
		return n, nil
	case it.unit != nil:
		n = *it.unit
	default:
		if n, it.wrong, err = f.s.makeUnit(ctx, *it); err != nil || len(it.wrong) > 0 {
			return n, err
		}
		if it.wrong = f.s.unpriced(f.batch.Batch, &n); len(it.wrong) > 0 {
			return n, nil
		}
	}
	if len(it.customID) > maxCustomID {
		it.wrong = []work.Invalid{{Pointer: "#/custom_id", Detail: fmt.Sprintf("is longer than %d bytes", maxCustomID)}}
	}
	n.ID = uuid.Must(uuid.NewV7())
	belong(&n, &f.batch.Batch, *it)
	n.StartOrder = f.turns.of(&n, it.line)
	if f.lines[n.CustomID] > 0 {
		it.wrong, it.code = []work.Invalid{repeats(n.CustomID)}, codeRepeats
	}
	return n, nil
}

// belong makes a unit one of a batch.
func belong(n *store.NewUnit, b *work.Batch, it item) {
	n.Tenant, n.BatchID, n.CustomID, n.Held = b.Tenant, &b.ID, work.Clean(it.customID), true
	if end := b.ExpiresAt; end != nil && (n.Deadline == nil || n.Deadline.After(*end)) {
		n.Deadline = end
	}
}

// codeRepeats is OpenAI's word for it.
const codeRepeats = "duplicate_custom_id"

func repeats(id string) work.Invalid {
	return work.Invalid{Pointer: "#/custom_id", Detail: fmt.Sprintf("%.100q is there already; each item of a batch has a custom_id of its own", id)}
}
