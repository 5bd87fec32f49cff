package backend

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// vigil ends a call that is silent for too long. It has no goroutine: thousands
// of calls may be waited for at once.
type vigil struct {
	timer  *time.Timer
	idle   time.Duration
	spoken atomic.Bool
	stop   context.CancelCauseFunc
}

// keepVigil returns a context that ends, with a hang as its cause, when
// nothing comes for startup, or later for idle.
func keepVigil(ctx context.Context, startup, idle time.Duration) (context.Context, *vigil) {
	ctx, stop := context.WithCancelCause(ctx)
	v := &vigil{idle: idle, stop: stop}
	v.timer = time.AfterFunc(startup, func() {
		if v.spoken.Load() {
			stop(hang{fmt.Sprintf("nothing came for %v", idle)})
			return
		}
		stop(hang{fmt.Sprintf("no answer at all for %v after the call", startup)})
	})
	return ctx, v
}

// alive notes a sign of life.
func (v *vigil) alive() {
	v.spoken.Store(true)
	v.timer.Reset(v.idle)
}

func (v *vigil) end() {
	v.timer.Stop()
	v.stop(nil)
}

// heartbeat takes every byte of a body for a sign of life: also the pings and
// comments by which a server says that it is still thinking.
type heartbeat struct {
	io.ReadCloser
	v *vigil
}

func (h heartbeat) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if n > 0 {
		h.v.alive()
	}
	return n, err
}
