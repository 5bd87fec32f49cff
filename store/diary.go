package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"piecework/internal/work"
)

// overdue is how long a write may take before Postgres counts as away.
const overdue = 3 * time.Second

// diary knows how the last write ended, and which are under way.
type diary struct {
	pulse *pulse

	mu     sync.Mutex
	number int
	open   map[int]time.Time // by when the writes under way should have come back
	newest int               // the last write whose outcome is known
	failed error             // Postgres did not take it; nil: it did
}

func newDiary(p *pulse) *diary { return &diary{pulse: p, open: map[int]time.Time{}} }

// begin notes that a write begins which may take that long, and returns what
// takes in its end. Postgres counts as away before the time is over.
func (d *diary) begin(limit time.Duration) (end func(error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number++
	number := d.number
	d.open[number] = time.Now().Add(min(overdue, limit*3/4))
	return func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.open, number)
		if number < d.newest {
			return
		}
		d.newest, d.failed = number, nil
		if errors.As(err, new(*work.Unavailable)) {
			d.failed = err
		}
		d.pulse.away.Store(unanswered(d.failed))
	}
}

// trouble tells why writes do not come back, nil when they do.
func (d *diary) trouble() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, due := range d.open {
		if late := time.Since(due); late > 0 {
			return &work.Unavailable{What: "postgres", RetryAfter: 2 * time.Second,
				Err: fmt.Errorf("the answer to a write is late by %s", late.Round(100*time.Millisecond))}
		}
	}
	return d.failed
}

// Trouble tells why writes of this store do not come back, nil when they do, as
// far as is known.
func (s *Store) Trouble() error { return s.diary.trouble() }

// Writable tells whether Postgres takes writes and answers in time. It writes,
// so it finds out that Postgres is back.
func (s *Store) Writable(ctx context.Context) error {
	_, err := s.probe.do(ctx, struct{}{})
	if err == nil {
		err = s.diary.trouble()
	}
	return err
}

func (s *Store) probeAll(ctx context.Context, rows []struct{}) ([]struct{}, error) {
	_, err := s.vital.ExecContext(ctx, `INSERT INTO settings (name, value) VALUES ('write_probe', clock_timestamp()::text)
		ON CONFLICT (name) DO UPDATE SET value = excluded.value`)
	return rows, err
}
