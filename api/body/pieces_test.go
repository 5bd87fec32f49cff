package body

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"testing/iotest"
)

func TestPiecesAreABody(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("0123456789abcde"), pieceSize/5+1)
	for _, length := range []int{0, 1, pieceSize - 1, pieceSize, pieceSize + 1, 2 * pieceSize, 3*pieceSize - 7} {
		budget := &Budget{left: 1 << 20}
		p := &Pieces{Budget: budget}
		if err := p.Read(iotest.HalfReader(bytes.NewReader(text[:length]))); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time with memory that has been used
			body, err := p.Whole()
			if err != nil || !bytes.Equal(body, text[:length]) || budget.left != 1<<20-int64(length) {
				t.Errorf("%d bytes: got %d, %d left, error %v", length, len(body), budget.left, err)
			}
			p.Drop()
			slices.Reverse(text)
			p = &Pieces{Budget: budget}
			if err := p.Read(bytes.NewReader(text[:length])); err != nil {
				t.Fatal(err)
			}
		}
		if p.Drop(); budget.left != 1<<20 {
			t.Errorf("%d bytes: %d left", length, budget.left)
		}
	}
}

// The memory of bodies is never more than the budget, and neither the body in
// one nor a failure gets around it.
func TestPiecesKeepToTheBudget(t *testing.T) {
	t.Parallel()
	budget := &Budget{left: 10*pieceSize + 5}
	var all []*Pieces
	for _, length := range []int64{pieceSize / 2, 5 * pieceSize, 1 << 20} {
		p := &Pieces{Budget: budget}
		all = append(all, p)
		if err := p.Read(bytes.NewReader(make([]byte, length))); errors.Is(err, ErrNoRoom) != (length == 1<<20) {
			t.Errorf("%d bytes: error %v", length, err)
		}
	}
	memory := int64(0)
	for _, p := range all {
		memory += int64(len(p.list)) * pieceSize
	}
	if memory != 10*pieceSize || budget.left != 5 {
		t.Errorf("%d bytes of memory, %d left", memory, budget.left)
	}
	if _, err := all[1].Whole(); !errors.Is(err, ErrNoRoom) || budget.left != 5 {
		t.Errorf("there is room for a copy, %d left, error %v", budget.left, err)
	}
	for _, p := range all {
		p.Drop()
		p.Drop()
	}
	if budget.left != 10*pieceSize+5 {
		t.Errorf("%d left in the end", budget.left)
	}
}
