package queue

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
)

func TestNotices(t *testing.T) {
	t.Parallel()
	noticesReach(t, newFixture(t))
}

func noticesReach(t *testing.T, f *fixture) {
	t.Helper()
	f.queue.OfDatabase(uuid.NewString()) // servers of a Cluster may still tell what others said before
	ctx, stop := context.WithCancel(t.Context())
	got, left := make(chan Notice, 10), make(chan struct{})
	go func() {
		defer close(left)
		f.queue.Listen(ctx, func(n Notice) { got <- n }, NoticeCancel, NoticeUnit, NoticeWake, NoticePause, NoticeWatch, NoticeDraft)
	}()
	f.awaitListeners(1)
	u, other := f.put(), uuid.New()
	f.must(f.queue.redis.Publish(t.Context(), f.queue.channel(NoticeUnit), "rubbish").Err())
	f.must(f.queue.Cancelled(t.Context(), u.ID))
	f.must(f.queue.Changed(t.Context(), other))
	f.enqueue(u)
	f.must(f.queue.PauseChanged(t.Context(), "slow"))
	f.queue.Watched([]uuid.UUID{u.ID, other})
	draft := Draft{Unit: other, Attempt: 1, Rev: 2, Type: "action", Text: "so far"}
	f.queue.Drafted(draft)
	want := []Notice{
		{Kind: NoticeCancel, Unit: u.ID}, {Kind: NoticeUnit, Unit: other},
		{Kind: NoticeWake, Queue: f.queue.QueueName("default", "mock", u.Priority)}, {Kind: NoticePause, Name: "slow"},
		{Kind: NoticeWatch, Units: []uuid.UUID{u.ID, other}}, {Kind: NoticeDraft, Draft: draft},
	}
	for range len(want) { // in any order, for servers of a Cluster do not wait for one another
		n := <-got
		if at := slices.IndexFunc(want, func(wanted Notice) bool { return reflect.DeepEqual(wanted, n) }); at < 0 {
			t.Errorf("got %+v", n)
		} else {
			want = slices.Delete(want, at, at+1)
		}
	}
	stop()
	<-left
}

func (f *fixture) awaitListeners(n int64) {
	f.t.Helper()
	testkit.Eventually(f.t, "somebody listens", func() bool {
		wake := f.queue.channel(NoticeWake)
		return f.queue.redis.PubSubNumSub(f.t.Context(), wake).Val()[wake] == n
	})
}

// A listener comes back by itself when Redis does, and a notice to a Redis
// that is known to be away costs nothing.
func TestNoticesAfterAnOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	got := make(chan Notice, 1000)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go f.queue.Listen(ctx, func(n Notice) { got <- n }, NoticeUnit)
	unit := uuid.New()
	gets := func() bool {
		f.must(f.queue.Probe(t.Context()))
		f.must(f.queue.Changed(t.Context(), unit))
		select {
		case n := <-got:
			return n.Unit == unit
		case <-time.After(50 * time.Millisecond): // it may not listen yet
			return false
		}
	}
	testkit.Eventually(t, "it gets notices", gets)
	f.redis.Stop()
	_ = f.queue.Probe(t.Context())
	if err := f.queue.Changed(t.Context(), unit); err != nil {
		t.Errorf("a notice to nobody: %v", err)
	}
	f.redis.Start()
	testkit.Eventually(t, "it gets notices again", gets)
}
