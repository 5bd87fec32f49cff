package model

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"piecework/internal/backend"
)

// watchdog ends a call that is silent for too long. It has no goroutine: thousands
// of calls may be waited for at once.
type watchdog struct {
	timer   *time.Timer
	idle    time.Duration
	started atomic.Bool
	cancel  context.CancelCauseFunc
}

// newWatchdog returns a context that ends, with a hang as its cause, when
// nothing comes for startup, or later for idle.
func newWatchdog(ctx context.Context, startup, idle time.Duration) (context.Context, *watchdog) {
	ctx, stop := context.WithCancelCause(ctx)
	v := &watchdog{idle: idle, cancel: stop}
	v.timer = time.AfterFunc(startup, func() {
		if v.started.Load() {
			stop(backend.Silence{What: fmt.Sprintf("nothing came for %v", idle)})
			return
		}
		stop(backend.Silence{What: fmt.Sprintf("no answer at all for %v after the call", startup)})
	})
	return ctx, v
}

// reset notes a sign of life.
func (v *watchdog) reset() {
	v.started.Store(true)
	v.timer.Reset(v.idle)
}

func (v *watchdog) stopWatching() {
	v.timer.Stop()
	v.cancel(nil)
}

// watchedBody takes every byte of a body for a sign of life: also the pings and
// comments by which a server says that it is still thinking.
type watchedBody struct {
	io.ReadCloser
	v *watchdog
}

func (h watchedBody) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if n > 0 {
		h.v.reset()
	}
	return n, err
}
