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
	"piecework/jobs/queue"
	"piecework/store"
)

// A worker process that takes messages and does not claim their units, because
// it has lost Postgres or is frozen, does not keep them from others.
func TestTakenAndNotBegun(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.once() // writes the epoch
	process := work.Process{ID: uuid.Must(uuid.NewV7()), Queues: []string{"default"}}
	f.must(f.store.Processes.Register(t.Context(), process, time.Hour))
	eaten, begun := f.put(), f.put()
	f.enqueue(eaten)
	f.enqueue(begun)
	// They waited in Redis when they were last looked at: the next look is later than
	// the test lasts.
	f.exec(`UPDATE work_units SET check_at = now() + interval '1 hour'`)
	hold, took := make(chan struct{}), make(chan uuid.UUID, 2)
	server := asynq.NewServerFromRedisClient(f.queue.Redis(), asynq.Config{
		Concurrency: 2, Queues: map[string]int{"default:mock": 1}, ShutdownTimeout: time.Millisecond, LogLevel: asynq.FatalLevel,
	})
	f.must(server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		var payload queue.Task
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
	if !f.queue.Taken(t.Context(), store.MessageOf(eaten)) {
		t.Error("nobody knows that the message was taken")
	}
	if c, err := f.store.Runs.Claim(t.Context(), store.Claim{UnitID: begun.ID, RunID: uuid.New(), Process: process.ID, SessionID: "s",
		Backends: []string{"mock"}}); err != nil || c == nil {
		t.Fatal(c, err)
	}
	server.Stop() // it takes nothing more
	f.once()
	if u := f.unit(eaten.ID); u.Dispatch != 1 {
		t.Errorf("offered again at first sight: dispatch %d", u.Dispatch)
	}
	testkit.Eventually(t, "offered again", func() bool {
		f.once()
		return f.unit(eaten.ID).Dispatch == 2
	})
	if f.pending(eaten) != 1 {
		t.Error("no message waits")
	}
	f.once()
	if u := f.unit(eaten.ID); u.Dispatch != 2 {
		t.Errorf("a message that waits is sent again: dispatch %d", u.Dispatch)
	}
	if u := f.unit(begun.ID); u.State != work.Running || u.Dispatch != 1 {
		t.Errorf("what had begun: %s, dispatch %d", u.State, u.Dispatch)
	}
}
