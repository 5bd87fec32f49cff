package pg

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"piecework/internal/testkit"
)

const testLock = 42

func TestLead(t *testing.T) {
	t.Parallel()
	url := empty(t)
	db, other := open(t, url), open(t, url)
	never := func(context.Context) error { t.Error("two lead"); return nil }
	broken := errors.New("broken")
	led, err := db.LeadOnce(t.Context(), testLock, func(ctx context.Context) error {
		for _, s := range []*DB{db, other} { // the same process, and another
			if led, err := s.LeadOnce(ctx, testLock, never); led || err != nil {
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
			if _, err := db.LeadOnce(t.Context(), testLock, func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if led, err := other.LeadOnce(t.Context(), testLock, func(context.Context) error { return nil }); !led || err != nil {
		t.Errorf("nobody leads, yet led %t, error %v", led, err)
	}
}

// A leader that dies leaves no lock behind.
func TestLeadDies(t *testing.T) {
	t.Parallel()
	url := empty(t)
	db, other := open(t, url), open(t, url)
	_, _ = db.LeadOnce(t.Context(), testLock, func(ctx context.Context) error {
		other.MustExec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		testkit.Eventually(t, "another leads", func() bool {
			led, err := other.LeadOnce(ctx, testLock, func(context.Context) error { return nil })
			return led && err == nil
		})
		return nil
	})
	if led, err := db.LeadOnce(t.Context(), testLock, func(context.Context) error { return nil }); !led || err != nil {
		t.Errorf("leads again %t, error %v", led, err)
	}
}

// A leader that is frozen, or that nobody can reach, does not lead for ever.
func TestLeadIsSilent(t *testing.T) {
	t.Parallel()
	url := empty(t)
	db, other := open(t, url), open(t, url)
	db.leadLimit, db.leadIdle = 100*time.Millisecond, 100*time.Millisecond
	led, err := db.LeadOnce(t.Context(), testLock, func(context.Context) error {
		testkit.Eventually(t, "another leads", func() bool {
			led, err := other.LeadOnce(t.Context(), testLock, func(context.Context) error { return nil })
			return led && err == nil
		})
		return nil
	})
	if !led || err != nil {
		t.Errorf("led %t, error %v", led, err)
	}
	if led, err := db.LeadOnce(t.Context(), testLock, func(context.Context) error { return nil }); !led || err != nil {
		t.Errorf("leads again %t, error %v", led, err)
	}
}

// The lead lasts from round to round. Others see that it is held, and whoever holds it
// and has been silent for long does nothing any more.
func TestLeadLasts(t *testing.T) {
	t.Parallel()
	url := empty(t)
	db, other := open(t, url), open(t, url)
	db.leadIdle = 500 * time.Millisecond
	isFree := func() bool {
		var free bool
		if err := other.Get(&free, `SELECT pg_try_advisory_xact_lock_shared($1)`, testLock); err != nil {
			t.Error(err)
		}
		return free
	}
	tick, rounds := make(chan time.Time), make(chan bool)
	ended := make(chan error)
	go func() {
		_, err := db.Lead(t.Context(), testLock, tick, func(context.Context) { rounds <- true })
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
		if err != nil {
			t.Error(err)
		}
	}
}
