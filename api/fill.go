package api

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

// The types of sources that are not for callers to name.
const (
	typeUnits     = "units"     // lines of filledUnit, looked at already
	typeOpenAI    = "openai"    // lines of OpenAI's batches
	typeAnthropic = "anthropic" // requests of Anthropic's batches, one a line
	typeTrigger   = "trigger"   // a list that came in a webhook; the path is the trigger's name
)

// batchSource is where a batch's items come from, as the ledger keeps it.
type batchSource struct {
	source.Source
	OnInvalid string `json:"on_invalid"` // reject or skip
}

const (
	onInvalidReject = "reject"
	onInvalidSkip   = "skip"
)

// item is one item of a batch's source: the body of a unit, or a unit that was
// looked at already, or what is wrong.
type item struct {
	line     int
	customID string
	body     json.RawMessage
	checked  bool // checkJSON has passed the body
	unit     *store.NewUnit
	next     source.Place
	wrong    []ProblemError
	code     string // of what is wrong, as OpenAI names it
}

func (i item) problems() (list []work.BatchProblem) {
	for _, w := range i.wrong {
		id, _ := work.Cut(i.customID, maxCustomID)
		list = append(list, work.BatchProblem{Line: i.line, CustomID: work.Clean(id), Code: i.code, Pointer: w.Pointer, Detail: w.Detail})
	}
	return list
}

const (
	fillEvery   = time.Second // how often batches are looked for that nobody fills
	fillAtOnce  = 4           // batches
	pieceUnits  = 500         // made in one transaction
	pieceBytes  = 4 << 20
	pieceTime   = 3 * time.Second // so that a death costs little
	fillPause   = 2 * time.Second // after an error, before it is tried again
	maxCustomID = 512             // bytes
)

// fillBatches makes the units of batches, and what comes after them, until ctx
// ends.
func (a *API) fillBatches(ctx context.Context) {
	process := uuid.Must(uuid.NewV7())
	tick := time.NewTicker(fillEvery)
	defer tick.Stop()
	slots := make(chan struct{}, fillAtOnce)
	var filling sync.WaitGroup
	defer filling.Wait()
	for ctx.Err() == nil {
		slots <- struct{}{}
		f, err := a.Store.FillBatch(ctx, process)
		if err != nil && ctx.Err() == nil {
			a.Log.Debug("look for a batch to fill", "err", err)
		}
		if f != nil {
			filling.Go(func() {
				defer func() { <-slots }()
				a.fillOne(ctx, process, f)
			})
			continue
		}
		<-slots
		select {
		case <-ctx.Done():
		case <-a.filling:
		case <-tick.C:
		}
	}
}

// fillSoon says that there is a batch to fill.
func (a *API) fillSoon() {
	select {
	case a.filling <- struct{}{}:
	default:
	}
}

// fillOne brings a batch as far as it gets. What fails for reasons that pass is
// left for the next look; what cannot be made right ends the batch.
func (a *API) fillOne(ctx context.Context, process uuid.UUID, f *store.Filling) {
	log := a.Log.With("batch", f.ID)
	err := a.fillHeld(ctx, process, f)
	pause := time.Duration(0)
	switch {
	case err == nil:
		if err := a.Bell.AdvanceBatch(ctx, a.Store, f.ID); err != nil {
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
	if err := a.Store.LeaveBatch(leave, f.ID, process, pause); err != nil {
		log.Debug("leave a batch; its lease will end", "err", err)
	}
}

// fillHeld fills a batch while another routine holds on to it, and stops when
// it has become somebody else's.
func (a *API) fillHeld(ctx context.Context, process uuid.UUID, f *store.Filling) error {
	filling, stop := context.WithCancelCause(ctx)
	var holding sync.WaitGroup
	defer holding.Wait()
	defer stop(nil)
	holding.Go(func() {
		tick := time.NewTicker(store.RenewFilling)
		defer tick.Stop()
		for {
			select {
			case <-filling.Done():
				return
			case <-tick.C:
			}
			if err := a.Store.KeepFilling(filling, f.ID, process); errors.Is(err, work.ErrConflict) {
				stop(err)
			}
		}
	})
	var err error
	if f.Status == work.BatchFinalizing {
		err = a.synthesize(filling, process, f)
	} else {
		err = a.enumerate(filling, process, f)
	}
	if lost := context.Cause(filling); errors.Is(lost, work.ErrConflict) && err != nil {
		return lost
	}
	return err
}

// filler makes the units of one batch.
type filler struct {
	a       *API
	batch   *store.Filling
	process uuid.UUID
	source  batchSource

	piece    store.Filled
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
func (a *API) enumerate(ctx context.Context, process uuid.UUID, f *store.Filling) error {
	fill := filler{a: a, batch: f, process: process, turns: newTurns()}
	if err := json.Unmarshal(f.Source, &fill.source); err != nil {
		return fmt.Errorf("read the source of batch %s: %w", f.ID, err)
	}
	from := source.Place{}
	if len(f.Place) > 0 && string(f.Place) != "null" {
		if err := json.Unmarshal(f.Place, &from); err != nil {
			return fmt.Errorf("read the place of batch %s: %w", f.ID, err)
		}
	}
	fill.clear()
	items, closing, err := a.items(ctx, f.Batch, fill.source, from, true)
	if err == nil {
		defer closing()
		err = fill.all(ctx, items)
	}
	var invalid *work.Invalid
	switch {
	case errors.Is(err, source.ErrBroken):
		return a.Store.FailFill(ctx, f.ID, process, strings.TrimPrefix(err.Error(), source.ErrBroken.Error()+": "), fill.problems)
	case errors.As(err, &invalid):
		return a.Store.FailFill(ctx, f.ID, process, invalid.Detail, fill.problems)
	case err != nil:
		return err
	case fill.refused > 0:
		return a.Store.FailFill(ctx, f.ID, process, fmt.Sprintf("%d of its items are not as they must be; problems has the first", fill.refused), fill.problems)
	}
	b, err := a.Store.Batch(ctx, f.Tenant, f.ID)
	if err != nil {
		return err
	}
	if b.Counts.Total == 0 {
		return a.Store.FailFill(ctx, f.ID, process, "there is nothing in its source that a unit could be made of", b.Problems)
	}
	return a.Store.EndFill(ctx, f.ID, process)
}

func (f *filler) clear() {
	f.piece = store.Filled{Batch: f.batch.ID, Process: f.process, Place: f.piece.Place}
	f.lines, f.bytes, f.begun = map[string]int{}, 0, time.Now()
}

// all takes every item. After the first that is refused no more units are made
// of a batch that wants all or none, but its other items are looked at.
func (f *filler) all(ctx context.Context, items iter.Seq2[item, error]) error {
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
		if f.piece.Place, err = json.Marshal(it.next); err != nil {
			return err
		}
		if len(f.piece.Units) >= pieceUnits || f.bytes > pieceBytes || len(f.piece.Problems) >= pieceUnits || time.Since(f.begun) > pieceTime {
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
	}
	return f.finish(ctx)
}

func (f *filler) refuse(it item) {
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
func (f *filler) unit(ctx context.Context, it *item) (n store.NewUnit, err error) {
	switch {
	case len(it.wrong) > 0:
		return n, nil
	case it.unit != nil && it.unit.Row != nil: // all was seen to when the batch came
		n = *it.unit
		if f.lines[n.CustomID] > 0 {
			it.wrong, it.code = []ProblemError{repeats(n.CustomID)}, codeRepeats
		}
		return n, nil
	case it.unit != nil:
		n = *it.unit
	default:
		if n, it.wrong, err = f.a.makeUnit(ctx, *it); err != nil || len(it.wrong) > 0 {
			return n, err
		}
		if it.wrong = f.a.unpriced(f.batch.Batch, &n); len(it.wrong) > 0 {
			return n, nil
		}
	}
	if len(it.customID) > maxCustomID {
		it.wrong = []ProblemError{{Pointer: "#/custom_id", Detail: fmt.Sprintf("is longer than %d bytes", maxCustomID)}}
	}
	n.ID = uuid.Must(uuid.NewV7())
	belong(&n, &f.batch.Batch, *it)
	n.Turn = f.turns.of(&n, it.line)
	if f.lines[n.CustomID] > 0 {
		it.wrong, it.code = []ProblemError{repeats(n.CustomID)}, codeRepeats
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

func repeats(id string) ProblemError {
	return ProblemError{Pointer: "#/custom_id", Detail: fmt.Sprintf("%.100q is there already; each item of a batch has a custom_id of its own", id)}
}

// withTemplate makes bodies of units out of payloads.
func withTemplate(template json.RawMessage, items iter.Seq2[source.Item, error]) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		for in, err := range items {
			out := item{line: in.Line, customID: in.CustomID, next: in.Next}
			if in.Wrong != "" {
				out.wrong = []ProblemError{{Detail: in.Wrong}}
			} else if err == nil {
				out.body, err = strictjson.Merge(template, map[string]json.RawMessage{"payload": in.Payload})
			}
			if !yield(out, err) {
				return
			}
		}
	}
}

// hashOf is a custom id in eight bytes. That two of a batch are taken for one
// is as likely as one in 10^10 among fifty thousand.
func hashOf(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.LittleEndian.Uint64(sum[:8])
}
