package handlers

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"piecework/internal/backend"
	"piecework/internal/backend/mock"
	"piecework/internal/testkit"
	"piecework/internal/work"
)

// The master dies while units are being submitted and run, and takes the messages
// with it that its replica did not have yet. Every unit runs once, and messages
// are sent again.
func TestFailoverLosesNothing(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *testkit.RedisGroup{"sentinel": testkit.StartSentinel, "cluster": testkit.StartCluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const name = "default:mock"
			g := start(t)
			h := newFixtureAt(t, testkit.DB(t, migrate), g.URL)
			for range 2 {
				h.start(func(o *Options) { o.Backends = []backend.Backend{mock.Backend{}} })
			}
			var units []uuid.UUID
			submit := func() uuid.UUID {
				id := h.submit(func(s *work.Spec) {
					s.Payload = json.RawMessage(fmt.Sprintf(`{"mock":{"sleep":0.05,"output":"result %d"}}`, len(units)))
				})
				units = append(units, id)
				return id
			}
			pace := time.NewTicker(25 * time.Millisecond)
			defer pace.Stop()
			for range 20 {
				submit()
				<-pace.C
			}
			key := "asynq:{" + name + "}:pending"
			old := g.KillMaster(key)
			testkit.Eventually(t, "the failure is seen", func() bool { submit(); return !h.queue.Up() })
			testkit.Eventually(t, "Redis takes writes again", func() bool { submit(); <-pace.C; return h.queue.Up() })
			g.AwaitFailover(key, old)
			for range 20 {
				submit()
				<-pace.C
			}
			for i, id := range units {
				u := h.becomes(id, work.Succeeded)
				if want := fmt.Sprintf("result %d", i); u.Output == nil || *u.Output != want {
					t.Errorf("unit %d: output %v", i, u.Output)
				}
				if runs := h.runs(id); len(runs) != 1 || u.RunCount != 1 || u.Losses+u.Failures != 0 {
					t.Errorf("unit %d: %d runs, %v", i, len(runs), statuses(runs))
				}
			}
			t.Logf("%d units", len(units))

			// By the message, not by looking into Postgres.
			inspector := asynq.NewInspectorFromRedisClient(h.queue.Redis())
			processed := func() int {
				info, err := inspector.GetQueueInfo(name)
				if err != nil {
					t.Fatal(err)
				}
				return info.Processed
			}
			before := processed()
			h.becomes(submit(), work.Succeeded)
			testkit.Eventually(t, "the message was taken", func() bool { return processed() > before })
		})
	}
}
