package store

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"piecework/internal/testkit"
)

func TestLead(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	other := openLedger(t, l.url)
	never := func(context.Context) error { t.Error("two lead"); return nil }
	broken := errors.New("broken")
	led, err := l.lead(t.Context(), leadLock, func(ctx context.Context) error {
		for _, s := range []*ledger{l, other} { // the same process, and another
			if led, err := s.lead(ctx, leadLock, never); led || err != nil {
				t.Errorf("a second leads %t, error %v", led, err)
			}
		}
		return broken
	})
	if !led || !errors.Is(err, broken) {
		t.Errorf("led %t, error %v", led, err)
	}
	var all sync.WaitGroup
	for range 20 { // whoever leads next, the lock did not stay in a pool
		all.Go(func() {
			if _, err := l.lead(t.Context(), leadLock, func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if led, err := other.lead(t.Context(), leadLock, func(context.Context) error { return nil }); !led || err != nil {
		t.Errorf("nobody leads, yet led %t, error %v", led, err)
	}
}

// A leader that dies leaves no lock behind.
func TestLeadDies(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	other := openLedger(t, l.url)
	_, _ = l.lead(t.Context(), leadLock, func(ctx context.Context) error {
		other.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		testkit.Eventually(t, "another leads", func() bool {
			led, err := other.lead(ctx, leadLock, func(context.Context) error { return nil })
			return led && err == nil
		})
		return nil
	})
	if led, err := l.lead(t.Context(), leadLock, func(context.Context) error { return nil }); !led || err != nil {
		t.Errorf("leads again %t, error %v", led, err)
	}
}

// A leader that is frozen, or that nobody can reach, does not lead for ever.
func TestLeadIsSilent(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.leadLimit, l.leadIdle = 100*time.Millisecond, 100*time.Millisecond
	other := openLedger(t, l.url)
	led, err := l.lead(t.Context(), leadLock, func(context.Context) error {
		testkit.Eventually(t, "another leads", func() bool {
			led, err := other.lead(t.Context(), leadLock, func(context.Context) error { return nil })
			return led && err == nil
		})
		return nil
	})
	if !led || err != nil {
		t.Errorf("led %t, error %v", led, err)
	}
	if led, err := l.lead(t.Context(), leadLock, func(context.Context) error { return nil }); !led || err != nil {
		t.Errorf("leads again %t, error %v", led, err)
	}
}

// The lead lasts from round to round. Others see that it is held, and whoever holds it
// and has been silent for long does nothing any more.
func TestLeadLasts(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.leadIdle = 500 * time.Millisecond
	other := openLedger(t, l.url)
	isFree := func() bool {
		_, _, free, err := other.Processes.LeasesAndLead(t.Context())
		l.must(err)
		return free
	}
	tick, rounds := make(chan time.Time), make(chan bool)
	ended := make(chan error)
	go func() {
		_, err := l.Reconciler.Lead(t.Context(), tick, func(context.Context) { rounds <- true })
		ended <- err
	}()
	for range 3 {
		<-rounds
		if isFree() {
			t.Error("the lead is free while somebody leads")
		}
		tick <- time.Time{}
	}
	<-rounds
	testkit.Eventually(t, "the lead of one that is silent is free", isFree) // it waits for a tick
	tick <- time.Time{}
	select {
	case <-rounds:
		t.Error("a round of one that does not lead")
	case err := <-ended:
		l.must(err)
	}
}
