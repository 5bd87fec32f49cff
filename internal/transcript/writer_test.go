package transcript

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// recorded is a writer and what it emitted.
func recorded(secrets ...string) (*Writer, *[]Step) {
	var emitted []Step
	return NewWriter(func(s Step) { emitted = append(emitted, s) }, Redactor(secrets)), &emitted
}

func call(id, name, args string) Content {
	return Content{Type: ToolCall, ID: id, Name: name, Args: args}
}

func act(w *Writer, parts ...Content) { w.Add(Step{Type: Action, Content: parts}) }

func TestWriterNumbersAndNames(t *testing.T) {
	t.Parallel()
	w, emitted := recorded()
	act(w, Content{Type: Text, Text: "I look"}, call("c1", "read", `{}`))
	if n := w.Add(Step{Type: ToolResult, CallID: "c1", Text: "found"}); n != 2 {
		t.Errorf("number %d", n)
	}
	w.Extend(call("c2", "write", `{}`)) // the newest step is no action: a new one begins
	steps := w.Steps()
	if len(steps) != 3 || steps[1].Name != "read" || steps[2].Number != 3 || steps[2].Type != Action || w.ToolCalls() != 2 {
		t.Errorf("steps %+v, %d tool calls", steps, w.ToolCalls())
	}
	if diff := cmp.Diff(steps, *emitted); diff != "" {
		t.Error(diff)
	}
	for i, s := range steps {
		if s.Time.IsZero() || s.Number != i+1 {
			t.Errorf("step %d: %+v", i, s)
		}
	}
}

func TestWriterGrowReplaces(t *testing.T) {
	t.Parallel()
	w, emitted := recorded()
	act(w, Content{Type: Text, Text: "one"})
	early := w.Steps()
	w.Extend(Content{Type: Text, Text: "two"})
	w.Add(Step{Type: ToolResult, Text: "between"})
	w.Grow(1, Content{Type: Text, Text: "three"})
	w.Grow(9, Content{Type: Text, Text: "nowhere"})
	texts := func(s Step) (all string) {
		for _, c := range s.Content {
			all += c.Text
		}
		return all
	}
	var got []string
	for _, s := range *emitted {
		got = append(got, fmt.Sprint(s.Number, texts(s)))
	}
	if diff := cmp.Diff([]string{"1one", "1onetwo", "2", "1onetwothree"}, got); diff != "" {
		t.Error(diff)
	}
	if texts(early[0]) != "one" {
		t.Errorf("a copy taken before has grown: %+v", early[0])
	}
}

func TestWriterCuts(t *testing.T) {
	t.Parallel()
	w, _ := recorded()
	long := "x" + strings.Repeat("é", 100<<10) // limits fall in the middle of a character
	act(w, call("c", "tool", long), Content{Type: Text, Text: long})
	w.Add(Step{Type: ToolResult, CallID: "c", Text: long})
	steps := w.Steps()
	for name, test := range map[string]struct {
		text  string
		limit int
	}{
		"args":   {steps[0].Content[0].Args, MaxArgs},
		"text":   {steps[0].Content[1].Text, MaxResult},
		"result": {steps[1].Text, MaxResult},
	} {
		kept, footer, _ := strings.Cut(test.text, "\n… ")
		if !utf8.ValidString(test.text) || len(kept) != test.limit-1 || footer != fmt.Sprintf("[cut: %d of %d bytes shown]", len(kept), len(long)) {
			t.Errorf("%s: %d bytes, footer %q", name, len(kept), footer)
		}
	}
	w.Add(Step{Type: SystemText, Text: strings.Repeat("x", MaxResult)})
	if got := w.Steps()[2].Text; len(got) != MaxResult {
		t.Errorf("a text that just fits has %d bytes", len(got))
	}
}

func TestWriterCleansAndRedacts(t *testing.T) {
	t.Parallel()
	w, _ := recorded("hunter2-hunter2")
	text := "a\x00b\xffc hunter2-hunter2"
	w.Add(Step{Type: Action, Content: []Content{{Type: Text, Text: text, ID: text, Name: text, Args: text}}})
	w.Add(Step{Type: ToolResult, Text: text, Name: text, CallID: text, Parent: text})
	const want = "ab\uFFFDc [redacted]"
	s := w.Steps()
	for i, got := range []string{s[0].Content[0].Text, s[0].Content[0].ID, s[0].Content[0].Name, s[0].Content[0].Args, s[1].Text,
		s[1].Name, s[1].CallID, s[1].Parent} {
		if got != want {
			t.Errorf("field %d: %q", i, got)
		}
	}
	// A secret across the cut must not leave its first half.
	w.Add(Step{Type: SystemText, Text: strings.Repeat("x", MaxResult-4) + "hunter2-hunter2"})
	if got := w.Steps()[2].Text; strings.Contains(got, "hunt") {
		t.Errorf("half a secret: %q", got[MaxResult-10:])
	}
}

func TestWriterCloseAddsMissingResults(t *testing.T) {
	t.Parallel()
	w, _ := recorded()
	act(w, call("c1", "read", ""), call("c2", "write", ""))
	w.Add(Step{Type: ToolResult, CallID: "c1", Text: "done"})
	w.Close()
	w.Close()
	steps := w.Steps()
	if len(steps) != 3 || steps[2].CallID != "c2" || steps[2].Name != "write" || !steps[2].IsError {
		t.Errorf("steps %+v", steps)
	}
}

// Whatever a backend does, a transcript stays within bounds and says what it
// left out.
func TestWriterMaxBytes(t *testing.T) {
	t.Parallel()
	text := Content{Type: Text, Text: strings.Repeat("x", MaxResult)}
	const enough = maxBytes/MaxResult + 100
	for name, write := range map[string]func(*Writer){
		"add":    func(w *Writer) { w.Add(Step{Type: SystemText, Text: text.Text}) },
		"extend": func(w *Writer) { w.Extend(text) },
		"grow":   func(w *Writer) { w.Grow(1, text) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := NewWriter(nil, nil)
			w.redact = func(s string) string { return s } // slow under the race detector
			act(w, text)
			for range enough {
				write(w)
			}
			w.Close()
			size, steps := 0, w.Steps()
			for _, s := range steps {
				size += len(s.Text)
				for _, c := range s.Content {
					size += len(c.Text)
				}
			}
			if size > maxBytes+MaxResult {
				t.Errorf("%d bytes", size)
			}
			if last := steps[len(steps)-1]; !strings.Contains(last.Text, "steps left out") {
				t.Errorf("last step %q", last.Text)
			}
		})
	}
}

func TestWriterTogether(t *testing.T) {
	t.Parallel()
	w := NewWriter(func(Step) {}, nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				act(w, call("c", "tool", ""))
				w.Add(Step{Type: ToolResult, CallID: "c"})
				_ = w.Steps()
			}
		})
	}
	all.Wait()
	if w.Close(); w.ToolCalls() != 400 {
		t.Errorf("%d tool calls", w.ToolCalls())
	}
}

func TestRewrite(t *testing.T) {
	t.Parallel()
	var told []Step
	w := NewWriter(func(s Step) { told = append(told, s) }, Redactor([]string{"hunter2-hunter2"}))
	thought := w.Add(Step{Type: Reasoning, Text: "hm"})
	action := w.Add(Step{Type: Action, Content: []Content{{Type: ToolCall, ID: "1", Name: "Bash"}, {Type: Text, Text: "he"}}})
	before := w.bytes
	w.Rewrite(thought, "hm, it is hunter2-hunter2")
	w.Rewrite(action, "hello")
	w.Rewrite(0, "nobody")
	w.Rewrite(9, "nobody")
	steps := w.Steps()
	if steps[0].Text != "hm, it is [redacted]" || steps[1].Content[1].Text != "hello" || steps[1].Content[0].Name != "Bash" {
		t.Errorf("%+v", steps)
	}
	if len(told) != 4 || told[1].Content[1].Text != "he" || told[3].Number != action || w.ToolCalls() != 1 {
		t.Errorf("told %+v, %d calls", told, w.ToolCalls())
	}
	if grown := w.bytes - before; grown != len(", it is [redacted]")+len("llo") {
		t.Errorf("the transcript grew by %d bytes", grown)
	}
	w.Rewrite(action, strings.Repeat("x", MaxResult+1))
	if text := w.Steps()[1].Content[1].Text; !strings.HasSuffix(text, "[cut: 51200 of 51201 bytes shown]") {
		t.Errorf("…%s", text[len(text)-50:])
	}
}

// Drafts come in the middle of words: half a credential is not told.
func TestDraftKeepsBackWhatMayBecomeASecret(t *testing.T) {
	t.Parallel()
	key := "sk-ant-" + "api03-" + strings.Repeat("Ab3", 20)
	const known = "an-operators-own-secret"
	w := NewWriter(nil, Redactor([]string{known}))
	var told []string
	w.TellDrafts(func() bool { return true }, func(_, text string, _ int) { told = append(told, text) })
	for _, text := range []string{"it is " + key + " and " + known + " indeed"} {
		for at := range len(text) {
			w.Draft(Text, text[:at])
		}
	}
	for _, text := range told {
		if strings.Contains(text, "api03") || strings.Contains(text, known[:minPart]) {
			t.Fatalf("told: %s", text)
		}
	}
	if last := told[len(told)-1]; !strings.HasPrefix(last, "it is [redacted] and [redacted] ") {
		t.Errorf("%s", last)
	}
}
