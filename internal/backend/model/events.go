package model

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"piecework/internal/backend"
)

const (
	// lineBuffer is what a stream keeps while nothing comes: thousands wait at
	// once.
	lineBuffer = 512
	// maxStreamEvent bounds the data of one event.
	maxStreamEvent = 32 << 20
)

// events reads server-sent events. The SDKs' decoders keep 4 KB for each
// stream, and more after a long event.
type events struct {
	res   *http.Response
	lines *bufio.Reader
	data  []byte // of the event that is being read
}

// eachEvent hands over the data of each event until the stream or the answer
// ends, and knows the mark by which chat completions end.
func eachEvent(res *http.Response, a *Answer, take func(data []byte) error) error {
	s := &events{res: res, lines: bufio.NewReaderSize(res.Body, lineBuffer)}
	for !a.Ended {
		piece, err := s.lines.ReadSlice('\n') // where a stream spends its life
		whole, err := s.add(piece, err)
		if whole {
			err = s.event(a, take)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add takes a line, or a piece of a long one, and tells whether an event with
// data is complete.
func (s *events) add(piece []byte, err error) (whole bool, _ error) {
	if len(s.data)+len(piece) > maxStreamEvent {
		return false, tooMuch("one event of the stream", maxStreamEvent)
	}
	s.data = append(s.data, piece...)
	if errors.Is(err, bufio.ErrBufferFull) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	begun := bytes.LastIndexByte(s.data[:len(s.data)-1], '\n') + 1
	line := bytes.TrimRight(s.data[begun:], "\r\n")
	value, found := bytes.CutPrefix(line, []byte("data:"))
	if found {
		s.data = append(append(s.data[:begun], bytes.TrimPrefix(value, []byte(" "))...), '\n')
		return false, nil
	}
	s.data = s.data[:begun] // a name, a comment, an end
	return len(line) == 0 && begun > 0, nil
}

// event hands over the event that is complete, and forgets it.
func (s *events) event(a *Answer, take func(data []byte) error) error {
	data := bytes.TrimSpace(s.data)
	s.data = nil // a stream may wait long for the next
	if string(data) == "[DONE]" {
		return a.End()
	}
	var failed struct {
		Error errorMark `json:"error"`
	}
	if err := backend.Decode(data, &failed); err != nil {
		return fmt.Errorf("read an event of the stream: %w", err)
	}
	if failed.Error {
		return NewAPIError(s.res.StatusCode, s.res.Header, data)
	}
	return take(data)
}

// errorMark tells whether an event has an error, whatever its form.
type errorMark bool

// UnmarshalJSON takes anything but null for an error.
func (m *errorMark) UnmarshalJSON(data []byte) error {
	*m = string(data) != "null"
	return nil
}
