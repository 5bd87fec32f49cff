package handlers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/work"
	"piecework/store"
)

const (
	// laneCall bounds one call of a provider; the upload of a batch and the
	// download of its answers take longer.
	laneCall     = time.Minute
	laneTransfer = 15 * time.Minute
	// findFor is how long a batch is looked for whose sender died or got no
	// answer, before it is sent again. It is longer than a transfer.
	findFor = laneTransfer + 2*time.Minute
	// laneDay is how long a batch may take, and an hour for clocks and manners.
	laneDay = 25 * time.Hour
	// packPage is how many units are made lines of at once: each may be large.
	packPage = 50
	// answersBytes and answersCount are how much is kept in one statement.
	answersBytes = 4 << 20
	answersCount = 200
)

// watchBatchLane packs units of the batch lane into provider's batches, sends
// these, and takes in what they are answered. All of it is in the ledger: a
// worker process that dies is followed by another.
func (w *Worker) watchBatchLane(ctx context.Context) {
	ticker := time.NewTicker(w.Pack)
	defer ticker.Stop()
	for {
		if err := w.laneRound(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("see to the batch lane", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.draining.Done():
			return
		case <-ticker.C:
		}
	}
}

// laneRound packs what waits, and sees to every provider batch that is due.
func (w *Worker) laneRound(ctx context.Context) error {
	var names []string
	for _, l := range w.lanes {
		if _, ok := l.backend.(backend.Batcher); ok && l.offer().Available {
			names = append(names, l.backend.Name())
		}
	}
	for _, name := range names {
		for w.draining.Err() == nil {
			if n, err := w.Store.ProviderBatches.Pack(ctx, name, backend.MaxBatchLines); err != nil || n == 0 {
				if err != nil {
					return err
				}
				break
			}
		}
	}
	if err := w.chargeUnused(ctx, names); err != nil {
		return err
	}
	for len(names) > 0 && w.draining.Err() == nil {
		b, err := w.Store.ProviderBatches.Claim(ctx, w.id, names)
		if err != nil || b == nil {
			return err
		}
		round := batchRound{w: w, batcher: w.lane(b.Backend).backend.(backend.Batcher), b: b}
		if err := round.see(ctx); err != nil && !errors.Is(err, work.ErrConflict) {
			return err
		}
	}
	return nil
}

// batchRound is one look at a provider batch that this process holds.
type batchRound struct {
	w       *Worker
	batcher backend.Batcher
	b       *store.ProviderBatch
}

// see does what is next. The error is the ledger's; the provider's are noted in
// the batch, and it is looked at again.
func (r *batchRound) see(ctx context.Context) error {
	waits, err := r.w.Store.ProviderBatches.AnyUnits(ctx, r.b.ID)
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
	call, cancel := context.WithTimeout(ctx, laneCall)
	defer cancel()
	err := r.batcher.CancelBatch(call, *r.b.RemoteID)
	if news, look := r.batcher.LookAtBatch(call, *r.b.RemoteID); look == nil && news.Ended && news.Refused == nil {
		return r.collect(ctx) // what was answered is paid for
	}
	if err == nil {
		return r.finish(ctx, nil)
	}
	return r.unreadable(ctx, fmt.Errorf("cancel it, for nobody waits for it any more: %w", err))
}

func (r *batchRound) finish(ctx context.Context, failed *work.Failure) error {
	left, err := r.w.Store.ProviderBatches.Finish(ctx, r.w.id, r.b.ID, failed)
	if err == nil {
		r.w.Log.Info("provider's batch is over", "batch", r.remote(), "backend", r.b.Backend, "unanswered", left, "failure", failed)
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
		r.w.Log.Warn("provider's batch", "batch", r.remote(), "backend", r.b.Backend, "err", why)
	}
	return r.w.Store.ProviderBatches.Leave(ctx, r.w.id, r.b.ID, done, text, r.w.Pack)
}

// again notes that the provider does not have the batch, and why.
func (r *batchRound) again(ctx context.Context, why error) error {
	pause := min(r.w.Pack<<min(r.b.Tries, 8), max(r.w.Pack, 15*time.Minute))
	r.w.Log.Warn("provider's batch was not taken; it is sent again", "batch", r.b.ID, "backend", r.b.Backend, "after", pause, "err", why)
	return r.w.Store.ProviderBatches.Unsent(ctx, r.w.id, r.b.ID, why.Error(), pause)
}

// send hands the batch in. From the note in the ledger on it may be there.
func (r *batchRound) send(ctx context.Context) error {
	lease := r.w.leased()
	lines, err := r.lines(ctx)
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		return r.finish(ctx, nil)
	}
	if err := r.w.Store.ProviderBatches.Sending(ctx, r.w.id, r.b.ID, len(lines)); err != nil {
		return err
	}
	if lease.Lapsed() {
		return r.w.Store.ProviderBatches.Unsent(ctx, r.w.id, r.b.ID, "", r.w.Pack) // this process was frozen, perhaps
	}
	call, cancel := context.WithTimeout(ctx, laneTransfer)
	defer cancel()
	remote, err := r.batcher.SendBatch(call, r.b.ID.String(), lines)
	var refused *work.Failure
	switch {
	case err == nil:
		r.w.Log.Info("provider's batch was sent", "batch", remote, "backend", r.b.Backend, "lines", len(lines))
		return r.w.Store.ProviderBatches.Sent(ctx, r.w.id, r.b.ID, remote, r.w.Pack)
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
	size, most := 0, cmp.Or(r.w.packMost, backend.MaxBatchBytes)
	for after := uuid.Nil; ; {
		units, err := r.w.Store.ProviderBatches.Units(ctx, r.b.ID, after, packPage)
		if err != nil {
			return nil, err
		}
		if len(units) == 0 {
			return lines, r.w.Store.ProviderBatches.UnpackLive(ctx, r.b.ID, live)
		}
		for i := range units {
			after = units[i].ID
			line, ok := r.line(ctx, units[i])
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if !ok || len(line.Body) > most || len(lines) > 0 && (line.Model != lines[0].Model || line.Endpoint != lines[0].Endpoint) {
				live = append(live, after)
				continue
			}
			if size += len(line.Body); size > most {
				return lines, errors.Join(r.w.Store.ProviderBatches.UnpackLive(ctx, r.b.ID, live), r.w.Store.ProviderBatches.UnpackFrom(ctx, r.b.ID, after))
			}
			line.ID = lineID(r.b.ID, after)
			lines = append(lines, line)
		}
	}
}

// line prepares a unit as its run will, and makes a line of its first call. It
// is false for one that is better run live.
func (r *batchRound) line(ctx context.Context, u work.Unit) (line backend.Line, ok bool) {
	a := &attempt{claimed: &store.Claimed{Unit: u}}
	var failure *work.Failure
	a.prep, failure = r.w.prepare(ctx, a.claimed)
	defer a.prep.tidy()
	if failure == nil && !r.w.inCache(ctx, a) {
		line, failure = r.batcher.Line(a.prep.req)
		ok = failure == nil
	}
	return line, ok
}

// find looks for a batch that may be at the provider or not.
func (r *batchRound) find(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, laneCall)
	defer cancel()
	found, err := r.batcher.FindBatch(call, r.b.ID.String(), r.b.Lines, *r.b.SendingAt)
	if err != nil {
		return r.later(ctx, 0, fmt.Errorf("look whether it was sent: %w", err))
	}
	known, err := r.w.Store.ProviderBatches.KnownRemotes(ctx, r.b.Backend, found)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(id string) bool { return slices.Contains(known, id) })
	switch {
	case len(found) > 0:
		r.w.Log.Info("provider's batch was found again", "batch", found[0], "backend", r.b.Backend)
		return r.w.Store.ProviderBatches.Found(ctx, r.w.id, r.b.ID, found[0], !r.batcher.KeepsKey())
	case time.Since(*r.b.SendingAt) < cmp.Or(r.w.find, findFor):
		return r.later(ctx, 0, errors.New("nobody knows whether it was sent; it is looked for"))
	}
	return r.again(ctx, errors.New("it was not found at the provider"))
}

// look asks how far the batch is, and takes in the answers of one that is over.
func (r *batchRound) look(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, laneCall)
	defer cancel()
	news, err := r.batcher.LookAtBatch(call, *r.b.RemoteID)
	switch {
	case err != nil:
		return r.unreadable(ctx, err)
	case news.Refused != nil:
		return r.turnedDown(ctx, news)
	case !news.Ended:
		return r.later(ctx, news.Done, nil)
	}
	return r.collect(ctx)
}

// unreadable comes back later, but not for ever: a batch that the provider says
// it does not have, when its day is over, is lost.
func (r *batchRound) unreadable(ctx context.Context, err error) error {
	if errors.As(err, new(*work.Failure)) && r.b.SentAt != nil && time.Since(*r.b.SentAt) > laneDay {
		r.w.Log.Error("provider's batch is given up; units that wait for it run live", "batch", r.remote(), "backend", r.b.Backend, "err", err)
		return r.finish(ctx, nil)
	}
	return r.later(ctx, 0, err)
}

// turnedDown is what follows when the provider took the batch and then did not:
// bad lines run live, and are refused by name; the rest is sent again.
func (r *batchRound) turnedDown(ctx context.Context, news backend.BatchNews) error {
	var bad []uuid.UUID
	for _, id := range news.BadLines {
		if batch, unit := parseLineID(id); batch == r.b.ID {
			bad = append(bad, unit)
		}
	}
	if len(bad) == 0 {
		return r.refused(ctx, news.Refused)
	}
	if err := r.w.Store.ProviderBatches.UnpackLive(ctx, r.b.ID, bad); err != nil {
		return err
	}
	return r.again(ctx, news.Refused)
}

// collect takes in the answers. A line that came back without one, or not at
// all, is run live. Whoever goes on after a death takes them in again, which
// changes nothing.
func (r *batchRound) collect(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, laneTransfer)
	defer cancel()
	var answers []store.ProviderAnswer
	var owner uuid.UUID // of lines that are not of this batch
	size, ours, foreign := 0, 0, 0
	var ledger error
	keep := func() error {
		ledger = r.w.Store.ProviderBatches.AddAnswers(ctx, r.b.ID, answers)
		answers, size = answers[:0], 0
		return ledger
	}
	err := r.batcher.BatchAnswers(call, *r.b.RemoteID, func(a backend.BatchAnswer) error {
		batch, unit := parseLineID(a.ID)
		if batch != r.b.ID {
			owner = batch
			foreign++
			return nil
		}
		if ours++; a.Answer == nil {
			return nil
		}
		answers = append(answers, store.ProviderAnswer{UnitID: unit, Status: a.Answer.Status, RequestID: a.Answer.RequestID, Body: bytes.Clone(a.Answer.Body)})
		if size += len(a.Answer.Body); size < answersBytes && len(answers) < answersCount {
			return nil
		}
		return keep()
	})
	if err == nil {
		err = keep()
	}
	switch {
	case ledger != nil:
		return ledger
	case err != nil:
		return r.unreadable(ctx, fmt.Errorf("read its answers: %w", err))
	case ours == 0 && foreign > 0:
		return r.trade(ctx, owner)
	}
	return r.finish(ctx, nil)
}

// trade gives what was found at the provider to another batch of ours, if it is
// that one's.
func (r *batchRound) trade(ctx context.Context, owner uuid.UUID) error {
	traded, err := r.w.Store.ProviderBatches.Swap(ctx, r.w.id, r.b.ID, owner)
	if err != nil {
		return err
	}
	if traded {
		r.w.Log.Info("provider's batch was another of ours", "batch", r.b.ID, "found", *r.b.RemoteID, "owner", owner, "backend", r.b.Backend)
		return nil
	}
	return r.again(ctx, fmt.Errorf("the batch %s that was found is somebody else's", *r.b.RemoteID))
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
