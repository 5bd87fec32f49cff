package api

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"piecework/internal/work"
	"piecework/store"
)

// offers remembers for a moment what worker processes can run.
type offers struct {
	mu    sync.Mutex
	known map[string]work.Offer
	at    time.Time
	ask   singleflight.Group
}

// check refuses a backend that live worker processes know and none of them
// has. When there is no live worker process, or none knows the backend, the
// unit may wait for one.
func (o *offers) check(ctx context.Context, s *store.Store, name string) error {
	known, err := o.read(ctx, s)
	if err != nil {
		return err
	}
	offer, ok := known[name]
	switch {
	case len(known) == 0 || offer.Available:
		return nil
	case !ok:
		return work.Invalidf("#/backend", "no worker process of this server has the backend %q; there is %s (`piecework doctor` says more)", name, available(known))
	}
	return work.Invalidf("#/backend", "the backend %q is not available here: %s", name, offer.Detail)
}

func available(known map[string]work.Offer) string {
	var names []string
	for name, offer := range known {
		if offer.Available {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (o *offers) read(ctx context.Context, s *store.Store) (map[string]work.Offer, error) {
	if known, fresh := o.recall(); fresh {
		return known, nil
	}
	// One question for all who wait: when Postgres is slow to fail, they must
	// not queue up behind each other. It is not the first caller's to cancel.
	answer := o.ask.DoChan("", func() (any, error) {
		known, err := s.Offers(context.WithoutCancel(ctx))
		if err == nil {
			o.remember(known)
		}
		return known, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-answer:
		known, _ := a.Val.(map[string]work.Offer)
		return known, a.Err
	}
}

func (o *offers) recall() (known map[string]work.Offer, fresh bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known, time.Since(o.at) < time.Second
}

func (o *offers) remember(known map[string]work.Offer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known, o.at = known, time.Now()
}
