package api

import (
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/labstack/echo/v4"

	"piecework/api/problem"
	"piecework/internal/work"
)

// bodyPiece is how much memory a body gets at once.
const bodyPiece = 32 << 10

// spare are pieces of memory that no body uses. Bodies that nobody has signed
// use them again and leave nothing for the garbage collector.
var spare = sync.Pool{New: func() any { return new([bodyPiece]byte) }}

// pieces is a body that comes in. Each piece of memory is taken of the budget
// before it is there, so that all bodies together never have more.
type pieces struct {
	budget *flight
	list   []*[bodyPiece]byte
	length int   // of what came
	held   int64 // of the budget
}

// read reads to the end, or until there is no room.
func (p *pieces) read(from io.Reader) error {
	for {
		at := p.length % bodyPiece
		if p.length == len(p.list)*bodyPiece {
			if !p.take(bodyPiece) {
				return errNoRoom
			}
			p.list = append(p.list, spare.Get().(*[bodyPiece]byte)) //nolint:forcetypeassert // nothing else is in it
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

// whole returns the body in one, which is held until drop.
func (p *pieces) whole() ([]byte, error) {
	if !p.take(int64(p.length)) {
		return nil, errNoRoom
	}
	body := make([]byte, 0, p.length)
	for _, piece := range p.list {
		body = append(body, piece[:min(bodyPiece, p.length-len(body))]...)
	}
	p.free()
	return body, nil
}

func (p *pieces) take(n int64) bool {
	ok := p.budget.take(n)
	if ok {
		p.held += n
	}
	return ok
}

// free makes the pieces spare.
func (p *pieces) free() {
	for _, piece := range p.list {
		spare.Put(piece)
	}
	n := int64(len(p.list)) * bodyPiece
	p.list, p.held = nil, p.held-n
	p.budget.give(n)
}

// drop gives back all that the body had.
func (p *pieces) drop() {
	p.free()
	p.budget.give(p.held)
	p.held = 0
}

// readHookBody reads the body of a webhook, up to what its trigger takes and no
// further; verifier gets every byte when it comes.
func (a *API) readHookBody(c echo.Context, h *hook, verifier io.Writer, into *pieces) *problem.Problem {
	r, most := c.Request(), h.MaxBodyBytes
	problem := problem.New(http.StatusRequestEntityTooLarge, fmt.Sprintf(
		"the body is larger than %d bytes, the max_body_bytes of this trigger; put the trigger with a larger one, %d at most", most, work.MaxTriggerBody))
	if r.ContentLength <= most {
		err := into.read(io.TeeReader(http.MaxBytesReader(nil, r.Body, most), verifier))
		if err == nil {
			return nil
		}
		if !tooLarge(err) {
			problem = a.unread(err)
		}
	}
	c.Response().Header().Set("Connection", "close") // net/http would read on
	return problem
}
