package queue

import (
	"testing"

	"github.com/hibiken/asynq"

	"piecework/store"
)

// Asynq's tools fail on a queue with a task that lost its message; the archives
// are trimmed all the same.
func TestGhostDoesNotKeepTheArchiveFromBeingTrimmed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.real()
	u := f.put()
	f.enqueue(u)
	f.must(f.queue.redis.Del(t.Context(), f.queue.stateKey(store.MessageOf(u))).Err())
	if _, err := f.queue.inspector.GetQueueInfo("default:mock"); err == nil {
		t.Error("Asynq can look at a ghost by now: ask it for the size of the archive")
	}
	f.must(f.queue.TrimArchives(t.Context()))
}

func TestArchiveIsTrimmed(t *testing.T) {
	t.Parallel()
	archiveIsTrimmed(t, newFixture(t))
}

func archiveIsTrimmed(t *testing.T, f *fixture) {
	t.Helper()
	const more = 30
	for range keepFailed + more {
		_, err := f.queue.client.EnqueueContext(t.Context(), asynq.NewTask(TypeRun, nil), asynq.Queue("default:mock"))
		f.must(err)
	}
	if n, err := f.queue.inspector.ArchiveAllPendingTasks("default:mock"); err != nil || n != keepFailed+more {
		t.Fatalf("archived %d, error %v", n, err)
	}
	oldest, err := f.queue.inspector.ListArchivedTasks("default:mock", asynq.PageSize(1))
	f.must(err)
	f.must(f.queue.TrimArchives(t.Context()))
	info, err := f.queue.inspector.GetQueueInfo("default:mock")
	if err != nil || info.Archived != keepFailed {
		t.Errorf("archived %d, error %v", info.Archived, err)
	}
	if _, err := f.queue.inspector.GetTaskInfo("default:mock", oldest[0].ID); err == nil {
		t.Error("the oldest was kept")
	}
}
