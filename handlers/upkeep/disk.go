package upkeep

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"piecework/store"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	leastRoom = 1 << 20 // bytes that must be free for a run to begin
	// shortRoom is below which directories of units that are over are removed: of
	// a small disk a twentieth.
	shortRoom = 64 << 20
	// logAgain is how often the log says that the disk is still full.
	logAgain = 10 * time.Minute
	// DiskEvery is how often the disk is looked at.
	DiskEvery = 5 * time.Second
)

// Disk is the disk of a worker process: the directories of units, the room that is
// left, and how more is made.
type Disk struct {
	Store   *store.Store
	Log     *slog.Logger
	Process uuid.UUID
	Data    string      // the data directory
	Spool   *Spool      // whose old files go
	Changed func()      // that this process takes units again, or none any more
	Full    func() bool // there is no room for another run; nil: the file system says so
	Short   func() bool // room is to be made; nil: the file system says so

	removed *prometheus.CounterVec
	full    prometheus.Gauge
	blocked bool      // Postgres knows that this process takes no units
	logged  time.Time // when the log said last that the disk is full
}

// Init makes a Disk ready.
func (d *Disk) Init(r prometheus.Registerer) {
	f := promauto.With(r)
	d.removed = f.NewCounterVec(prometheus.CounterOpts{
		Name: "piecework_directories_removed_total", Help: "Directories of units that were removed: because they were old, or to make room.",
	}, []string{"why"})
	d.full = f.NewGauge(prometheus.GaugeOpts{
		Name: "piecework_disk_full", Help: "1 while this worker process takes no units because its disk is full.",
	})
	if d.Full == nil {
		d.Full = func() bool { return diskFull(d.Data) }
	}
	if d.Short == nil {
		d.Short = func() bool { return diskShort(d.Data) }
	}
}

// Units is the directory that has one for each unit.
func (d *Disk) Units() string { return filepath.Join(d.Data, "units") }

// diskFull tells whether the data directory has no room for another run.
func diskFull(dir string) bool {
	free, _, files, ok := room(dir)
	return ok && (free < leastRoom || !files)
}

// diskShort tells whether room should be made in the data directory.
func diskShort(dir string) bool {
	free, size, files, ok := room(dir)
	return ok && (free < max(leastRoom, min(shortRoom, size/20)) || !files)
}

// room is the free bytes of a directory's disk and its size, and whether it takes
// another file. When it cannot be told, whoever writes there will say why.
func room(dir string) (free, size uint64, files, ok bool) {
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil {
		return 0, 0, false, false
	}
	return fs.Bavail * uint64(fs.Bsize), fs.Blocks * uint64(fs.Bsize), fs.Files == 0 || fs.Ffree > 0, true
}

// Check makes room when the disk is short, and tells when there is none: then
// this worker process takes nothing.
func (d *Disk) Check(ctx context.Context) error {
	d.makeRoom(ctx)
	full := d.Full()
	if full && time.Since(d.logged) > logAgain {
		d.logged = time.Now()
		d.Log.Error("DISK FULL: this worker process takes no units until there is room; "+
			"no directory of a unit that is over is left to remove", "data", d.Data)
	}
	if !full && d.blocked {
		d.logged = time.Time{}
		d.Log.Warn("there is room again: this worker process takes units", "data", d.Data)
	}
	d.full.Set(map[bool]float64{true: 1}[full])
	if full == d.blocked {
		return nil
	}
	why := ""
	if full {
		why = d.fullText()
	}
	if err := d.Store.Processes.Block(ctx, d.Process, why); err != nil {
		return fmt.Errorf("tell Postgres of a full disk: %w", err)
	}
	d.blocked = full
	d.Changed()
	return nil
}

// Blocked says why this worker process takes no units at all; empty: it takes
// them.
func (d *Disk) Blocked() string {
	if d.Full() {
		return d.fullText()
	}
	return ""
}

// fullText says that the disk is full.
func (d *Disk) fullText() string {
	return fmt.Sprintf("the disk of %s is full: free some space", d.Data)
}

// makeRoom removes directories of units that are over, and of units that are not
// in Postgres any more, until the disk is not short: those first that nobody has
// touched for the longest. What they left is stored, or was too large for it.
func (d *Disk) makeRoom(ctx context.Context) {
	if !d.Short() && !d.Full() {
		return
	}
	dirs, err := d.directories()
	if err != nil {
		d.Log.Warn("the disk is short: look for directories to remove", "err", err)
		return
	}
	over, gone, err := d.Store.Retention.Leftover(ctx, idsOf(dirs))
	if err != nil {
		d.Log.Warn("the disk is short: look for units that are over", "err", err)
		return
	}
	removed := 0
	for _, dir := range dirs {
		if over[dir.unit] || gone[dir.unit] {
			if d.remove(dir, "room") {
				removed++
			}
			if !d.Short() && !d.Full() {
				break
			}
		}
	}
	if removed > 0 {
		d.Log.Warn("the disk was short: removed directories of units that are over", "data", d.Data, "directories", removed)
	}
}
