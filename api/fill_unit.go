package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"piecework/internal/source"
	"piecework/internal/work"
	"piecework/store"
)

// unitFrom looks at a unit's body as POST /work-units does. What is wrong with
// it is no error.
func (a *API) unitFrom(ctx context.Context, body json.RawMessage) (n store.NewUnit, wrong []ProblemError, err error) {
	return a.makeUnit(ctx, item{body: body})
}

func (a *API) makeUnit(ctx context.Context, it item) (n store.NewUnit, wrong []ProblemError, err error) {
	var parsed unitBody
	parse := a.parseAs
	if it.checked {
		parse = a.parseChecked
	}
	if wrong := parse(it.body, &parsed); len(wrong) > 0 {
		return n, wrong, nil
	}
	n, err = a.newUnit(ctx, &parsed)
	var invalid *work.Invalid
	if errors.As(err, &invalid) {
		return n, []ProblemError{{Pointer: invalid.Pointer, Detail: invalid.Detail}}, nil
	}
	return n, nil, err
}

// parseAs reads an object that is a part of a body or of a file as strictly as
// if it had come as a request of its own.
func (a *API) parseAs(body []byte, into any) []ProblemError {
	if p := checkJSON(body); p != nil {
		return p.Errors
	}
	return a.parseChecked(body, into)
}

// parseChecked is parseAs for what checkJSON has passed.
func (a *API) parseChecked(body []byte, into any) []ProblemError {
	// To its end: a caller who goes away does not make an item wrong.
	if p := validate(context.Background(), a.huma.OpenAPI().Components.Schemas, a.parts[reflect.TypeOf(into).Elem()], body); p != nil {
		return p.Errors
	}
	if err := json.Unmarshal(body, into); err != nil {
		return []ProblemError{{Pointer: "#", Detail: err.Error()}}
	}
	return nil
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
				it = item{line: u.Line, customID: u.CustomID, unit: &store.NewUnit{Unit: work.Unit{Title: u.Title, Spec: u.Spec}, Delay: u.Delay}}
			}
			it.next = line.Next
			if !yield(it, err) {
				return
			}
		}
	}
}
