package transcript

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/klauspost/compress/gzip"
)

// scanRoom is how much of a transcript Scan holds at first; a longer step takes
// more.
const scanRoom = 128 << 10

// Scan reads what Encode wrote and hands the JSON of each step to each, which has
// it until it returns. It holds one step at a time, however long the transcript is.
func Scan(zipped io.Reader, each func(step []byte) error) error {
	zip, err := gzip.NewReader(zipped)
	if err != nil {
		return fmt.Errorf("decompress transcript: %w", err)
	}
	in := &window{from: io.LimitReader(zip, MaxInflated), held: make([]byte, 0, scanRoom)}
	if c, err := in.next(); err != nil || c != '[' {
		return fmt.Errorf("decode transcript: it begins with %q: %w", c, io.ErrUnexpectedEOF)
	}
	in.at++
	for {
		c, err := in.next()
		if err != nil {
			return fmt.Errorf("decode transcript: %w", err)
		}
		if c == ']' {
			break
		}
		step, err := in.value()
		if err != nil {
			return fmt.Errorf("decode transcript: %w", err)
		}
		if err := each(step); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, in.from); err != nil { // to the checksum
		return fmt.Errorf("decompress transcript: %w", err)
	}
	return nil
}

// window is the part of a JSON text that is looked at.
type window struct {
	from io.Reader
	held []byte
	at   int
}

// next goes to the next sign that is no comma and no space.
func (w *window) next() (byte, error) {
	for {
		if w.at = blank(w.held, w.at); w.at < len(w.held) {
			return w.held[w.at], nil
		}
		if err := w.more(); err != nil {
			return 0, err
		}
	}
}

// value goes past the value that begins here.
func (w *window) value() ([]byte, error) {
	for {
		if end := endOf(w.held, w.at); end > w.at {
			value := w.held[w.at:end]
			w.at = end
			return value, nil
		}
		if err := w.more(); err != nil {
			return nil, err
		}
	}
}

// more drops what is behind, and reads on.
func (w *window) more() error {
	w.held = w.held[:copy(w.held, w.held[w.at:])]
	w.at = 0
	if len(w.held) == cap(w.held) {
		w.held = slices.Grow(w.held, cap(w.held))
	}
	n, err := io.ReadAtLeast(w.from, w.held[len(w.held):cap(w.held)], 1)
	w.held = w.held[:len(w.held)+n]
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func blank(text []byte, at int) int {
	for at < len(text) && (text[at] == ',' || text[at] == ':' || text[at] <= ' ') {
		at++
	}
	return at
}

// endOf is where the value ends that begins at a place, 0 when it is not all there.
func endOf(text []byte, at int) int {
	if at < len(text) && text[at] != '"' && text[at] != '{' && text[at] != '[' {
		return at + bytes.IndexAny(text[at:], ",]} \t\r\n") // a number, true, false, null
	}
	for depth := 0; at < len(text); {
		switch text[at] {
		case '"':
			if at = endOfString(text, at); at == 0 || depth == 0 {
				return at
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
		at++
	}
	return 0
}

// endOfString is where the string ends that begins at a place; 0: it is not all there.
func endOfString(text []byte, at int) int {
	for at++; ; {
		n := bytes.IndexByte(text[at:], '"')
		if n < 0 {
			return 0
		}
		slashes := 0
		for slashes < n && text[at+n-1-slashes] == '\\' {
			slashes++
		}
		if at += n + 1; slashes%2 == 0 {
			return at
		}
	}
}

// members hands the members of an object to each.
func members(object []byte, each func(name, value []byte) error) error {
	for at := blank(object, 1); at < len(object) && object[at] != '}'; at = blank(object, at) {
		colon := endOf(object, at)
		from := blank(object, colon)
		to := endOf(object, from)
		if colon <= at || to <= from {
			return io.ErrUnexpectedEOF
		}
		if err := each(object[at:colon], object[from:to]); err != nil {
			return err
		}
		at = to
	}
	return nil
}

// Outline reads a step of Scan into s without its texts and arguments, which are
// most of a transcript.
func (s *Step) Outline(step []byte) error {
	*s = Step{Content: s.Content[:0]}
	err := members(step, func(name, value []byte) (err error) {
		switch string(name) {
		case `"number"`:
			s.Number, err = strconv.Atoi(string(value))
		case `"rev"`:
			s.Rev, err = strconv.Atoi(string(value))
		case `"time"`:
			err = s.Time.UnmarshalJSON(value)
		case `"type"`:
			s.Type, err = word(value)
		case `"call_id"`:
			s.CallID, err = word(value)
		case `"name"`:
			s.Name, err = word(value)
		case `"is_error"`:
			s.IsError = string(value) == "true"
		case `"content"`:
			err = s.outlineContent(value)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("decode a step: %w", err)
	}
	return nil
}

func (s *Step) outlineContent(list []byte) error {
	for at := blank(list, 1); at < len(list) && list[at] == '{'; at = blank(list, at) {
		end := endOf(list, at)
		if end <= at {
			return io.ErrUnexpectedEOF
		}
		var c Content
		err := members(list[at:end], func(name, value []byte) (err error) {
			switch string(name) {
			case `"type"`:
				c.Type, err = word(value)
			case `"id"`:
				c.ID, err = word(value)
			case `"name"`:
				c.Name, err = word(value)
			}
			return err
		})
		if err != nil {
			return err
		}
		s.Content = append(s.Content, c)
		at = end
	}
	return nil
}

// word is a string of JSON. The words that every step has are not made anew.
func word(value []byte) (text string, err error) {
	if len(value) < 2 || bytes.IndexByte(value, '\\') >= 0 {
		err = json.Unmarshal(value, &text)
		return text, err
	}
	value = value[1 : len(value)-1]
	for _, known := range []string{Action, ToolResult, UserText, SystemText, Reasoning, Text, ToolCall} {
		if string(value) == known {
			return known, nil
		}
	}
	return string(value), nil
}
