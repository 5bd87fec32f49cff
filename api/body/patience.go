package body

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"piecework/internal/work"
)

// AnswerLimit is how long a caller waits for the first byte of an answer, from
// the end of his request. It is below 15 seconds, which the documents promise.
const AnswerLimit = 13 * time.Second

var ErrNoAnswer = &work.Unavailable{What: "postgres", RetryAfter: 2 * time.Second, Err: errors.New("no answer in time")}

// patience ends the context of a request that has been sent and is not answered
// in time. What an answer is held for on purpose (wait=) stops the clock.
type patience struct {
	limit time.Duration
	end   context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

type patienceKey struct{}

// BoundAnswer gives each request as long as limit says.
func BoundAnswer(limit func() time.Duration) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			// It is not ended here: an event stream goes on after its handler.
			ctx, end := context.WithCancelCause(r.Context())
			p := &patience{limit: limit(), end: end}
			defer p.stop()
			r = r.WithContext(context.WithValue(ctx, patienceKey{}, p))
			if r.Body == nil || r.Body == http.NoBody {
				p.start()
			} else {
				r.Body = sentBody{r.Body, p}
			}
			c.SetRequest(r)
			c.Response().Before(p.stop)
			return next(c)
		}
	}
}

func (p *patience) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer == nil && !p.over {
		p.timer = time.AfterFunc(p.limit, func() { p.end(ErrNoAnswer) })
	}
}

func (p *patience) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// HoldAnswer lets a request wait for as long as it was told to.
func HoldAnswer(ctx context.Context) {
	if p, ok := ctx.Value(patienceKey{}).(*patience); ok {
		p.stop()
	}
}

// sentBody notices when the whole request is there.
type sentBody struct {
	io.ReadCloser
	patience *patience
}

func (b sentBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if err != nil {
		b.patience.start()
	}
	return n, err
}
