package ops

import (
	"context"
	"sync"
	"time"
)

// cached answers a question about very many rows for all who ask it within some
// seconds. What is about few rows is asked anew each time, so that whoever changes
// something sees it.
type cached[T any] struct {
	mu     sync.Mutex
	value  T
	at     time.Time     // when it was asked for; zero: nothing is kept
	keep   time.Duration // how long the value is good for
	asking chan struct{} // closed when the answer that is on its way has come; nil: none is
}

// A value is kept for 5 s, and for longer when it takes long to have: no more than a
// fifth of the time is spent asking, however many read.
const (
	keepLately = 5 * time.Second
	keepTimes  = 10
	// manyRows is how many rows a question is about from which on its answer is kept.
	manyRows = 10_000
)

// question asks for a value and tells about how many rows it was.
type question[T any] func(context.Context) (value T, rows int64, err error)

// get returns a value that is kept, or asks. When half of its time is over one of the
// readers has it asked for anew, and nobody waits.
func (l *cached[T]) get(ctx context.Context, ask question[T]) (T, error) {
	l.mu.Lock()
	if l.at.IsZero() {
		l.mu.Unlock()
		return l.askNow(ctx, ask)
	}
	age := time.Since(l.at)
	if age > l.keep/2 && l.asking == nil {
		answered := make(chan struct{})
		l.asking = answered
		go func() {
			_, _ = l.askNow(context.WithoutCancel(ctx), ask) // whoever finds nothing kept asks and hears why
			l.mu.Lock()
			defer l.mu.Unlock()
			l.asking = nil
			close(answered)
		}()
	}
	value, asking, good := l.value, l.asking, age <= l.keep
	l.mu.Unlock()
	if good {
		return value, nil
	}
	select {
	case <-asking:
	case <-ctx.Done():
		return value, ctx.Err()
	}
	l.mu.Lock()
	value, age = l.value, time.Since(l.at)
	good = !l.at.IsZero() && age <= l.keep
	l.mu.Unlock()
	if good {
		return value, nil
	}
	return l.askNow(ctx, ask)
}

func (l *cached[T]) askNow(ctx context.Context, ask question[T]) (T, error) {
	begun := time.Now()
	value, rows, err := ask(ctx)
	if err != nil {
		return value, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case rows < manyRows:
		l.at = time.Time{}
	case begun.After(l.at):
		l.value, l.at, l.keep = value, begun, max(keepLately, keepTimes*time.Since(begun))
	}
	return value, nil
}
