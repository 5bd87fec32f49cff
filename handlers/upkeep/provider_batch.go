package upkeep

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

const (
	// callTimeout bounds one call of a provider; the upload of a batch and the
	// download of its answers take longer.
	callTimeout     = time.Minute
	transferTimeout = 15 * time.Minute
	// findFor is how long a batch is looked for whose sender died or got no
	// answer, before it is sent again. It is longer than a transfer.
	findFor = transferTimeout + 2*time.Minute
	// longestDay is how long a batch may take, and an hour for clocks and manners.
	longestDay = 25 * time.Hour
	// packPage is how many units are made lines of at once: each may be large.
	packPage = 50
)

// ProviderBatches packs units of the batch mode into providers' own batches, sends
// these, and takes in what they are answered. All of it is in Postgres: a
// worker process that dies is followed by another.
type ProviderBatches struct {
	Store     *store.Store
	Log       *slog.Logger
	Process   uuid.UUID
	Health    *Health
	Heartbeat *Heartbeat
	Drain     *Drain
	Every     time.Duration // between two rounds
	// Line prepares a unit as its run will, and makes a line of its first call. It
	// is false for one that is better run live.
	Line func(context.Context, backend.Batcher, work.Unit) (line backend.Line, ok bool)

	FindFor time.Duration // a batch is looked for, before it is sent again; 0: findFor
	MaxSize int           // bytes of the lines of one batch; 0: backend.MaxBatchBytes
}

// Round packs what waits, and sees to every provider batch that is due.
func (p *ProviderBatches) Round(ctx context.Context) error {
	var names []string
	for _, b := range p.Health.breakers {
		if _, ok := b.Backend.(backend.Batcher); ok && b.Offer().Available {
			names = append(names, b.Backend.Name())
		}
	}
	for _, name := range names {
		for !p.Drain.Begun() {
			if n, err := p.Store.ProviderBatches.Pack(ctx, name, backend.MaxBatchLines); err != nil || n == 0 {
				if err != nil {
					return err
				}
				break
			}
		}
	}
	if err := p.chargeUnused(ctx, names); err != nil {
		return err
	}
	for len(names) > 0 && !p.Drain.Begun() {
		b, err := p.Store.ProviderBatches.Claim(ctx, p.Process, names)
		if err != nil || b == nil {
			return err
		}
		round := batchRound{p: p, batcher: p.batcher(b.Backend), b: b}
		if err := round.next(ctx); err != nil && !errors.Is(err, work.ErrConflict) {
			return err
		}
	}
	return nil
}

func (p *ProviderBatches) batcher(name string) backend.Batcher {
	return p.Health.Of(name).Backend.(backend.Batcher)
}

// batchRound is one look at a provider batch that this process holds.
type batchRound struct {
	p       *ProviderBatches
	batcher backend.Batcher
	b       *store.ProviderBatch
}

// next does what is next. The error is Postgres's; the provider's are noted in
// the batch, and it is looked at again.
func (r *batchRound) next(ctx context.Context) error {
	waits, err := r.p.Store.ProviderBatches.AnyUnits(ctx, r.b.ID)
	switch {
	case err != nil:
		return err
	case r.b.RemoteID == nil && r.b.SendingAt != nil:
		return r.find(ctx) // also when nobody waits: what is there costs money until it is cancelled
	case !waits:
		return r.dismiss(ctx)
	case r.b.RemoteID != nil:
		return r.look(ctx)
	}
	return r.send(ctx)
}

// dismiss ends a batch that nobody waits for any more: all of its units were
// cancelled, or run live. The provider is asked to stop until it has said that it
// does, or that the batch is over. What may be another's batch is left alone.
func (r *batchRound) dismiss(ctx context.Context) error {
	if r.b.RemoteID == nil || r.b.Guessed {
		return r.finish(ctx, nil)
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := r.batcher.CancelBatch(call, *r.b.RemoteID)
	if state, look := r.batcher.LookAtBatch(call, *r.b.RemoteID); look == nil && state.Ended && state.Refused == nil {
		return r.collect(ctx) // what was answered is paid for
	}
	if err == nil {
		return r.finish(ctx, nil)
	}
	return r.unreadable(ctx, fmt.Errorf("cancel it, for nobody waits for it any more: %w", err))
}

func (r *batchRound) finish(ctx context.Context, failed *work.Failure) error {
	left, err := r.p.Store.ProviderBatches.Finish(ctx, r.p.Process, r.b.ID, failed)
	if err == nil {
		r.p.Log.Info("provider's batch is over", "batch", r.remote(), "backend", r.b.Backend, "unanswered", left, "failure", failed)
	}
	return err
}

func (r *batchRound) remote() string {
	if r.b.RemoteID == nil {
		return r.b.ID.String()
	}
	return *r.b.RemoteID
}

// later notes what went wrong and comes back.
func (r *batchRound) later(ctx context.Context, done int, why error) error {
	text := ""
	if why != nil {
		text = why.Error()
		r.p.Log.Warn("provider's batch", "batch", r.remote(), "backend", r.b.Backend, "err", why)
	}
	return r.p.Store.ProviderBatches.Leave(ctx, r.p.Process, r.b.ID, done, text, r.p.Every)
}

// again notes that the provider does not have the batch, and why.
func (r *batchRound) again(ctx context.Context, why error) error {
	pause := min(r.p.Every<<min(r.b.Tries, 8), max(r.p.Every, 15*time.Minute))
	r.p.Log.Warn("provider's batch was not taken; it is sent again", "batch", r.b.ID, "backend", r.b.Backend, "after", pause, "err", why)
	return r.p.Store.ProviderBatches.Unsent(ctx, r.p.Process, r.b.ID, why.Error(), pause)
}

// send hands the batch in. From the note in Postgres on it may be there.
func (r *batchRound) send(ctx context.Context) error {
	lease := r.p.Heartbeat.Current()
	lines, err := r.lines(ctx)
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		return r.finish(ctx, nil)
	}
	if err := r.p.Store.ProviderBatches.Sending(ctx, r.p.Process, r.b.ID, len(lines)); err != nil {
		return err
	}
	if lease.Lapsed() {
		return r.p.Store.ProviderBatches.Unsent(ctx, r.p.Process, r.b.ID, "", r.p.Every) // this process was frozen, perhaps
	}
	call, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	remote, err := r.batcher.SendBatch(call, r.b.ID.String(), lines)
	var refused *work.Failure
	switch {
	case err == nil:
		r.p.Log.Info("provider's batch was sent", "batch", remote, "backend", r.b.Backend, "lines", len(lines))
		return r.p.Store.ProviderBatches.Sent(ctx, r.p.Process, r.b.ID, remote, r.p.Every)
	case errors.As(err, &refused):
		return r.refused(ctx, refused)
	}
	return r.later(ctx, 0, fmt.Errorf("nobody knows whether it was sent: %w", err))
}

// refused follows the rule of the failure's class.
func (r *batchRound) refused(ctx context.Context, failure *work.Failure) error {
	if failure.Class.Follow() == work.FollowFail {
		return r.finish(ctx, failure)
	}
	return r.again(ctx, failure)
}

// lines makes the lines of the units that wait. What cannot be a line runs
// live, where it fails as it would have, and what is too much goes into another
// batch.
func (r *batchRound) lines(ctx context.Context) (lines []backend.Line, err error) {
	var live []uuid.UUID
	size, most := 0, cmp.Or(r.p.MaxSize, backend.MaxBatchBytes)
	for after := uuid.Nil; ; {
		units, err := r.p.Store.ProviderBatches.Units(ctx, r.b.ID, after, packPage)
		if err != nil {
			return nil, err
		}
		if len(units) == 0 {
			return lines, r.p.Store.ProviderBatches.UnpackLive(ctx, r.b.ID, live)
		}
		for i := range units {
			after = units[i].ID
			line, ok := r.p.Line(ctx, r.batcher, units[i])
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if !ok || len(line.Body) > most || len(lines) > 0 && (line.Model != lines[0].Model || line.Endpoint != lines[0].Endpoint) {
				live = append(live, after)
				continue
			}
			if size += len(line.Body); size > most {
				return lines, errors.Join(r.p.Store.ProviderBatches.UnpackLive(ctx, r.b.ID, live),
					r.p.Store.ProviderBatches.UnpackFrom(ctx, r.b.ID, after))
			}
			line.ID = lineID(r.b.ID, after)
			lines = append(lines, line)
		}
	}
}

// find looks for a batch that may be at the provider or not.
func (r *batchRound) find(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := r.batcher.FindBatch(call, r.b.ID.String(), r.b.Lines, *r.b.SendingAt)
	if err != nil {
		return r.later(ctx, 0, fmt.Errorf("look whether it was sent: %w", err))
	}
	known, err := r.p.Store.ProviderBatches.KnownRemotes(ctx, r.b.Backend, found)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(id string) bool { return slices.Contains(known, id) })
	switch {
	case len(found) > 0:
		r.p.Log.Info("provider's batch was found again", "batch", found[0], "backend", r.b.Backend)
		return r.p.Store.ProviderBatches.Found(ctx, r.p.Process, r.b.ID, found[0], !r.batcher.KeepsKey())
	case time.Since(*r.b.SendingAt) < cmp.Or(r.p.FindFor, findFor):
		return r.later(ctx, 0, errors.New("nobody knows whether it was sent; it is looked for"))
	}
	return r.again(ctx, errors.New("it was not found at the provider"))
}

// look asks how far the batch is, and takes in the answers of one that is over.
func (r *batchRound) look(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	state, err := r.batcher.LookAtBatch(call, *r.b.RemoteID)
	switch {
	case err != nil:
		return r.unreadable(ctx, err)
	case state.Refused != nil:
		return r.turnedDown(ctx, state)
	case !state.Ended:
		return r.later(ctx, state.Done, nil)
	}
	return r.collect(ctx)
}

// unreadable comes back later, but not for ever: a batch that the provider says
// it does not have, when its day is over, is lost.
func (r *batchRound) unreadable(ctx context.Context, err error) error {
	if errors.As(err, new(*work.Failure)) && r.b.SentAt != nil && time.Since(*r.b.SentAt) > longestDay {
		r.p.Log.Error("provider's batch is given up; units that wait for it run live", "batch", r.remote(), "backend", r.b.Backend, "err", err)
		return r.finish(ctx, nil)
	}
	return r.later(ctx, 0, err)
}

// turnedDown is what follows when the provider took the batch and then did not:
// bad lines run live, and are refused by name; the rest is sent again.
func (r *batchRound) turnedDown(ctx context.Context, state backend.BatchNews) error {
	var bad []uuid.UUID
	for _, id := range state.BadLines {
		if batch, unit := parseLineID(id); batch == r.b.ID {
			bad = append(bad, unit)
		}
	}
	if len(bad) == 0 {
		return r.refused(ctx, state.Refused)
	}
	if err := r.p.Store.ProviderBatches.UnpackLive(ctx, r.b.ID, bad); err != nil {
		return err
	}
	return r.again(ctx, state.Refused)
}

// A line's id is that of the provider batch and of the unit, so that a batch can
// be told to be ours.
func lineID(batch, unit uuid.UUID) string { return shortID(batch) + shortID(unit) }

func shortID(id uuid.UUID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// parseLineID returns the batch and the unit of a line, zero for one that is not
// of ours.
func parseLineID(line string) (batch, unit uuid.UUID) {
	b, err := base64.RawURLEncoding.DecodeString(line[:len(line)/2])
	u, err2 := base64.RawURLEncoding.DecodeString(line[len(line)/2:])
	if errors.Join(err, err2) == nil && len(b) == len(batch) && len(u) == len(unit) {
		copy(batch[:], b)
		copy(unit[:], u)
	}
	return batch, unit
}
