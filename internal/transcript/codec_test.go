package transcript

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
)

func sample(n int) []Step {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	steps := make([]Step, n)
	for i := range steps {
		steps[i] = Step{Number: i + 1, Time: at, Type: Action, Parent: "p", Content: []Content{
			{Type: Text, Text: fmt.Sprintf("<b>&é\u2028 %d", i)}, {Type: ToolCall, ID: "c", Name: "tool", Args: `{"a":"<b>"}`},
		}}
	}
	return steps
}

func TestCodec(t *testing.T) {
	t.Parallel()
	var c Codec
	for _, n := range []int{0, 1, 1000} {
		blob, err := c.Encode(sample(n))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(bytes.NewReader(blob))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(sample(n), got); diff != "" {
			t.Errorf("%d steps: %s", n, diff)
		}
	}
	blob, err := c.Encode(nil)
	if err != nil || string(inflate(t, blob)) != "[]\n" {
		t.Errorf("no steps: %s, error %v", inflate(t, blob), err)
	}
}

func inflate(t *testing.T, blob []byte) []byte {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Compressors are used again, by many at once; no blob shows up in another.
func TestCodecTogether(t *testing.T) {
	t.Parallel()
	var c Codec
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			var blobs [][]byte
			for n := range 20 {
				blob, err := c.Encode(sample(worker*20 + n))
				if err != nil {
					t.Error(err)
				}
				blobs = append(blobs, blob)
			}
			for n, blob := range blobs {
				if got, err := Decode(bytes.NewReader(blob)); err != nil || len(got) != worker*20+n {
					t.Errorf("%d steps, error %v, want %d", len(got), err, worker*20+n)
				}
			}
		})
	}
	all.Wait()
}

// What the writer lets pass can be read again: markup is not blown up beyond
// what Decode takes.
func TestCodecKeepsMarkupSmall(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("<&>", MaxResult/3)
	steps := []Step{{Number: 1, Text: text}}
	var c Codec
	blob, err := c.Encode(steps)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := EncodeLines(steps)
	if err != nil {
		t.Fatal(err)
	}
	for form, size := range map[string]int{"blob": len(inflate(t, blob)), "lines": len(lines)} {
		if size > len(text)+200 || MaxInflated < 2*maxBytes {
			t.Errorf("%s: %d bytes of markup became %d", form, len(text), size)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	var c Codec
	whole, err := c.Encode(sample(1000))
	if err != nil {
		t.Fatal(err)
	}
	for name, blob := range map[string][]byte{"nothing": nil, "rubbish": []byte("rubbish"), "cut": whole[:len(whole)/2]} {
		if steps, err := Decode(bytes.NewReader(blob)); err == nil {
			t.Errorf("%s: %d steps", name, len(steps))
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	lines := func(steps ...Step) []byte {
		text, err := EncodeLines(steps)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	one, two, grown := Step{Number: 1, Text: "one"}, Step{Number: 2, Text: "two"}, Step{Number: 1, Text: "one and more"}
	got, err := DecodeLines(lines(one), lines(two, grown), nil, lines(Step{Number: 3}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Step{grown, two, {Number: 3}}, got); diff != "" {
		t.Error(diff)
	}
	if n := bytes.Count(lines(one, two), []byte("\n")); n != 2 {
		t.Errorf("%d lines for two steps", n)
	}
	if _, err := DecodeLines([]byte(`{"number":`)); err == nil {
		t.Error("half a line was taken")
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const nasty = "\x1b[2J\r\u009b1m\u202e\u200b\u2066\u061c\U000E0041\x7f\xff"
	var out strings.Builder
	err := Plain(&out, []Step{
		{Number: 1, Time: at, Type: Action, Content: []Content{{Type: Text, Text: "look\n\tthere" + nasty},
			{Type: ToolCall, Name: "read" + nasty, Args: "{}" + nasty}}},
		{Number: 2, Time: at, Type: ToolResult, Name: "read", Text: "found é 漢 🙂" + nasty, IsError: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	shown := "␛[2J␍" + "\uFFFD1m" + strings.Repeat("\uFFFD", 7)
	want := "── 1 03:04:05 action\nlook\n\tthere" + shown + "\n▶ read" + shown + " {}" + shown +
		"\n── 2 03:04:05 tool_result read (error)\nfound é 漢 🙂" + shown + "\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
