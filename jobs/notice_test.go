package jobs

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
	notices(t, newHouse(t))
}

func notices(t *testing.T, h *house) {
	t.Helper()
	h.bell.OfDatabase(uuid.NewString()) // servers of a Cluster may still tell what others said before
	ctx, stop := context.WithCancel(t.Context())
	heard, left := make(chan Notice, 10), make(chan struct{})
	go func() {
		defer close(left)
		h.bell.Listen(ctx, func(n Notice) { heard <- n }, NoticeCancel, NoticeUnit, NoticeWake, NoticePause, NoticeWatch, NoticeDraft)
	}()
	h.awaitListeners(1)
	u, other := h.put(), uuid.New()
	h.must(h.bell.redis.Publish(t.Context(), h.bell.channel(NoticeUnit), "rubbish").Err())
	h.must(h.bell.Cancelled(t.Context(), u.ID))
	h.must(h.bell.Changed(t.Context(), other))
	h.ring(u)
	h.must(h.bell.PauseChanged(t.Context(), "slow"))
	h.bell.Watched([]uuid.UUID{u.ID, other})
	draft := Draft{Unit: other, Attempt: 1, Rev: 2, Type: "action", Text: "so far"}
	h.bell.Drafted(draft)
	want := []Notice{
		{Kind: NoticeCancel, Unit: u.ID}, {Kind: NoticeUnit, Unit: other}, {Kind: NoticeWake, Lane: h.bell.Lane("default", "mock", u.Priority)}, {Kind: NoticePause, Name: "slow"},
		{Kind: NoticeWatch, Units: []uuid.UUID{u.ID, other}}, {Kind: NoticeDraft, Draft: draft},
	}
	for range len(want) { // in any order, for servers of a Cluster do not wait for one another
		got := <-heard
		if at := slices.IndexFunc(want, func(n Notice) bool { return reflect.DeepEqual(n, got) }); at < 0 {
			t.Errorf("heard %+v", got)
		} else {
			want = slices.Delete(want, at, at+1)
		}
	}
	stop()
	<-left
}

func (h *house) awaitListeners(n int64) {
	h.t.Helper()
	testkit.Eventually(h.t, "somebody listens", func() bool {
		wake := h.bell.channel(NoticeWake)
		return h.bell.redis.PubSubNumSub(h.t.Context(), wake).Val()[wake] == n
	})
}

// A listener comes back by itself when Redis does, and a notice to a Redis
// that is known to be away costs nothing.
func TestNoticesAfterAnOutage(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	heard := make(chan Notice, 1000)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go h.bell.Listen(ctx, func(n Notice) { heard <- n }, NoticeUnit)
	unit := uuid.New()
	hears := func() bool {
		h.must(h.bell.Probe(t.Context()))
		h.must(h.bell.Changed(t.Context(), unit))
		select {
		case n := <-heard:
			return n.Unit == unit
		case <-time.After(50 * time.Millisecond): // it may not listen yet
			return false
		}
	}
	testkit.Eventually(t, "it hears", hears)
	h.redis.Stop()
	_ = h.bell.Probe(t.Context())
	if err := h.bell.Changed(t.Context(), unit); err != nil {
		t.Errorf("a notice to nobody: %v", err)
	}
	h.redis.Start()
	testkit.Eventually(t, "it hears again", hears)
}
