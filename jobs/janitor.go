package jobs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"piecework/internal/blob"
	"piecework/internal/work"
	"piecework/store"
)

// Retention is how long what is over is kept; 0 is for ever.
type Retention struct {
	Units       time.Duration // units and batches after their end, with runs, transcripts and output files; uploads that nobody names
	Transcripts time.Duration // transcripts after the end of their run
	Keys        time.Duration // idempotency keys after they came first
	Deliveries  time.Duration // finished webhook deliveries after they were written
}

// DefaultRetention is what holds unless something else is said: results are kept
// until somebody says how long.
var DefaultRetention = Retention{Keys: 30 * 24 * time.Hour, Deliveries: 30 * 24 * time.Hour}

// What no setting says.
const (
	// keepTriggerDeliveries: what came for triggers is remembered for longer than
	// any sender repeats it.
	keepTriggerDeliveries = 7 * 24 * time.Hour
	// keepProcesses is how long one that has stopped can be asked for.
	keepProcesses       = time.Hour
	keepProviderBatches = 30 * 24 * time.Hour
	// keepPauses: by then every worker process knows of a resume.
	keepPauses = 24 * time.Hour

	janitorEvery  = time.Minute
	janitorBudget = 20 * time.Second // of one duty: less than what one leader may take
	// janitorPause is how long the janitor rests after a piece, as a multiple of
	// what the piece took, so that claims have most of the database's time.
	janitorPause = 3
	// janitorRows is how many rows it removes in one transaction, which claims wait for
	// when both are written to the log at once.
	janitorRows = 200
	blobsAtOnce = 100
)

// Janitor removes what is old: rows of Postgres that nobody needs any more, and the
// bytes of files that are gone. Any process may run one; an advisory lock lets one
// at a time work. Every table has a remover: docs/retention.md names them.
type Janitor struct {
	Store   *store.Store
	Files   *blob.Store
	Log     *slog.Logger
	Keep    Retention
	Metrics prometheus.Registerer // nil: not counted

	table []duty
}

// Run removes what is old, once a minute and without a rest while there is more,
// until ctx ends.
func (j *Janitor) Run(ctx context.Context) {
	ticker := time.NewTicker(janitorEvery)
	defer ticker.Stop()
	var removed *prometheus.CounterVec
	if j.Metrics != nil {
		removed = promauto.With(j.Metrics).NewCounterVec(prometheus.CounterOpts{
			Name: "piecework_removed_total", Help: "What was removed because it was old, by what.",
		}, []string{"what"})
	}
	for ctx.Err() == nil {
		more, err := j.Once(ctx, func(what string, n int) {
			j.Log.Info("removed what was old", "what", what, "count", n)
			if removed != nil {
				removed.WithLabelValues(what).Add(float64(n))
			}
		})
		if err != nil && ctx.Err() == nil {
			j.Log.Warn("remove what is old", "err", err)
		}
		if more && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// Once does each duty once, within its budget, and tells whether one of them has
// more to do. It calls removed for each that removed something.
func (j *Janitor) Once(ctx context.Context, removed func(what string, n int)) (more bool, err error) {
	if j.table == nil {
		j.table = j.duties()
	}
	var errs []error
	for i := range j.table {
		d := &j.table[i]
		var n int
		_, err := j.Store.Retention.Lead(ctx, func(ctx context.Context) (err error) {
			n, err = d.run(ctx)
			return err
		})
		if n > 0 {
			removed(d.name, n)
		}
		more = more || n >= janitorRows
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return more, errors.Join(errs...)
}

// duties is what the janitor removes.
func (j *Janitor) duties() []duty {
	// since makes a duty of a function that removes what is older than keep.
	since := func(name string, keep time.Duration, prune func(context.Context, time.Time, int) (int, error)) duty {
		return duty{name: name, do: func(ctx context.Context) (int, error) {
			now, err := j.Store.Clock(ctx)
			if err != nil {
				return 0, err
			}
			return prune(ctx, now.Add(-keep), janitorRows)
		}}
	}
	setting := func(name string, keep time.Duration, prune func(context.Context, time.Time, int) (int, error)) duty {
		if keep == 0 {
			return duty{name: name, do: func(context.Context) (int, error) { return 0, nil }}
		}
		return since(name, keep, prune)
	}
	mine := func(prune func(context.Context, string, time.Time, int) (int, error)) func(context.Context, time.Time, int) (int, error) {
		return func(ctx context.Context, t time.Time, most int) (int, error) {
			return prune(ctx, work.DefaultTenant, t, most)
		}
	}
	pieces := func(name string, prune func(context.Context, int) (int, error)) duty {
		return duty{name: name, do: func(ctx context.Context) (int, error) { return prune(ctx, janitorRows) }}
	}
	table := []duty{
		setting("units", j.Keep.Units, mine(j.Store.Retention.PruneUnits)),
		setting("batches", j.Keep.Units, mine(j.Store.Retention.PruneBatches)),
		pieces("rows of deleted batches", j.Store.Retention.PurgeBatches),
		setting("uploads", j.Keep.Units, mine(j.Store.Retention.PruneUploads)),
		pieces("files whose time is over", j.Store.Retention.ExpireFiles),
		setting("transcripts", j.Keep.Transcripts, j.Store.Retention.PruneTranscripts),
		setting("idempotency keys", j.Keep.Keys, j.Store.Retention.PruneKeys),
		setting("webhook deliveries", j.Keep.Deliveries, j.Store.Retention.PruneDeliveries),
		since("trigger deliveries", keepTriggerDeliveries, j.Store.Retention.PruneTriggerDeliveries),
		pieces("cached results", j.Store.Retention.PruneCache),
		pieces("providers' answers", j.Store.Retention.PruneAnswers),
		since("provider batches", keepProviderBatches, j.Store.Retention.PruneProviderBatches),
		since("worker processes", keepProcesses, j.Store.Retention.PruneProcesses),
		since("pauses", keepPauses, j.Store.Retention.PrunePauses),
		{name: "bytes of files that are gone", do: j.removeBlobs},
	}
	for i := range table {
		table[i].budget, table[i].piece, table[i].pause = janitorBudget, janitorRows, janitorPause
	}
	return table
}

// removeBlobs removes bytes that no file stands for: of uploads and runs that died,
// and of files that were removed. Repeating it does no harm.
func (j *Janitor) removeBlobs(ctx context.Context) (n int, err error) {
	for n < janitorRows {
		ids, err := j.Store.Files.StrayBlobs(ctx, blobsAtOnce)
		if err != nil || len(ids) == 0 {
			return n, err
		}
		var broken error
		for i, id := range ids {
			if broken = j.Files.Delete(ctx, id); broken != nil {
				ids = ids[:i]
				break
			}
		}
		if err := errors.Join(broken, j.Store.Files.BlobsGone(ctx, ids)); err != nil {
			return n, err
		}
		n += len(ids)
	}
	return n, nil
}
