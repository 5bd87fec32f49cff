package jobs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"piecework/internal/source"
	"piecework/internal/strictjson"
	"piecework/internal/work"
	"piecework/store"
)

// inspection is a look at the items of a batch before it is accepted.
type inspection struct {
	s       *Submitter
	ctx     context.Context
	batch   work.Batch
	skip    bool
	pointer func(line int) string

	stopped  bool            // there were maxRefused, and the rest was not looked at
	seen     map[uint64]bool // hashes of custom ids: all of them would be too much
	count    int
	refused  int
	problems []work.BatchProblem
	sample   *Sample
}

const (
	lookAtOnce    = 64 // lines
	lookAtBytes   = 256 << 10
	lookProcesses = 4 // processors, at most
)

// looked is a line that is looked at, with others of its block.
type looked struct {
	line source.Line
	it   item
	unit *store.NewUnit
	row  json.RawMessage
	err  error
}

// all looks at units as they come and writes those that are good. Lines are
// parsed, and rows made, a block at a time on several processors; what one line
// means for another is found out in their order.
func (l *inspection) all(w io.Writer, template json.RawMessage, units iter.Seq2[source.Line, error]) error {
	out, turns := bufio.NewWriterSize(w, 64<<10), newTurns()
	block, size := make([]looked, 0, lookAtOnce), 0
	look := func() error {
		err := l.block(out, template, turns, block)
		block, size = block[:0], 0
		return err
	}
	for line, err := range units {
		if err == nil {
			err = l.ctx.Err()
		}
		if err == nil && size+len(line.Text) > lookAtBytes {
			err = look()
		}
		if err != nil {
			return err
		}
		if l.stopped {
			return nil
		}
		if size += len(line.Text); size <= lookAtBytes {
			line.Text = bytes.Clone(line.Text) // the next comes into its place
		}
		if block = append(block, looked{line: line}); len(block) == lookAtOnce || size > lookAtBytes {
			if err := look(); err != nil {
				return err
			}
		}
	}
	if err := look(); err != nil {
		return err
	}
	return out.Flush()
}

func (l *inspection) block(out io.Writer, template json.RawMessage, turns turns, block []looked) error {
	each(block, func(b *looked) {
		var n store.NewUnit
		if b.it, b.err = l.item(template, b.line); b.err == nil {
			n, b.err = l.make(&b.it)
		}
		b.unit = &n
	})
	for i := range block {
		b := &block[i]
		if b.err != nil {
			return b.err
		}
		if l.stopped = !l.skip && l.refused >= maxRefused; l.stopped {
			return nil
		}
		if good := l.take(b.it, b.unit); !good || !l.skip && l.refused > 0 {
			b.unit = nil // nothing will be made of it
			continue
		}
		b.unit.ID = uuid.Must(uuid.NewV7()) // units are let go in the order of their ids
		belong(b.unit, &l.batch, b.it)
		b.unit.StartOrder = turns.of(b.unit, b.it.line)
	}
	each(block, func(b *looked) {
		if b.unit != nil {
			b.row, b.err = b.unit.Encoded()
		}
	})
	for i := range block {
		b := &block[i]
		if b.err == nil && b.unit != nil {
			b.err = writeRow(out, b.it.line, b.row)
		}
		if b.err != nil {
			return b.err
		}
	}
	return nil
}

// each does something with all of a block, on as many processors as it is worth.
func each(block []looked, do func(*looked)) {
	var next atomic.Int64
	some := func() {
		for {
			from := int(next.Add(8)) - 8
			if from >= len(block) {
				return
			}
			for i := from; i < min(from+8, len(block)); i++ {
				do(&block[i])
			}
		}
	}
	var all sync.WaitGroup
	for range min(lookProcesses, runtime.GOMAXPROCS(0), (len(block)+7)/8) - 1 {
		all.Go(some)
	}
	some()
	all.Wait()
}

// item reads a unit of a batch: the body of a unit, and a custom_id beside it.
func (l *inspection) item(template json.RawMessage, line source.Line) (item, error) {
	it := item{line: line.Next.Line, customID: fmt.Sprint(line.Next.Line)}
	if wrong := strictjson.Check(line.Text); wrong != nil {
		it.wrong = []work.Invalid{*wrong}
		return it, nil
	}
	raw, rest, err := strictjson.CutField(line.Text, "custom_id")
	if err != nil {
		it.wrong = []work.Invalid{{Pointer: "#", Detail: "must be an object, as POST /work-units takes it"}}
		return it, nil
	}
	if raw != nil {
		if json.Unmarshal(raw, &it.customID) != nil || it.customID == "" {
			it.wrong = []work.Invalid{{Pointer: "#/custom_id", Detail: "must be a text that is not empty"}}
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
	it.body, err = strictjson.Merge(template, fields) // a payload that is no object is for the check to say
	return it, err
}

// at looks at one item.
func (l *inspection) at(it item) error {
	n, err := l.make(&it)
	if err == nil {
		l.take(it, &n)
	}
	return err
}

// make makes the unit of one item, or notes what is wrong with it.
func (l *inspection) make(it *item) (n store.NewUnit, err error) {
	if len(it.wrong) > 0 {
		return n, nil
	}
	if n, it.wrong, err = l.s.makeUnit(l.ctx, *it); err == nil && len(it.wrong) == 0 {
		it.wrong = l.s.unpriced(l.batch, &n)
	}
	return n, err
}

// take counts an item, and tells whether a unit is to be made of it.
func (l *inspection) take(it item, n *store.NewUnit) bool {
	hash := hashOf(it.customID)
	switch {
	case len(it.wrong) > 0:
	case len(it.customID) > maxCustomID:
		it.wrong = []work.Invalid{{Pointer: "#/custom_id", Detail: fmt.Sprintf("is longer than %d bytes", maxCustomID)}}
	case l.seen[hash]:
		it.wrong = []work.Invalid{repeats(it.customID)}
	}
	if len(it.wrong) > 0 {
		l.refused++
		if len(l.problems) < work.MaxBatchProblems {
			l.problems = append(l.problems, it.problems()...)
		}
		return false
	}
	l.seen[hash] = true
	n.CustomID = work.Clean(it.customID)
	if l.count++; l.count == 1 {
		l.sample = &Sample{CustomID: n.CustomID, Title: n.Title, Spec: n.Spec}
	}
	return true
}

// maxRefused is how many items at fault are counted of a batch that is refused
// as a whole.
const maxRefused = 10_000

// RefusedItems is a batch of which nothing was made, because of its items.
type RefusedItems struct {
	work.InvalidFields      // the first items at fault
	Others             int  // at fault beside the first
	AtLeast            bool // the rest was not looked at
}

// Note says how many others there are, if any.
func (e *RefusedItems) Note() string {
	switch {
	case e.AtLeast:
		return fmt.Sprintf(" (and at least %d more; nothing was made of the batch)", e.Others)
	case e.Others > 0:
		return fmt.Sprintf(" (and %d more; nothing was made of the batch)", e.Others)
	}
	return ""
}

// refusal is the error about items of which no units can be made.
func (l *inspection) refusal() error {
	e := &RefusedItems{Others: l.refused - 1, AtLeast: l.stopped}
	for _, p := range l.problems[:min(len(l.problems), strictjson.MaxShown)] {
		field := work.Invalid{Pointer: p.Pointer, Detail: fmt.Sprintf("line %d: %s", p.Line, p.Detail)}
		e.Fields = append(e.Fields, field.Within(l.pointer(p.Line)))
	}
	return e
}

// wouldBe is what a dry run tells.
func (l *inspection) wouldBe(n store.NewBatch) SubmittedBatch {
	b := n.Batch
	b.Status, b.CreatedAt, b.Rejected, b.Problems = work.BatchEnumerating, time.Now().UTC(), l.refused, l.problems
	b.Counts.Add(work.Queued, l.count)
	if len(b.Metadata) == 0 {
		b.Metadata = json.RawMessage("{}")
	}
	return SubmittedBatch{Batch: b, Sample: l.sample, DryRun: true}
}
