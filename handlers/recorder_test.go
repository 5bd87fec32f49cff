package handlers

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/testkit"
	"piecework/internal/transcript"
	"piecework/internal/work"
	"piecework/jobs/queue"
	"piecework/store"
)

// Whatever the recorder is doing when a call comes, the call is counted with
// the write that shows it: none may come for a long time.
func TestCallIsCountedWithTheStepThatShowsIt(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	id := h.submit(nil)
	h.begun()
	run := h.runs(id)[0].ID
	rec := newRecorder(h.store, run, nil, func() {}, h.log)
	for calls := 1; calls <= 300; calls++ {
		rec.prompt("a write begins")
		rec.steps.Add(transcript.Step{Type: transcript.Action, Content: []transcript.Content{{Type: transcript.ToolCall, Name: "shell"}}})
		rec.finished.Wait()
		if got := h.runs(id)[0].ToolCalls; got != calls {
			t.Fatalf("%d calls are counted of %d", got, calls)
		}
	}
}

// What a write could not bring to Postgres goes with a later one: whoever has
// read a revision takes it that there is nothing before it.
func TestStepsThatWereNotWrittenAreNotLeftOut(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(nil)
	id := h.submit(nil)
	h.begun()
	run := h.runs(id)[0].ID
	wrote := make(chan bool, 1000)
	rec := newRecorder(h.store, run, nil, func() { wrote <- true }, h.log)
	rec.steps.Add(transcript.Step{Type: transcript.SystemText, Text: "before"})
	rec.finished.Wait()
	rec.failed(canceled(), store.Progress{LiveStatus: "lost", RenderedPrompt: "rendered"}, context.Canceled)
	rec.mu.Lock()
	rec.written = 0 // as if nobody knew whether the first write was committed
	rec.mu.Unlock()
	for i := range 50 {
		rec.steps.Add(transcript.Step{Type: transcript.SystemText, Text: fmt.Sprint(i)})
		rec.steps.Rewrite(1, fmt.Sprint("again ", i))
	}
	rec.finished.Wait()
	steps, err := h.store.Transcripts.StepsAfter(t.Context(), run, 0)
	if err != nil || len(steps) != 51 {
		t.Fatalf("%d steps, error %v", len(steps), err)
	}
	if last := steps[50]; last.Number != 1 || last.Rev != 101 || last.Text != "again 49" {
		t.Errorf("last change %+v", last)
	}
	if r := h.runs(id)[0]; *r.RenderedPrompt != "rendered" {
		t.Errorf("prompt %q", *r.RenderedPrompt)
	}
	if len(wrote) == 0 {
		t.Error("nobody was notified")
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Words are published before they are a step while somebody watches, and only then.
func TestDraftsArePublishedToThoseWhoWatch(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.start(func(o *Options) { o.Secrets = []string{"hunter2-hunter2"} })
	got := make(chan queue.Draft, 100)
	listening, stop := context.WithCancel(t.Context())
	var over sync.WaitGroup
	over.Go(func() {
		h.queue.Listen(listening, func(n queue.Notice) { got <- n.Draft }, queue.NoticeDraft)
	})
	t.Cleanup(func() { stop(); over.Wait() })
	id := h.submit(nil)
	run := h.begun()
	if run.steps.DraftsWanted() {
		t.Error("drafts are wanted though nobody watches")
	}
	want := queue.Draft{Unit: id, Attempt: 1, Type: transcript.Action, Text: "it is [redacted]"}
	testkit.Eventually(t, "the draft", func() bool {
		h.queue.Watched([]uuid.UUID{uuid.New(), id})
		if run.steps.DraftsWanted() {
			run.steps.Draft(transcript.Action, "it is hunter2-hunter2")
		}
		select {
		case d := <-got:
			if d != want {
				t.Errorf("got %+v", d)
			}
			return true
		default:
			return false
		}
	})
	run.end <- succeed("done")
	h.becomes(id, work.Succeeded)
}
