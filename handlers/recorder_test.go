package handlers

import (
	"testing"

	"piecework/internal/transcript"
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
