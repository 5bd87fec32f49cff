package upkeep

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"piecework/internal/process"
	"piecework/store"
)

// Peers are the other worker processes of this machine, and those that share this
// process's data directory.
type Peers struct {
	Store   *store.Store
	Log     *slog.Logger
	Process uuid.UUID // this one
	Dir     string    // where worker processes that share a data directory show each other that they live
	Spool   *Spool
}

// Lock shows the peers that this process lives, until it ends or calls unlock.
func (p *Peers) Lock() (unlock func()) {
	unlock, err := process.LockFile(p.Dir, p.Process.String())
	if err != nil {
		p.Log.Warn("no lock file: if this process dies, other containers see it when its lease is over", "err", err)
		return func() {}
	}
	return unlock
}

// Check ends the lease of peers that are plainly dead, so that their units need not
// wait for it to run out.
func (p *Peers) Check(ctx context.Context) error {
	processes, err := p.Store.Processes.List(ctx)
	if err != nil {
		return err
	}
	var dead []uuid.UUID
	for _, other := range processes {
		if other.ID != p.Process && process.Dead(other.Identity) {
			dead = append(dead, other.ID)
		}
	}
	unlocked, remove := process.Unlocked(p.Dir)
	var files []string
	for _, name := range unlocked {
		if id, err := uuid.Parse(name); err == nil {
			dead, files = append(dead, id), append(files, name)
		}
	}
	if len(dead) == 0 {
		return nil
	}
	SweepDead(p.Log)                            // before their units run elsewhere
	if err := p.Spool.HandIn(ctx); err != nil { // what they have finished need not
		p.Log.Warn("hand in what dead worker processes have finished", "err", err)
	}
	lost, err := p.Store.Processes.EndDead(ctx, dead)
	if err != nil {
		return err
	}
	if lost > 0 {
		p.Log.Warn("worker processes have died; others take over their units", "count", lost)
	}
	for _, name := range files {
		remove(name)
	}
	return nil
}

// SweepDead kills what dead worker processes of this machine left running.
func SweepDead(log *slog.Logger) {
	if swept, err := process.SweepDead(); err != nil || swept > 0 {
		log.Warn("swept processes of a dead worker process", "count", swept, "err", err)
	}
}
