package jobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/google/uuid"

	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

// The types of sources that are not for callers to name.
const (
	typeUnits     = "units"     // lines of filledUnit, looked at already
	TypeOpenAI    = "openai"    // lines of OpenAI's batches
	TypeAnthropic = "anthropic" // requests of Anthropic's batches, one a line
	typeTrigger   = "trigger"   // a list that came in a webhook; the path is the trigger's name
)

// batchSource is where a batch's items come from, as the ledger keeps it.
type batchSource struct {
	source.Source
	OnInvalid string `json:"on_invalid"` // reject or skip
}

const (
	onInvalidReject = "reject"
	onInvalidSkip   = "skip"
)

// maxCustomID is in bytes.
const maxCustomID = 512

// item is one item of a batch's source: the body of a unit, or a unit that was
// looked at already, or what is wrong.
type item struct {
	line     int
	customID string
	body     json.RawMessage
	checked  bool // strictjson.Check has passed the body
	unit     *store.NewUnit
	next     source.Place
	wrong    []work.Invalid
	code     string // of what is wrong, as OpenAI names it
}

func (i item) problems() (list []work.BatchProblem) {
	for _, w := range i.wrong {
		id, _ := work.Cut(i.customID, maxCustomID)
		list = append(list, work.BatchProblem{Line: i.line, CustomID: work.Clean(id), Code: i.code, Pointer: w.Pointer, Detail: w.Detail})
	}
	return list
}

// unitFrom looks at a unit's body as POST /work-units does. What is wrong with
// it is no error.
func (s *Submitter) unitFrom(ctx context.Context, body json.RawMessage) (n store.NewUnit, wrong []work.Invalid, err error) {
	return s.makeUnit(ctx, item{body: body})
}

func (s *Submitter) makeUnit(ctx context.Context, it item) (n store.NewUnit, wrong []work.Invalid, err error) {
	var parsed UnitBody
	if wrong := s.schemas.Parse(it.body, &parsed, it.checked); len(wrong) > 0 {
		return n, wrong, nil
	}
	n, err = s.NewUnit(ctx, &parsed)
	var invalid *work.Invalid
	if errors.As(err, &invalid) {
		return n, []work.Invalid{*invalid}, nil
	}
	return n, nil, err
}

// withTemplate makes bodies of units out of payloads.
func withTemplate(template json.RawMessage, items iter.Seq2[source.Item, error]) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		for in, err := range items {
			out := item{line: in.Line, customID: in.CustomID, next: in.Next}
			if in.Wrong != "" {
				out.wrong = []work.Invalid{{Detail: in.Wrong}}
			} else if err == nil {
				out.body, err = strictjson.Merge(template, map[string]json.RawMessage{"payload": in.Payload})
			}
			if !yield(out, err) {
				return
			}
		}
	}
}

// hashOf is a custom id in eight bytes. That two of a batch are taken for one
// is as likely as one in 10^10 among fifty thousand.
func hashOf(id string) uint64 {
	sum := sha256.Sum256([]byte(id))
	return binary.LittleEndian.Uint64(sum[:8])
}

// filledUnit is a unit that was looked at when its batch was submitted, as
// versions without writeRow have written it.
type filledUnit struct {
	Line     int          `json:"line"`
	CustomID string       `json:"custom_id"`
	Title    string       `json:"title"`
	Delay    work.Seconds `json:"delay,omitempty"`
	work.Spec
}

// writeRow writes a unit as a line of the file that waits for the units to be
// made: the row that the ledger takes, with the number of its line before it. A
// process of an earlier version reads it as a filledUnit.
func writeRow(w io.Writer, line int, row json.RawMessage) error {
	if _, err := fmt.Fprintf(w, `{"line":%d,`, line); err != nil {
		return err
	}
	_, err := w.Write(row[1:]) // with the line's end
	return err
}

// readRow reads such a line. It is false for one of an earlier version.
func readRow(text []byte) (it item, ok bool) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(text))
	var n store.NewUnit
	for i, name := range []string{"{", "line", "custom_id", "id"} {
		token, err := dec.ReadToken()
		if err != nil || i > 0 && token.String() != name {
			return it, false
		}
		if i == 0 {
			continue
		}
		if token, err = dec.ReadToken(); err != nil {
			return it, false
		}
		switch name {
		case "line":
			it.line, err = strconv.Atoi(token.String())
		case "custom_id":
			it.customID = token.String()
		case "id":
			n.ID, err = uuid.Parse(token.String())
		}
		if err != nil {
			return it, false
		}
	}
	n.CustomID, n.Row = it.customID, bytes.Clone(text)
	it.unit = &n
	return it, true
}

func filledUnits(file io.ReadSeeker, from source.Place) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		for line, err := range source.Lines(file, from) {
			it, ok := item{}, false
			if err == nil {
				it, ok = readRow(line.Text)
			}
			if err == nil && !ok {
				var u filledUnit
				err = json.Unmarshal(line.Text, &u)
				it = item{line: u.Line, customID: u.CustomID,
					unit: &store.NewUnit{Unit: work.Unit{Title: u.Title, Spec: u.Spec}, Delay: u.Delay}}
			}
			it.next = line.Next
			if !yield(it, err) {
				return
			}
		}
	}
}
