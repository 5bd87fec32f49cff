package web

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"piecework/api/web/page"
	"piecework/internal/transcript"
	"piecework/internal/work"
)

// A page that is made while the transcript goes by is the page of the whole
// transcript, wherever in it that is.
func TestScriptIsAsOfTheWhole(t *testing.T) {
	t.Parallel()
	var steps []transcript.Step
	for i := 1; i < 3_000; i += 3 {
		steps = append(steps, madeStep(i, transcript.Action, ""), madeStep(i+1, transcript.ToolResult, strings.Repeat("word ", 1600)),
			madeStep(i+2, transcript.Reasoning, "so"))
		steps[i-1].Content = []transcript.Content{{Type: transcript.ToolCall, ID: fmt.Sprint(i % 40), Name: "Read", Args: "{}"}}
		steps[i].CallID, steps[i].Name, steps[i].IsError = fmt.Sprint(i%40), "Read", i == 1000
	}
	steps = append(steps, madeStep(3_001, transcript.Action, ""))
	stored, err := new(transcript.Codec).Encode(steps)
	if err != nil {
		t.Fatal(err)
	}
	open := func() (io.Reader, error) { return bytes.NewReader(stored), nil }
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := work.Run{ID: uuid.New(), HasTranscript: true, StartedAt: begun, CompletedAt: new(begun.Add(time.Hour))}
	whole := page.NewScript(run, steps, time.Now())
	for _, at := range []int{0, 1, 700, 1500, 2900, 3001, 9999} {
		script, err := readScript(run, open, func(s *page.Script) []int { return s.Around(at) })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(whole.At(at), script.At(at), cmp.AllowUnexported(page.Share{})); diff != "" {
			t.Errorf("at %d: %s", at, diff)
		}
	}
	for _, asked := range []string{"1", "5,1500,3000-", "2000-2010", ""} {
		script, err := readScript(run, open, func(s *page.Script) []int { return s.Asked(asked) })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(whole.Of(asked, true), script.Of(asked, true), cmp.AllowUnexported(page.Share{})); diff != "" {
			t.Errorf("%q: %s", asked, diff)
		}
	}
}

// What the tail of a transcript keeps is what was put in last, step by step.
func TestTail(t *testing.T) {
	t.Parallel()
	var end tail
	text := func(i int) string { return fmt.Sprint(i, strings.Repeat("x", i%7*tailRoom/5)) }
	for i := range 100 {
		end.keep([]byte(text(i)))
		for j := end.dropped; j <= i; j++ {
			if string(end.step(j)) != text(j) {
				t.Fatalf("of %d steps, %d is another (%d dropped)", i+1, j, end.dropped)
			}
		}
		if len(end.texts) > 2*tailRoom+len(text(i)) || len(end.texts) < len(text(i)) {
			t.Fatalf("%d bytes are kept", len(end.texts))
		}
	}
	if end.dropped == 0 {
		t.Error("nothing was dropped")
	}
}

func madeStep(number int, kind, text string) transcript.Step {
	return transcript.Step{Number: number, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Type: kind, Text: text}
}
