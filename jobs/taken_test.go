package jobs

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"piecework/internal/testkit"
	"piecework/internal/work"
	"piecework/store"
)

// A worker process that takes messages and does not claim their units, because
// it has lost Postgres or is frozen, does not keep them from others.
func TestTakenAndNotBegun(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.once() // marks Redis
	process := work.Process{ID: uuid.Must(uuid.NewV7()), Queues: []string{"default"}}
	h.must(h.store.Processes.Register(t.Context(), process, time.Hour))
	eaten, begun := h.put(), h.put()
	h.ring(eaten)
	h.ring(begun)
	// They waited in Redis when they were last looked at: the next look is later than
	// the test lasts.
	h.exec(`UPDATE work_units SET check_at = now() + interval '1 hour'`)
	hold, took := make(chan struct{}), make(chan uuid.UUID, 2)
	server := asynq.NewServerFromRedisClient(h.bell.Redis(), asynq.Config{
		Concurrency: 2, Queues: map[string]int{"default:mock": 1}, ShutdownTimeout: time.Millisecond, LogLevel: asynq.FatalLevel,
	})
	h.must(server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		var payload Task
		if err := json.Unmarshal(task.Payload(), &payload); err != nil {
			return err
		}
		took <- payload.Unit
		<-hold
		return nil
	})))
	t.Cleanup(func() { close(hold); server.Shutdown() })
	<-took
	<-took
	if !h.bell.Taken(t.Context(), store.MessageOf(eaten)) {
		t.Error("nobody knows that the message was taken")
	}
	if c, err := h.store.Runs.Claim(t.Context(), store.Claim{UnitID: begun.ID, RunID: uuid.New(), Process: process.ID, SessionID: "s", Backends: []string{"mock"}}); err != nil || c == nil {
		t.Fatal(c, err)
	}
	server.Stop() // it takes nothing more
	h.once()
	if u := h.unit(eaten.ID); u.Dispatch != 1 {
		t.Errorf("offered again at first sight: dispatch %d", u.Dispatch)
	}
	testkit.Eventually(t, "offered again", func() bool {
		h.once()
		return h.unit(eaten.ID).Dispatch == 2
	})
	if h.pending(eaten) != 1 {
		t.Error("no message waits")
	}
	h.once()
	if u := h.unit(eaten.ID); u.Dispatch != 2 {
		t.Errorf("a message that waits is sent again: dispatch %d", u.Dispatch)
	}
	if u := h.unit(begun.ID); u.State != work.Running || u.Dispatch != 1 {
		t.Errorf("what had begun: %s, dispatch %d", u.State, u.Dispatch)
	}
}
