package model

import (
	"slices"
	"testing"
	"time"

	"piecework/internal/transcript"
)

// What is told of a draft ends at a space, is in no step yet, and is told now
// and then.
func TestDraft(t *testing.T) {
	t.Parallel()
	wanted, said := false, []string(nil)
	w := transcript.NewWriter(nil, nil)
	w.TellDrafts(func() bool { return wanted }, func(kind, text string, rev int) { said = append(said, kind+": "+text) })
	a := &Answer{steps: w}
	hear := func(text string) {
		t.Helper()
		if err := a.AddText(transcript.Action, text); err != nil {
			t.Fatal(err)
		}
	}
	hear("nobody listens ")
	wanted = true
	hear("one tw")
	a.drafted = time.Now().Add(time.Hour)
	hear("o three ") // too soon
	if want := []string{"action: nobody listens one"}; !slices.Equal(said, want) {
		t.Errorf("said %q", said)
	}
	a.finish()
	if steps := w.Steps(); len(steps) != 1 || steps[0].Content[0].Text != "nobody listens one two three " {
		t.Errorf("steps %+v", steps)
	}
}
