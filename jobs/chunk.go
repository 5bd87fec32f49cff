package jobs

import (
	"context"
	"errors"

	"piecework/internal/work"
)

// piecesAtOnce is how many pieces of a batch are under way: Postgres inserts the
// units of one with one processor.
const piecesAtOnce = 2

// underWay is a piece of a batch that is being committed.
type underWay struct {
	lines map[string]int // of its custom ids
	over  chan struct{}

	// These are read when it is over.
	err     error
	kept    bool
	refused []item // of a batch that wants all or none
}

// errNotKept: nothing is made of a piece, because one of its items, or the piece
// before, is at fault.
var errNotKept = errors.New("nothing is made of the piece")

// flush sends the piece on its way.
func (f *enumeration) flush(ctx context.Context) error {
	if err := f.settle(piecesAtOnce - 1); err != nil {
		return err
	}
	if f.refused == 0 && len(f.piece.Units)+len(f.piece.Problems) > 0 {
		f.begin(ctx)
	}
	f.clear()
	return nil
}

// finish sends the last piece on its way and waits until all are committed.
func (f *enumeration) finish(ctx context.Context) error {
	if err := f.flush(ctx); err != nil {
		return err
	}
	return f.settle(0)
}

// begin commits the piece in a routine of its own, after those before it. Items
// whose custom id the batch has are refused.
func (f *enumeration) begin(ctx context.Context) {
	u := &underWay{lines: f.lines, over: make(chan struct{})}
	var before *underWay
	if len(f.under) > 0 {
		before = f.under[len(f.under)-1]
	}
	begun, skip := make(chan struct{}), f.source.OnInvalid == onInvalidSkip
	piece := f.piece
	piece.Begun = func() { close(begun) }
	piece.BeforeCommit = func(ctx context.Context, repeated []string) (problems []work.BatchProblem, err error) {
		if err := before.await(ctx); err != nil {
			return nil, err
		}
		for _, id := range repeated {
			it := item{line: u.lines[id], customID: id, code: codeRepeats, wrong: []work.Invalid{repeats(id)}}
			if skip {
				problems = append(problems, it.problems()[0])
			} else {
				u.refused = append(u.refused, it)
			}
		}
		if len(u.refused) > 0 {
			return nil, errNotKept
		}
		return problems, nil
	}
	f.under = append(f.under, u)
	go func() {
		defer close(u.over)
		err := f.s.Store.Batches.AddChunk(ctx, piece)
		if u.kept = err == nil; !errors.Is(err, errNotKept) {
			u.err = err
		}
	}()
	select { // the next piece must not take the connection that this one waits for
	case <-begun:
	case <-u.over:
	}
}

// await waits until the piece before is committed.
func (u *underWay) await(ctx context.Context) error {
	if u == nil {
		return nil
	}
	select {
	case <-u.over:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !u.kept {
		return errNotKept
	}
	return nil
}

// settle waits until at most so many pieces are under way.
func (f *enumeration) settle(most int) error {
	for len(f.under) > most {
		u := f.under[0]
		<-u.over
		f.under = f.under[1:]
		for _, it := range u.refused {
			f.refuse(it)
		}
		if u.err != nil {
			return u.err
		}
	}
	return nil
}

// alone sees to it that no custom id is in two pieces that are under way: each
// would wait for the other in the end.
func (f *enumeration) alone(id string) error {
	for _, u := range f.under {
		if u.lines[id] > 0 {
			return f.settle(0)
		}
	}
	return nil
}

// abandon waits for what is under way, whose context has ended.
func (f *enumeration) abandon() {
	for _, u := range f.under {
		<-u.over
	}
	f.under = nil
}
