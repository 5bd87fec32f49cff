package body

import (
	"io"
	"sync"

	"piecework/api/problem"
	"piecework/internal/work"
)

// The bytes of bodies that may be in memory at once, of all callers together,
// as times of the largest body.
const bodiesInFlight = 16

// leastInFlight has room for two of the largest bodies that triggers take and a
// copy of one.
const leastInFlight = 3 * work.MaxTriggerBody

// Budget is a budget of bytes that are held for requests.
type Budget struct {
	mu   sync.Mutex
	left int64
}

// NewBudget makes a budget of so many bytes.
func NewBudget(left int64) *Budget { return &Budget{left: left} }

// Left is what is left.
func (f *Budget) Left() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left
}

// take takes n bytes of the budget, if there are so many.
func (f *Budget) take(n int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n > f.left {
		return false
	}
	f.left -= n
	return true
}

func (f *Budget) give(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left += n
}

// held is what one request has of the budget until it ends. It takes more with
// each piece that comes, so that a length which is only announced costs nothing.
type held struct {
	io.ReadCloser
	budget *Budget
	bytes  int64
}

// pieceOfBody is how much is taken of the budget at once.
const pieceOfBody = 64 << 10

func (h *held) Read(p []byte) (int, error) {
	if len(p) > pieceOfBody {
		p = p[:pieceOfBody]
	}
	if !h.budget.take(int64(len(p))) {
		return 0, ErrNoRoom
	}
	n, err := h.ReadCloser.Read(p)
	h.budget.give(int64(len(p) - n))
	h.bytes += int64(n)
	return n, err
}

// uncounted is a body of which no more is kept.
func uncounted(body io.Reader) io.Reader {
	if h, ok := body.(*held); ok {
		return h.ReadCloser
	}
	return body
}

// release gives back what the request had.
func (h *held) release() { h.budget.give(h.bytes) }

var ErrNoRoom = problem.Busy("too many large bodies at once; send this one again")
