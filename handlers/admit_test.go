package handlers

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/backend"
	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// A unit that meets the limit of its model keeps nobody waiting who has another
// model, however many of its own kind stand before them in the queue; and its
// kind comes again when the limit is over.
func TestLimitOfAModelLetsOthersPass(t *testing.T) {
	t.Parallel()
	for name, withRedis := range map[string]bool{"with redis": true, "without redis": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t)
			w := h.start(func(o *Options) { o.Slots, o.Beat = 2, 200*time.Millisecond })
			if !withRedis {
				h.redis.Stop()
				testkit.Eventually(t, "redis is away", func() bool { return !h.queue.Up() })
			}
			first := h.submit(func(s *work.Spec) { s.Model = "slow" })
			limit := work.Fail(work.ClassRateLimit, "429: limit of the model slow")
			limit.ResetAt = time.Now().Add(time.Hour)
			h.begun().end <- backend.Result{Error: limit}
			h.waits(first)
			slow := make([]uuid.UUID, 30)
			for i := range slow {
				slow[i] = h.submit(func(s *work.Spec) { s.Model, s.Priority = "slow", 5 })
			}
			for range 20 {
				id := h.submit(func(s *work.Spec) { s.Model = "fast" })
				run := h.begun()
				if run.req.Model != "fast" {
					t.Fatalf("a unit of %q began", run.req.Model)
				}
				run.end <- succeed("done")
				h.becomes(id, work.Succeeded)
			}
			for _, id := range slow {
				if u := h.unit(id); u.State != work.Queued || u.RunCount != 0 {
					t.Fatalf("a unit of the shut model is %s after %d runs", u.State, u.RunCount)
				}
			}
			w.stop()
			<-w.done
			h.start(nil) // another process has met no limit
			if err := h.store.Queues.Recheck(t.Context(), slow); err != nil {
				t.Fatal(err)
			}
			for range slow {
				h.begun().end <- succeed("done")
			}
			for _, id := range slow {
				h.becomes(id, work.Succeeded)
			}
		})
	}
}

// Units of a shut model are dispatched when their turn comes, not again and
// again.
func TestUnitsOfAShutModelCostNoMessages(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	w := h.start(nil)
	limit := work.Fail(work.ClassRateLimit, "429")
	limit.ResetAt = time.Now().Add(time.Hour)
	w.health.Of("mock").Ended("slow", time.Now(), false, limit)
	units := make([]uuid.UUID, 10)
	for i := range units {
		units[i] = h.submit(func(s *work.Spec) { s.Model = "slow" })
	}
	last := h.submit(func(s *work.Spec) { s.Model = "fast" })
	h.begun().end <- succeed("done")
	h.becomes(last, work.Succeeded)
	for _, id := range units {
		testkit.Eventually(t, "its message is gone and it is not due", func() bool {
			due, _, err := h.store.Queues.Unchecked(t.Context(), store.CheckCursor{}, 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range due {
				if d.UnitID == id {
					return false
				}
			}
			return h.messages(id) == 0
		})
		if u := h.unit(id); u.Dispatch > 2 || u.RunCount != 0 {
			t.Errorf("dispatched %d times, %d runs", u.Dispatch, u.RunCount)
		}
	}
}
