package body

import (
	"io"
	"sync"
)

// pieceSize is how much memory a body gets at once.
const pieceSize = 32 << 10

// spare are pieces of memory that no body uses. Bodies that nobody has signed
// use them again and leave nothing for the garbage collector.
var spare = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// Pieces is a body that comes in. Each piece of memory is taken of the budget
// before it is there, so that all bodies together never have more.
type Pieces struct {
	Budget *Budget
	list   []*[pieceSize]byte
	length int   // of what came
	held   int64 // of the budget
}

// Read reads to the end, or until there is no room.
func (p *Pieces) Read(from io.Reader) error {
	for {
		at := p.length % pieceSize
		if p.length == len(p.list)*pieceSize {
			if !p.take(pieceSize) {
				return ErrNoRoom
			}
			p.list = append(p.list, spare.Get().(*[pieceSize]byte)) //nolint:forcetypeassert // nothing else is in it
		}
		n, err := from.Read(p.list[len(p.list)-1][at:])
		p.length += n
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Whole returns the body in one, which is held until drop.
func (p *Pieces) Whole() ([]byte, error) {
	if !p.take(int64(p.length)) {
		return nil, ErrNoRoom
	}
	body := make([]byte, 0, p.length)
	for _, piece := range p.list {
		body = append(body, piece[:min(pieceSize, p.length-len(body))]...)
	}
	p.free()
	return body, nil
}

func (p *Pieces) take(n int64) bool {
	ok := p.Budget.take(n)
	if ok {
		p.held += n
	}
	return ok
}

// free makes the pieces spare.
func (p *Pieces) free() {
	for _, piece := range p.list {
		spare.Put(piece)
	}
	n := int64(len(p.list)) * pieceSize
	p.list, p.held = nil, p.held-n
	p.Budget.give(n)
}

// Drop gives back all that the body had.
func (p *Pieces) Drop() {
	p.free()
	p.Budget.give(p.held)
	p.held = 0
}
