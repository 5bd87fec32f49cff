package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"piecework/internal/source"
	"piecework/internal/work"
	"piecework/store"
)

// inspection is a look at the items of a batch before it is accepted.
type inspection struct {
	a       *API
	ctx     context.Context
	batch   work.Batch
	skip    bool
	pointer func(line int) string

	stopped  bool            // there were maxRefused, and the rest was not looked at
	seen     map[uint64]bool // hashes of custom ids: all of them would be too much
	count    int
	refused  int
	problems []work.BatchProblem
	sample   *sample
}

// all looks at units as they come and writes those that are good.
func (l *inspection) all(w io.Writer, template json.RawMessage, units iter.Seq2[source.Line, error]) error {
	out, turns := bufio.NewWriterSize(w, 64<<10), newTurns()
	for line, err := range units {
		if err == nil {
			err = l.ctx.Err()
		}
		if err != nil {
			return err
		}
		if l.stopped = !l.skip && l.refused >= maxRefused; l.stopped {
			return nil
		}
		it, err := l.item(template, line)
		if err != nil {
			return err
		}
		n, err := l.unit(it)
		if err != nil || n == nil {
			if err != nil {
				return err
			}
			continue
		}
		if !l.skip && l.refused > 0 {
			continue // nothing will be made of it
		}
		belong(n, &l.batch, it)
		n.Turn = turns.of(n, it.line)
		row, err := n.Encoded()
		if err == nil {
			err = writeRow(out, it.line, row)
		}
		if err != nil {
			return err
		}
	}
	return out.Flush()
}

// item reads a unit of a batch: the body of a unit, and a custom_id beside it.
func (l *inspection) item(template json.RawMessage, line source.Line) (item, error) {
	it := item{line: line.Next.Line, customID: fmt.Sprint(line.Next.Line)}
	if p := checkJSON(line.Text); p != nil {
		it.wrong = p.Errors
		return it, nil
	}
	raw, rest, err := cutField(line.Text, "custom_id")
	if err != nil {
		it.wrong = []ProblemError{{Pointer: "#", Detail: "must be an object, as POST /work-units takes it"}}
		return it, nil
	}
	if raw != nil {
		if json.Unmarshal(raw, &it.customID) != nil || it.customID == "" {
			it.wrong = []ProblemError{{Pointer: "#/custom_id", Detail: "must be a text that is not empty"}}
			return it, nil
		}
	}
	if it.body = rest; len(template) == 0 {
		it.checked = true
		return it, nil
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(rest, &fields); err != nil {
		return it, err
	}
	it.body, err = merge(template, fields) // a payload that is no object is for the check to say
	return it, err
}

// cutField takes a field out of an object that checkJSON has passed. The value
// is nil when there is none.
func cutField(object []byte, name string) (value, rest []byte, err error) {
	if bytes.HasPrefix(object, []byte("{")) && !work.MayName(object, name) {
		return nil, object, nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true)) // there are none
	switch token, err := dec.ReadToken(); {
	case err == nil && token.Kind() == 'n':
		return nil, []byte("{}"), nil // it says nothing of its own
	case err != nil || token.Kind() != '{':
		return nil, nil, errors.New("it is no object")
	}
	for first := true; dec.PeekKind() == '"'; first = false {
		begin := dec.InputOffset()
		token, err := dec.ReadToken()
		if err != nil {
			return nil, nil, err
		}
		if token.String() != name {
			if err := dec.SkipValue(); err != nil {
				return nil, nil, err
			}
			continue
		}
		if value, err = dec.ReadValue(); err != nil {
			return nil, nil, err
		}
		value = bytes.Clone(value)
		after := object[dec.InputOffset():]
		if first {
			after = bytes.TrimPrefix(bytes.TrimLeft(after, " \t\r\n"), []byte(","))
		}
		return value, slices.Concat(object[:begin], after), nil
	}
	return nil, object, nil
}

func (l *inspection) at(it item) error {
	_, err := l.unit(it)
	return err
}

// unit looks at one item. It returns nil for one that is refused.
func (l *inspection) unit(it item) (*store.NewUnit, error) {
	var n store.NewUnit
	if len(it.wrong) == 0 {
		var err error
		if n, it.wrong, err = l.a.makeUnit(l.ctx, it); err != nil {
			return nil, err
		}
		if len(it.wrong) == 0 {
			it.wrong = l.a.unpriced(l.batch, &n)
		}
	}
	hash := hashOf(it.customID)
	switch {
	case len(it.wrong) > 0:
	case len(it.customID) > maxCustomID:
		it.wrong = []ProblemError{{Pointer: "#/custom_id", Detail: fmt.Sprintf("is longer than %d bytes", maxCustomID)}}
	case l.seen[hash]:
		it.wrong = []ProblemError{repeats(it.customID)}
	}
	if len(it.wrong) > 0 {
		l.refused++
		if len(l.problems) < work.MaxBatchProblems {
			l.problems = append(l.problems, it.problems()...)
		}
		return nil, nil
	}
	l.seen[hash] = true
	n.CustomID = work.Clean(it.customID)
	if l.count++; l.count == 1 {
		l.sample = &sample{CustomID: n.CustomID, Title: n.Title, Spec: n.Spec}
	}
	return &n, nil
}

// maxRefused is how many items at fault are counted of a batch that is refused
// as a whole.
const maxRefused = 10_000

// refusal is the answer to items of which no units can be made.
func (l *inspection) refusal() error {
	var fields []ProblemError
	for _, p := range l.problems[:min(len(l.problems), maxShown)] {
		fields = append(fields, pointAt(l.pointer(p.Line), ProblemError{Pointer: p.Pointer, Detail: fmt.Sprintf("line %d: %s", p.Line, p.Detail)}))
	}
	p := newFieldsProblem(http.StatusBadRequest, fields...)
	switch {
	case l.stopped:
		p.Detail += fmt.Sprintf(" (and at least %d more; nothing was made of the batch)", l.refused-1)
	case l.refused > 1:
		p.Detail += fmt.Sprintf(" (and %d more; nothing was made of the batch)", l.refused-1)
	}
	return p
}

// wouldBe is the answer to a dry run.
func (l *inspection) wouldBe(n store.NewBatch) *batchAnswer {
	b := n.Batch
	b.Status, b.CreatedAt, b.Rejected, b.Problems = work.BatchEnumerating, time.Now().UTC(), l.refused, l.problems
	b.Counts.Add(work.Queued, l.count)
	if len(b.Metadata) == 0 {
		b.Metadata = json.RawMessage("{}")
	}
	return &batchAnswer{Status: http.StatusOK, Body: submittedBatch{BatchView: BatchView{Batch: b}, Sample: l.sample, DryRun: true}}
}
