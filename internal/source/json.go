package source

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxLine is how long one line or value may be, in bytes.
const MaxLine = 64 << 20

// values reads the values of an array in a JSON document. It is read from its
// beginning whatever the place is: a position inside means nothing to a parser.
func (s Source) values(file io.ReadSeeker, from Place) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			yield(Item{}, err)
			return
		}
		dec := jsontext.NewDecoder(bufio.NewReaderSize(file, 64<<10))
		if err := s.enter(dec); err != nil {
			yield(Item{}, err)
			return
		}
		for at := (Place{}); ; {
			if dec.PeekKind() == ']' {
				return
			}
			value, err := dec.ReadValue()
			if err != nil {
				yield(Item{}, documentError(err))
				return
			}
			at = Place{Count: at.Count + 1, Line: at.Count + 1}
			if at.Count <= from.Count {
				continue
			}
			if !yield(s.object(bytes.Clone(value), at), nil) {
				return
			}
		}
	}
}

// enter reads up to the beginning of the array that the source names.
func (s Source) enter(dec *jsontext.Decoder) error {
	for {
		token, err := dec.ReadToken()
		switch {
		case err == io.EOF: //nolint:errorlint // one that is wrapped is no end
			return broken("there is no array at %s", where(s.Items))
		case err != nil:
			return documentError(err)
		case token.Kind() == '[' && string(dec.StackPointer()) == s.Items:
			return nil
		}
	}
}

func where(pointer string) string {
	if pointer == "" {
		return "the top of the document; say in items where it is"
	}
	return pointer
}

func documentError(err error) error {
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		return broken("it is not JSON: %v at byte %d", syntax.Err, syntax.ByteOffset)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return broken("the document ends in the middle")
	}
	return err
}

// object makes an item of a value; what is no object becomes one.
func (s Source) object(value json.RawMessage, at Place) Item {
	item := Item{Line: at.Line, CustomID: strconv.Itoa(at.Count), Payload: value, Next: at}
	if value[0] != '{' {
		item.Payload = json.RawMessage(`{"item":` + string(value) + `}`)
	}
	if s.CustomID == "" {
		return item
	}
	var fields map[string]json.RawMessage
	var name string
	switch err := json.Unmarshal(item.Payload, &fields); {
	case err != nil:
		item.Wrong = err.Error()
	case json.Unmarshal(fields[s.CustomID], &name) == nil && name != "":
		item.CustomID = name
	case len(fields[s.CustomID]) > 0 && fields[s.CustomID][0] != '{' && fields[s.CustomID][0] != '[' && string(fields[s.CustomID]) != "null":
		item.CustomID = string(fields[s.CustomID]) // a number
	default:
		item.Wrong = fmt.Sprintf("there is no text or number in the field %q to take custom_id from", s.CustomID)
	}
	return item
}

// lines reads one value a line; blank lines are passed over.
func (s Source) lines(file io.ReadSeeker, from Place) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for line, err := range Lines(file, from) {
			if err != nil {
				yield(Item{}, err)
				return
			}
			item := Item{Line: line.Next.Line, CustomID: strconv.Itoa(line.Next.Count), Next: line.Next}
			if json.Valid(line.Text) {
				item = s.object(bytes.Clone(line.Text), line.Next)
			} else {
				item.Wrong = "the line is not JSON"
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}

// Line is one line with something on it; Text is good until the next.
type Line struct {
	Text []byte
	Next Place
}

// Lines reads the lines of a file from a place on; blank ones are passed over.
func Lines(file io.ReadSeeker, from Place) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		if _, err := file.Seek(from.Offset, io.SeekStart); err != nil {
			yield(Line{}, err)
			return
		}
		for line, err := range ReadLines(file, from) {
			if !yield(line, err) {
				return
			}
		}
	}
}

// ReadLines is Lines for what comes from elsewhere and stands at the place.
func ReadLines(r io.Reader, from Place) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		buffered := bufio.NewReaderSize(r, 64<<10)
		var long []byte
		for at := from; ; {
			text, err := buffered.ReadSlice('\n')
			if len(long) > 0 || errors.Is(err, bufio.ErrBufferFull) {
				long = append(long, text...)
				if len(long) > MaxLine {
					yield(Line{}, broken("line %d is longer than %d bytes", at.Line+1, MaxLine))
					return
				}
				if errors.Is(err, bufio.ErrBufferFull) {
					continue
				}
				text = long
			}
			if err != nil && err != io.EOF { // one that is wrapped is no end
				yield(Line{}, err)
				return
			}
			last := err != nil
			at.Line, at.Offset = at.Line+1, at.Offset+int64(len(text))
			trimmed := bytes.TrimSpace(text)
			if at.Line == 1 {
				trimmed = bytes.TrimPrefix(trimmed, []byte("\xef\xbb\xbf"))
			}
			if len(trimmed) > 0 {
				at.Count++
				if !yield(Line{Text: trimmed, Next: at}, nil) {
					return
				}
			}
			long = long[:0]
			if last {
				return
			}
		}
	}
}
