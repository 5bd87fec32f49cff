package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"reflect"

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

// filledUnit is a unit that was looked at when its batch was submitted, as a
// line of the file that waits for the units to be made.
type filledUnit struct {
	Line     int          `json:"line"`
	CustomID string       `json:"custom_id"`
	Title    string       `json:"title"`
	Delay    work.Seconds `json:"delay,omitempty"`
	work.Spec
}

func filledUnits(file io.ReadSeeker, from source.Place) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		for line, err := range source.Lines(file, from) {
			var u filledUnit
			if err == nil {
				err = json.Unmarshal(line.Text, &u)
			}
			n := store.NewUnit{Unit: work.Unit{Title: u.Title, Spec: u.Spec}, Delay: u.Delay}
			if !yield(item{line: u.Line, customID: u.CustomID, unit: &n, next: line.Next}, err) {
				return
			}
		}
	}
}
