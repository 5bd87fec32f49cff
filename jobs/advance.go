package jobs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"piecework/jobs/queue"
	"piecework/store"
)

// AdvanceBatch admits what may begin of a batch and enqueues it, sends the cancels of
// what was stopped, and ends the batch when nothing is left. What goes wrong beside
// Postgres is mended by the reconciler.
func AdvanceBatch(ctx context.Context, s *store.Store, q *queue.Client, log *slog.Logger, id uuid.UUID) error {
	for {
		a, err := s.Batches.Advance(ctx, id)
		if err != nil {
			return err
		}
		if err := q.Enqueue(ctx, a.Messages...); err != nil {
			log.Debug("enqueue units of a batch", "batch", id, "err", err)
		}
		if err := q.Cancelled(ctx, a.Stopped...); err != nil {
			log.Debug("send cancels of units; the next heartbeats see them", "batch", id, "err", err)
		}
		if !a.More {
			return nil
		}
	}
}

// moveBatches advances every batch that may go on.
func (r *Reconciler) moveBatches(ctx context.Context) error {
	return r.moveSome(ctx, false, &r.moved)
}

// moveIdleBatches advances those that are paused: the last unit that ran may have
// ended, and nobody has seen it.
func (r *Reconciler) moveIdleBatches(ctx context.Context) error {
	return r.moveSome(ctx, true, &r.idle)
}

// moveSome advances batches. When time is short the next round begins where this
// one ended.
func (r *Reconciler) moveSome(ctx context.Context, idle bool, moved *uuid.UUID) error {
	ids, err := r.Store.Batches.Live(ctx, idle)
	if err != nil {
		return err
	}
	at, _ := slices.BinarySearchFunc(ids, *moved, func(id, last uuid.UUID) int { return bytes.Compare(id[:], last[:]) })
	var errs []error
	deadline := time.Now().Add(roundLimit)
	for i := range ids {
		if time.Now().After(deadline) {
			break
		}
		*moved = ids[(at+1+i)%len(ids)]
		if err := AdvanceBatch(ctx, r.Store, r.Queue, r.Log, *moved); err != nil { // must not keep the others waiting
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
