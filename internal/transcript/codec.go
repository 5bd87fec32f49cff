package transcript

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"

	"piecework/internal/work"
)

// Level 5 is within 3 % of the size of level 6 at a tenth more speed.
const level = 5

// MaxInflated bounds what Scan will inflate, in bytes of JSON.
const MaxInflated = 4 * maxBytes

// Codec compresses transcripts; the zero value is ready and keeps its
// compressors for the next call.
type Codec struct{ writers sync.Pool }

// Encode returns steps as one gzip member that holds a JSON array.
func (c *Codec) Encode(steps []Step) ([]byte, error) {
	if steps == nil {
		steps = []Step{}
	}
	var blob bytes.Buffer
	zip, _ := c.writers.Get().(*gzip.Writer)
	if zip == nil {
		var err error
		if zip, err = gzip.NewWriterLevel(&blob, level); err != nil {
			return nil, err
		}
	}
	defer c.writers.Put(zip)
	zip.Reset(&blob)
	if err := encoder(zip).Encode(steps); err != nil {
		return nil, fmt.Errorf("encode transcript: %w", err)
	}
	if err := zip.Close(); err != nil {
		return nil, fmt.Errorf("compress transcript: %w", err)
	}
	return blob.Bytes(), nil
}

// encoder leaves <, > and & alone: escaped they would be six bytes each, and a
// transcript of web pages more than Scan takes.
func encoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

// Decode reads what Encode wrote.
func Decode(zipped io.Reader) ([]Step, error) {
	steps := []Step{}
	err := Scan(zipped, func(text []byte) error {
		var s Step
		if err := json.Unmarshal(text, &s); err != nil {
			return fmt.Errorf("decode a step: %w", err)
		}
		steps = append(steps, s)
		return nil
	})
	return steps, err
}

// EncodeLines returns steps as JSON lines, the form of a chunk.
func EncodeLines(steps []Step) ([]byte, error) {
	var lines bytes.Buffer
	enc := encoder(&lines)
	for _, s := range steps {
		if err := enc.Encode(s); err != nil {
			return nil, fmt.Errorf("encode steps: %w", err)
		}
	}
	return lines.Bytes(), nil
}

// DecodeLines reads the steps of chunks in the order they were written, lets a
// later step replace an earlier one of the same number, and returns them in the
// order of their numbers.
func DecodeLines(chunks ...[]byte) ([]Step, error) {
	var steps []Step
	index := map[int]int{}
	for _, chunk := range chunks {
		dec := json.NewDecoder(bytes.NewReader(chunk))
		for {
			var s Step
			if err := dec.Decode(&s); err == io.EOF {
				break
			} else if err != nil {
				return nil, fmt.Errorf("decode steps: %w", err)
			}
			if at, seen := index[s.Number]; seen {
				if s.Rev >= steps[at].Rev {
					steps[at] = s
				}
				continue
			}
			index[s.Number] = len(steps)
			steps = append(steps, s)
		}
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return a.Number - b.Number })
	return steps, nil
}

// After chooses the steps that changed after revision rev, in the order in
// which they did. One without a revision counts by its number.
func After(steps []Step, rev int) []Step {
	var changed []Step
	for _, s := range steps {
		s.Rev = cmp.Or(s.Rev, s.Number)
		if s.Rev > rev {
			changed = append(changed, s)
		}
	}
	slices.SortStableFunc(changed, func(a, b Step) int { return a.Rev - b.Rev })
	return changed
}

// Plain writes steps as text for a terminal or a diff.
func Plain(w io.Writer, steps []Step) error {
	out := bufio.NewWriter(w)
	for _, s := range steps {
		s.Plain(out)
	}
	return out.Flush()
}

// Plain writes one step; out keeps the first error.
func (s *Step) Plain(out *bufio.Writer) {
	fmt.Fprintf(out, "── %d %s %s", s.Number, s.Time.Format("15:04:05"), s.Type)
	if s.Name != "" {
		fmt.Fprintf(out, " %s", work.Visible(s.Name))
	}
	switch {
	case s.Denied:
		fmt.Fprint(out, " (denied)")
	case s.IsError:
		fmt.Fprint(out, " (error)")
	}
	fmt.Fprintln(out)
	for _, c := range s.Content {
		if c.Type == ToolCall {
			fmt.Fprintf(out, "▶ %s %s\n", work.Visible(c.Name), work.Visible(c.Args))
		} else {
			fmt.Fprintln(out, work.Visible(c.Text))
		}
	}
	if s.Text != "" {
		fmt.Fprintln(out, work.Visible(s.Text))
	}
}
