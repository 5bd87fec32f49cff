package transcript

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// odd is a transcript of texts that JSON writes in other ways than they are.
func odd(random *rand.Rand, n int) []Step {
	pieces := []string{"", `"`, `\`, `\\`, `\"`, "\n", "é\u2028", "<b>", `{"a":[1,"]"]}`, "}", "]", ",", "plain words ", "\x00\x1b",
		strings.Repeat("x", 300<<10)}
	text := func() string {
		var s string
		for range random.IntN(4) {
			s += pieces[random.IntN(len(pieces)-random.IntN(2))]
		}
		return s
	}
	steps := make([]Step, n)
	for i := range steps {
		s := Step{Number: i + 1, Rev: random.IntN(3), Time: time.Unix(int64(i), random.Int64N(1e9)).UTC(),
			Type:   []string{Action, ToolResult, text()}[random.IntN(3)],
			CallID: text(), Name: text(), Text: text(), IsError: random.IntN(2) == 0, Denied: random.IntN(2) == 0, Parent: text()}
		for range random.IntN(4) {
			s.Content = append(s.Content, Content{Type: []string{Text, ToolCall}[random.IntN(2)], Text: text(), ID: text(), Name: text(),
				Args: text()})
		}
		steps[i] = s
	}
	return steps
}

// Scan gives the steps that Decode does, and an outline is the step without its
// texts, however the bytes come.
func TestScan(t *testing.T) {
	t.Parallel()
	var c Codec
	for seed := range uint64(20) {
		want := odd(rand.New(rand.NewPCG(seed, 1)), int(seed)*3)
		blob, err := c.Encode(want)
		if err != nil {
			t.Fatal(err)
		}
		at, outline := 0, Step{}
		err = Scan(iotest.HalfReader(bytes.NewReader(blob)), func(text []byte) error {
			var got Step
			if err := json.Unmarshal(text, &got); err != nil {
				return err
			}
			if diff := cmp.Diff(want[at], got); diff != "" {
				t.Error(diff)
			}
			bare := want[at]
			bare.Text, bare.Denied, bare.Parent, bare.Content = "", false, "", nil
			for _, c := range want[at].Content {
				bare.Content = append(bare.Content, Content{Type: c.Type, ID: c.ID, Name: c.Name})
			}
			if err := outline.Outline(text); err != nil {
				return err
			}
			if len(outline.Content) == 0 {
				outline.Content = nil
			}
			if diff := cmp.Diff(bare, outline); diff != "" {
				t.Error(diff)
			}
			at++
			return nil
		})
		if err != nil || at != len(want) {
			t.Errorf("%d steps of %d, error %v", at, len(want), err)
		}
	}
}

// A transcript that is cut off or damaged is an error, not a shorter one.
func TestScanOfHalf(t *testing.T) {
	t.Parallel()
	var c Codec
	blob, err := c.Encode(odd(rand.New(rand.NewPCG(1, 2)), 10))
	if err != nil {
		t.Fatal(err)
	}
	nothing := func([]byte) error { return nil }
	for n := 0; n < len(blob); n += 1 + len(blob)/200 {
		if err := Scan(bytes.NewReader(blob[:n]), nothing); err == nil {
			t.Fatalf("%d bytes of %d are taken for the whole", n, len(blob))
		}
	}
	blob[len(blob)-5]++ // of the checksum and the length
	if err := Scan(bytes.NewReader(blob), nothing); err == nil {
		t.Error("a wrong checksum is not seen")
	}
	blob[len(blob)-5]--
	enough := errors.New("enough")
	if err := Scan(bytes.NewReader(blob), func([]byte) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("the caller's error became %v", err)
	}
}

// Outline neither panics nor misreads what the encoder writes.
func FuzzOutline(f *testing.F) {
	f.Add([]byte(`{"number":1,"call_id":"\\\"","content":[{"type":"text","text":"\"}"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var want, got Step
		_ = got.Outline(text)
		if json.Unmarshal(text, &want) != nil {
			return
		}
		lines, err := EncodeLines([]Step{want})
		if err != nil {
			return // such as a year that JSON has no word for
		}
		if err := json.Unmarshal(lines, &want); err != nil {
			t.Fatal(err)
		}
		if err := got.Outline(lines); err != nil || got.CallID != want.CallID || got.Number != want.Number ||
			len(got.Content) != len(want.Content) {
			t.Errorf("%s became %+v, error %v", lines, got, err)
		}
	})
}

// A long transcript is read in little memory: one step at a time.
func TestScanHoldsOneStep(t *testing.T) {
	steps := make([]Step, 10_000)
	for i := range steps {
		steps[i] = Step{Number: i + 1, Rev: i + 1, Type: ToolResult, CallID: fmt.Sprint("call", i), Name: "Read",
			Text: strings.Repeat("word ", 600)}
	}
	var c Codec
	blob, err := c.Encode(steps)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var outline Step
	n := 0
	err = Scan(bytes.NewReader(blob), func(text []byte) error { n++; return outline.Outline(text) })
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; err != nil || n != len(steps) || took > 2<<20 {
		t.Errorf("%d steps of 3 KB took %d bytes of memory, garbage included; error %v", n, took, err)
	}
}
