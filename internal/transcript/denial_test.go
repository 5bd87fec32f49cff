package transcript

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A denied call is made good by a later success of the same tool with the same
// arguments, and by nothing else.
func TestDenials(t *testing.T) {
	t.Parallel()
	denied := func(id string) Step { return Step{Type: ToolResult, CallID: id, IsError: true, Denied: true} }
	failed := func(id string) Step { return Step{Type: ToolResult, CallID: id, IsError: true} }
	fine := func(id string) Step { return Step{Type: ToolResult, CallID: id} }
	touch := Denial{Tool: "Bash", Args: `{"command":"touch x"}`}
	for _, test := range []struct {
		name  string
		do    func(w *Writer)
		count int
		open  []Denial
	}{
		{"nothing denied", func(w *Writer) { act(w, call("1", "Bash", "{}")); w.Add(failed("1")) }, 0, nil},
		{"denied", func(w *Writer) { act(w, call("1", "Bash", touch.Args)); w.Add(denied("1")) }, 1, []Denial{touch}},
		{"made good", func(w *Writer) {
			act(w, call("1", "Bash", touch.Args))
			w.Add(denied("1"))
			act(w, call("2", "Bash", `{ "command": "touch x" }`)) // the same, but for blanks
			w.Add(fine("2"))
		}, 1, nil},
		{"done before, then denied", func(w *Writer) {
			act(w, call("1", "Bash", touch.Args))
			w.Add(fine("1"))
			act(w, call("2", "Bash", touch.Args))
			w.Add(denied("2"))
		}, 1, []Denial{touch}},
		{"tried again and failed", func(w *Writer) {
			act(w, call("1", "Bash", touch.Args))
			w.Add(denied("1"))
			act(w, call("2", "Bash", touch.Args))
			w.Add(failed("2"))
		}, 1, []Denial{touch}},
		{"another call succeeded", func(w *Writer) {
			act(w, call("1", "Bash", touch.Args), call("2", "Bash", `{"command":"ls"}`), call("3", "Write", touch.Args))
			w.Add(denied("1"))
			w.Add(fine("2"))
			w.Add(fine("3"))
		}, 1, []Denial{touch}},
		{"known afterwards", func(w *Writer) {
			act(w, call("1", "Bash", touch.Args))
			w.Add(failed("1"))
			w.Deny("1", "Bash", touch.Args)
			w.Deny("1", "Bash", touch.Args)
		}, 1, []Denial{touch}},
		{"known afterwards, and made good", func(w *Writer) {
			act(w, call("1", "Bash", touch.Args))
			w.Add(failed("1"))
			act(w, call("2", "Bash", touch.Args))
			w.Add(fine("2"))
			w.Deny("1", "Bash", touch.Args)
		}, 1, nil},
		{"denied twice, made good once", func(w *Writer) {
			act(w, call("1", "Bash", touch.Args), call("2", "Bash", touch.Args))
			w.Add(denied("1"))
			w.Add(denied("2"))
			act(w, call("3", "Bash", touch.Args))
			w.Add(fine("3"))
		}, 2, nil},
		{"the call itself was not seen", func(w *Writer) { w.Add(Step{Type: ToolResult, CallID: "9", Name: "Bash", Denied: true}) },
			1, []Denial{{Tool: "Bash"}}},
		{"no room in the transcript", func(w *Writer) {
			w.redact = func(s string) string { return s }
			for range maxBytes/MaxResult + 2 {
				w.Add(Step{Type: SystemText, Text: strings.Repeat("x", MaxResult)})
			}
			act(w, call("1", "Bash", touch.Args))
			w.Add(denied("1"))
		}, 1, []Denial{touch}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w, _ := recorded()
			test.do(w)
			count, open := w.Denied()
			if diff := cmp.Diff(test.open, open); diff != "" || count != len(test.open) {
				t.Errorf("%d open: %s", count, diff)
			}
			if got := w.Denials(); got != test.count {
				t.Errorf("%d denials, want %d", got, test.count)
			}
			steps := 0
			for _, s := range w.Steps() {
				if s.Denied {
					steps++
				}
			}
			if steps != test.count && test.name != "no room in the transcript" {
				t.Errorf("%d steps are marked", steps)
			}
		})
	}
}

// An agent that is denied for ever fills no memory, and is not believed to have
// made good what was not followed any more.
func TestDenialsAreBounded(t *testing.T) {
	t.Parallel()
	w, _ := recorded()
	w.redact = func(s string) string { return s }
	const calls = maxTracked + 10
	for i := range calls {
		id, args := fmt.Sprint(i), fmt.Sprintf(`{"n":%d,"secret":"hunter2"}`, i)
		act(w, call(id, "Bash", args))
		w.Add(Step{Type: ToolResult, CallID: id, IsError: true, Denied: true})
		act(w, call("again"+id, "Bash", args))
		w.Add(Step{Type: ToolResult, CallID: "again" + id})
	}
	count, first := w.Denied()
	if w.Denials() != calls || count != 10 || len(w.denials.denied) != maxTracked || len(w.denials.pending) != 0 || len(first) != 0 {
		t.Errorf("%d denials, %d open, %d kept, %d pending, first %v", w.Denials(), count, len(w.denials.denied), len(w.denials.pending), first)
	}
}

// A step is stored again whenever it changes, so it must not grow for ever.
func TestActionsAreBounded(t *testing.T) {
	t.Parallel()
	w, emitted := recorded()
	act(w, Content{Type: Text, Text: "it begins"})
	number, parts := 1, 3*MaxAction/contentOverhead
	for range parts {
		number = w.Grow(number, Content{Type: Text, Text: "x"})
	}
	if steps := w.Steps(); len(steps) < 3 || len(steps) > 5 || number != len(steps) {
		t.Errorf("%d steps for %d parts, the last is %d", len(steps), parts, number)
	}
	said := 0
	for _, s := range w.Steps() {
		said += len(s.Content)
	}
	if said != parts+1 {
		t.Errorf("%d parts of %d", said, parts+1)
	}
	for _, s := range *emitted {
		if size := contentOverhead * len(s.Content); size > MaxAction+MaxResult {
			t.Fatalf("step %d has %d bytes", s.Number, size)
		}
	}
}
