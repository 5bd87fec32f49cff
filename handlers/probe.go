package handlers

import (
	"context"
	"slices"
	"sync"
	"time"

	"piecework/internal/backend"
	"piecework/internal/work"
)

const (
	// probeBudget is how long a backend may take to say whether it is there.
	probeBudget = 20 * time.Second
	// startBudget is how long the start of a worker process waits for that.
	startBudget = 150 * time.Millisecond
	// notLooked is why a unit cannot begin before its backend has said so.
	notLooked = "not looked at yet"
)

// firstLook looks at all backends. It returns when each has said whether it is
// there, or after startBudget: one agent takes seconds to tell its version, and
// the others need not wait for it. Then looked is closed when all have.
func (w *Worker) firstLook(ctx context.Context, loops *sync.WaitGroup) (looked <-chan struct{}) {
	done := make(chan struct{})
	loops.Go(func() {
		defer close(done)
		w.probe(ctx, everyLane)
	})
	select {
	case <-done:
		return nil
	case <-time.After(startBudget):
		return done
	}
}

// probe looks at some backends at once and notes in their lanes whether they
// can run here. A lane that is another now ends the wait for work.
func (w *Worker) probe(ctx context.Context, which func(*lane) bool) {
	var looks sync.WaitGroup
	for _, l := range w.lanes {
		if !which(l) {
			continue
		}
		looks.Go(func() {
			missing, version := look(ctx, l.backend)
			if ctx.Err() != nil {
				return // a look that was broken off has seen nothing
			}
			if !l.probed(missing, version) {
				return
			}
			w.wake()
			if missing != "" {
				w.Log.Info("backend not available", "backend", l.backend.Name(), "reason", missing)
			}
		})
	}
	looks.Wait()
}

func look(ctx context.Context, b backend.Backend) (missing, version string) {
	ctx, cancel := context.WithTimeout(ctx, probeBudget)
	defer cancel()
	err := b.Available(ctx)
	if err != nil {
		return err.Error(), ""
	}
	return "", version
}

// lookAtAll is how many looks go by until one is at every backend. The rest are
// at those that were not there or have failed: to start a program only to ask
// whether it starts is not free.
const lookAtAll = 10

func everyLane(*lane) bool { return true }

// watchBackends looks at the backends again and again: a program is installed,
// a key is set, a server comes back. The next beat tells the ledger. The end of
// a first look that the start did not wait for is told at once.
func (w *Worker) watchBackends(ctx context.Context, looked <-chan struct{}) {
	if looked != nil {
		<-looked
		if err := w.beatOnce(ctx); err != nil && ctx.Err() == nil {
			w.Log.Warn("the backends are told with the next sign of life", "err", err)
		}
	}
	ticker := time.NewTicker(w.Probe)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		which := (*lane).doubtful
		if n%lookAtAll == 0 {
			which = everyLane
		}
		w.probe(ctx, which)
	}
}

// wake ends the wait for work.
func (w *Worker) wake() {
	select {
	case w.rung <- struct{}{}:
	default:
	}
}

func (w *Worker) lane(name string) *lane {
	for _, l := range w.lanes {
		if l.backend.Name() == name {
			return l
		}
	}
	return nil
}

func (w *Worker) laneTook(name string) {
	if l := w.lane(name); l != nil {
		l.took()
	}
}

// dequeued counts a message that Asynq was given, until ProcessTask is done with it.
func (w *Worker) dequeued(name string) {
	w.taken.Add(1)
	w.laneTook(name)
}

// spare tells how many units of a backend this process can begin now. Agents are
// taken one by one: they keep a machine busy, and are spread over all of them. So
// are units while something holds a backend back.
func (w *Worker) spare(name string) int {
	if l := w.lane(name); l == nil || !l.plain() || backend.Can(name, work.CanTools) {
		return 1
	}
	return w.Slots - max(int(w.taken.Load()), len(w.slots))
}

// laneNames lists the backends of this process that satisfy which.
func (w *Worker) laneNames(which func(*lane) bool) []string {
	var names []string
	for _, l := range w.lanes {
		if which(l) {
			names = append(names, l.backend.Name())
		}
	}
	slices.Sort(names)
	return names
}

// available lists the backends that can run here, paused ones among them.
func (w *Worker) available() []string {
	return w.laneNames(func(l *lane) bool { return l.offer().Available })
}

// open lists the backends that a unit may begin on now.
func (w *Worker) open() []string {
	return w.laneNames(func(l *lane) bool { return l.wait() == 0 })
}

func (w *Worker) offers() []work.Offer {
	offers, full := make([]work.Offer, 0, len(w.lanes)), w.full()
	for _, l := range w.lanes {
		o := l.offer()
		if full {
			o.Available, o.Detail = false, w.fullDisk()
		}
		offers = append(offers, o)
	}
	return offers
}
