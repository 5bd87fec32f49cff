package upkeep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/internal/work"
	"piecework/store"
)

// Heartbeat keeps the lease of a worker process: all its runs are claimed under it.
type Heartbeat struct {
	Store   *store.Store
	Log     *slog.Logger
	Process uuid.UUID
	Version string
	Slots   int
	Queues  []string
	Lease   time.Duration // silence after which others take the units of this process
	Every   time.Duration // between two heartbeats

	Runs    *Runs
	Spool   *Spool
	Health  *Health
	Pauses  *Pauses
	Disk    *Disk
	WakeUps []Signal // to send when Postgres is there again

	check Signal // the state of the runs here is to be read

	mu          sync.Mutex
	confirmedAt time.Duration  // process.Uptime when the last confirmed heartbeat was sent
	lease       *process.Lease // of the runs that are claimed from now on
}

// Init makes a Heartbeat ready.
func (h *Heartbeat) Init() { h.check = NewSignal() }

// Register makes this process known to Postgres.
func (h *Heartbeat) Register(ctx context.Context) error {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	sent := process.Uptime()
	err = h.Store.Processes.Register(ctx, work.Process{
		ID: h.Process, Hostname: hostname, PID: os.Getpid(), Identity: process.Self(), Version: h.Version,
		Slots: h.Slots, Queues: h.Queues, Backends: h.offers(),
	}, h.Lease)
	if err != nil {
		return err
	}
	return h.confirm(sent)
}

// offers is what others may know of the backends of this process.
func (h *Heartbeat) offers() []work.Offer {
	offers := h.Health.Offers()
	if why := h.Disk.Blocked(); why != "" {
		for i := range offers {
			offers[i].Available, offers[i].Detail = false, why
		}
	}
	return offers
}

// Beat sends one heartbeat. It waits for nothing else.
func (h *Heartbeat) Beat(ctx context.Context) error {
	sent, cut, mine := process.Uptime(), h.CutOff(), h.Runs.ids()
	err := h.Store.Processes.Heartbeat(ctx, h.Process, h.Lease, len(mine), h.offers())
	switch {
	case errors.Is(err, work.ErrNotFound):
		if err = h.Register(ctx); err != nil {
			err = fmt.Errorf("register again: %w", err)
		}
		for _, run := range mine { // the lease that they were claimed under has been ended
			h.Runs.Stop(run, work.ErrFenced)
		}
	case err == nil:
		err = h.confirm(sent)
	}
	if err != nil {
		return err
	}
	if cut {
		h.Log.Info("heartbeats come through again; units are taken")
		for _, s := range h.WakeUps {
			s.Send()
		}
	}
	h.CheckSoon()
	return nil
}

// CutOff tells whether this process seems to have lost Postgres: a write has no
// answer, or heartbeats are late. Whatever it took from Redis then, others
// would have to wait for.
func (h *Heartbeat) CutOff() bool {
	return process.Uptime()-h.confirmed() > 2*h.Every || h.Store.Trouble() != nil
}

// Late tells whether a claim now may be on a lease that has run out: perhaps this
// process was frozen.
func (h *Heartbeat) Late() bool { return process.Uptime()-h.confirmed() > h.Lease/2 }

// Guard stops every run before the lease ends, on this machine's clock,
// when no heartbeat came through: by then another may start the same units.
func (h *Heartbeat) Guard(context.Context) error {
	if silent := process.Uptime() - h.confirmed(); silent > h.Lease-h.margin() && h.Runs.Count() > 0 {
		h.Log.Error("no heartbeat came through; stopping all runs before the lease ends", "silent", silent)
		h.Runs.StopAll(work.ErrFenced)
	}
	return nil
}

// margin is kept between stopping the runs and the end of the lease. When half
// of it is over the runs' supervisors end what is still there, because this process
// is frozen.
func (h *Heartbeat) margin() time.Duration { return h.Lease / 3 }

// confirm notes that a heartbeat came through that was sent at that Uptime.
// Postgres counts the lease from a later moment.
func (h *Heartbeat) confirm(sent time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.confirmedAt = max(h.confirmedAt, sent)
	until := h.confirmedAt + h.Lease - h.margin()/2
	if h.lease != nil && h.lease.Renew(until) {
		return nil
	}
	fresh, err := process.NewLease(until)
	if err == nil {
		h.lease = fresh
	}
	return err
}

// Current is the lease for what is claimed now.
func (h *Heartbeat) Current() *process.Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease
}

func (h *Heartbeat) confirmed() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmedAt
}
