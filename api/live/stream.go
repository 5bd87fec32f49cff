package live

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// reader is one open event stream: what it is to be sent, and its place, which
// is where whoever reads from it is.
type reader[P any] struct {
	wake chan struct{} // has one when there is something to do

	mu     sync.Mutex
	queue  []bundle[P]
	size   int   // bytes in queue
	behind bool  // its queue was thrown away: it has to join again
	err    error // it cannot be served any more
}

// bundle is events that belong together, ready to be sent, and the place that
// they lead to. Readers share the bytes.
type bundle[P any] struct {
	data []byte
	at   P
}

// A reader may be so far behind and no further. One bundle may be of any size.
const (
	maxQueue      = 64
	maxQueueBytes = 1 << 20
)

// newReader makes a reader that signals on wake, which several may share.
func newReader[P any](wake chan struct{}) reader[P] { return reader[P]{wake: wake} }

func newWake() chan struct{} { return make(chan struct{}, 1) }

// source is a reader whose events a stream sends.
type source struct {
	// send sends what there is, and reports whether there was anything, and
	// whether the reader has fallen behind.
	send func(write func([]byte) error) (sent, behind bool, err error)
	join func() error // brings a reader that fell behind back to the others
}

// source calls moved with each place that was reached.
func (r *reader[P]) source(moved func(P), join func() error) source {
	return source{join: join, send: func(write func([]byte) error) (bool, bool, error) {
		queue, behind, gone := r.next()
		for _, b := range queue {
			if err := write(b.data); err != nil {
				return true, behind, err
			}
			moved(b.at)
		}
		return len(queue) > 0, behind, gone
	}}
}

// push hands a bundle to the reader. It never waits: false means that the reader
// was too slow, has lost its queue, and gets nothing until it joins again.
func (r *reader[P]) push(b bundle[P]) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if full := len(r.queue) >= maxQueue || r.size+len(b.data) > maxQueueBytes; full && len(r.queue) > 0 {
		r.queue, r.size, r.behind = nil, 0, true
	} else {
		r.queue, r.size = append(r.queue, b), r.size+len(b.data)
	}
	r.signal()
	return !r.behind
}

// offer hands over a bundle that may be lost: a reader that has others to take
// does not get it.
func (r *reader[P]) offer(b bundle[P]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 && !r.behind {
		r.queue, r.size = append(r.queue, b), len(b.data)
		r.signal()
	}
}

// fail ends the stream.
func (r *reader[P]) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	r.signal()
}

func (r *reader[P]) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *reader[P]) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// next takes what there is to do.
func (r *reader[P]) next() (queue []bundle[P], behind bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	queue, behind, err = r.queue, r.behind, r.err
	r.queue, r.size, r.behind = nil, 0, false
	return queue, behind, err
}

const (
	pingEvery = 15 * time.Second
	// writeWait is how long a reader may take for a piece before it is given up.
	writeWait  = 15 * time.Second
	writePiece = 64 << 10
	// lastWord is what is left for a write when the server shuts down.
	lastWord = 500 * time.Millisecond
	opening  = "retry: 1000\n\n" // milliseconds until a browser comes again
	ping     = ": ping\n\n"
	lagging  = "event: lagged\ndata: {}\n\n"
)

// serve sends what comes until the caller goes away, the server shuts down or
// there is nothing more to follow.
func (h *Hub) serve(ctx context.Context, w http.ResponseWriter, wake <-chan struct{}, taps ...source) error {
	out := output{http.NewResponseController(w), w, h.closing, h.WriteWait}
	stop := context.AfterFunc(h.closing, func() { _ = out.SetWriteDeadline(time.Now().Add(lastWord)) })
	defer stop()
	if err := out.write([]byte(opening)); err != nil {
		return err
	}
	quiet := time.NewTimer(pingEvery)
	defer quiet.Stop()
	for {
		sent, again, err := out.round(taps)
		switch {
		case err != nil:
			return err
		case again:
			continue
		case sent:
			quiet.Reset(pingEvery)
		}
		select {
		case <-wake:
		case <-quiet.C:
			if err := out.write([]byte(ping)); err != nil {
				return err
			}
			quiet.Reset(pingEvery)
		case <-ctx.Done():
			return nil
		case <-h.closing.Done():
			return nil
		}
	}
}

// round sends what each tap has, and brings back those that fell behind.
func (o output) round(taps []source) (sent, again bool, err error) {
	for _, s := range taps {
		more, behind, err := s.send(o.write)
		if err != nil {
			return sent, again, err
		}
		sent = sent || more
		if !behind {
			continue
		}
		again = true
		if err := o.write([]byte(lagging)); err != nil {
			return sent, again, err
		}
		if err := s.join(); err != nil {
			return sent, again, err
		}
	}
	return sent, again, nil
}

// output writes to a caller that may have stopped reading.
type output struct {
	*http.ResponseController
	w       http.ResponseWriter
	closing context.Context
	wait    time.Duration // for one piece
}

func (o output) write(data []byte) error {
	for len(data) > 0 {
		_ = o.SetWriteDeadline(time.Now().Add(o.wait)) // a test's recorder has none
		if err := o.closing.Err(); err != nil {
			// Said again: serve may have said so just before us.
			_ = o.SetWriteDeadline(time.Now().Add(lastWord))
			return err
		}
		piece := data[:min(len(data), writePiece)]
		data = data[len(piece):]
		if _, err := o.w.Write(piece); err != nil {
			return fmt.Errorf("send events: %w", err)
		}
		if err := o.Flush(); err != nil {
			return fmt.Errorf("send events: %w", err)
		}
	}
	return o.closing.Err()
}
