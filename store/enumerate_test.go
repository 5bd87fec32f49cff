package store

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// Pieces that are under way together are inserted side by side and committed in
// their order. What was not committed when its process dies was never there.
func TestPiecesUnderWay(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.enumerating()
	inserted, over := make([]chan struct{}, 3), make([]chan error, 3)
	turn := make([]chan error, 3)
	for i := range 3 {
		inserted[i], over[i], turn[i] = make(chan struct{}), make(chan error, 1), make(chan error)
		p := piece(id, 10*i, 10*i+10)
		p.Process = l.process
		p.BeforeCommit = func(context.Context, []string) ([]work.BatchProblem, error) {
			close(inserted[i])
			return nil, <-turn[i]
		}
		go func() { over[i] <- l.Batches.AddChunk(t.Context(), p) }()
	}
	for i := range inserted {
		<-inserted[i]
	}
	if n := l.read(id).Counts.Total; n != 0 {
		t.Errorf("%d units are there and no piece is committed", n)
	}
	turn[0] <- nil
	l.must(<-over[0])
	if n := l.read(id).Counts.Total; n != 10 {
		t.Errorf("%d units of the first piece", n)
	}
	// Another process goes on at the place of the last piece that was committed.
	other := uuid.New()
	l.exec(`UPDATE batches SET fill_until = now() - interval '1 second'`)
	f, err := l.Batches.ClaimEnumeration(t.Context(), other)
	if l.must(err); f == nil || string(f.Cursor) != "10" {
		t.Fatalf("it goes on at %+v", f)
	}
	turn[1] <- nil
	if err := <-over[1]; !errors.Is(err, work.ErrConflict) {
		t.Errorf("a piece of who lost the batch: %v", err)
	}
	leave := errors.New("the piece before was not kept")
	turn[2] <- leave
	if err := <-over[2]; !errors.Is(err, leave) {
		t.Errorf("a piece whose turn never came: %v", err)
	}
	rest := piece(id, 10, 30)
	rest.Process = other
	l.must(l.Batches.AddChunk(t.Context(), rest))
	l.must(l.Batches.FinishEnumeration(t.Context(), id, other))
	var ids []string
	l.must(l.db.SelectContext(t.Context(), &ids, `SELECT custom_id FROM work_units ORDER BY custom_id`))
	if len(ids) != 30 || len(slices.Compact(ids)) != 30 {
		t.Errorf("%d units: %v", len(ids), ids)
	}
}

// A piece finds the custom ids that its batch has, and may do without them.
func TestPieceWithoutWhatWasThere(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	id := l.enumerating()
	l.fillMore(id, 0, 5)
	p := piece(id, 3, 8)
	p.Process, p.Problems = l.process, []work.BatchProblem{{Line: 9, Detail: "wrong"}}
	p.BeforeCommit = func(_ context.Context, repeated []string) (problems []work.BatchProblem, err error) {
		for _, id := range repeated {
			problems = append(problems, work.BatchProblem{CustomID: id, Detail: "is there"})
		}
		return problems, nil
	}
	l.must(l.Batches.AddChunk(t.Context(), p))
	b := l.read(id)
	if b.Counts.Total != 8 || b.Rejected != 3 || len(b.Problems) != 3 || b.Problems[0].Line != 9 || b.Problems[1].CustomID != "c3" ||
		b.Problems[2].CustomID != "c4" {
		t.Errorf("%+v, rejected %d: %+v", b.Counts, b.Rejected, b.Problems)
	}
}
