package handlers

import (
	"context"
	"fmt"
	"testing"

	"piecework/internal/transcript"
	"piecework/store"
)

// Whatever the recorder is doing when a call comes, the call is counted with
// the write that shows it: none may come for a long time.
func TestCallIsCountedWithTheStepThatShowsIt(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
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

// What a write could not bring to the ledger goes with a later one: whoever has
// read a revision takes it that there is nothing before it.
func TestStepsThatWereNotWrittenAreNotLeftOut(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.start(nil)
	id := h.submit(nil)
	h.begun()
	run := h.runs(id)[0].ID
	told := make(chan bool, 1000)
	rec := newRecorder(h.store, run, nil, func() { told <- true }, h.log)
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
	steps, err := h.store.StepsAfter(t.Context(), run, 0)
	if err != nil || len(steps) != 51 {
		t.Fatalf("%d steps, error %v", len(steps), err)
	}
	if last := steps[50]; last.Number != 1 || last.Rev != 101 || last.Text != "again 49" {
		t.Errorf("last change %+v", last)
	}
	if r := h.runs(id)[0]; *r.RenderedPrompt != "rendered" {
		t.Errorf("prompt %q", *r.RenderedPrompt)
	}
	if len(told) == 0 {
		t.Error("nobody was told")
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
