package chaos

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"piecework/internal/webhook"
	"piecework/internal/work"
)

// sinks are how many receivers there are: what one of them holds up the others
// get.
const sinks = 4

// How a receiver answers the first try of a message; the next it takes.
const (
	takes  = "take"
	fails  = "fail"
	isBusy = "busy" // and asks for a second's time
	drops  = "drop" // the connection, with no answer
	hangs  = "hang" // until the sender gives up
	isGone = "gone" // it wants no message, now and later
)

// manner draws how the receiver of a message is.
func manner(r *rand.Rand) string {
	switch x := r.Float64(); {
	case x < 0.60:
		return takes
	case x < 0.75:
		return fails
	case x < 0.85:
		return isBusy
	case x < 0.95:
		return drops
	case x < 0.98:
		return isGone
	}
	return hangs
}

// sink is the receivers of messages. Each writes down what came before it
// answers. The path of an address says how it answers, and who asked.
type sink struct {
	book   *book
	secret string
	doors  []*httptest.Server

	mu    sync.Mutex
	tries map[string]int // by message
}

func newSink(b *book) *sink {
	s := &sink{book: b, secret: webhook.NewSecret(), tries: map[string]int{}}
	for range sinks {
		s.doors = append(s.doors, httptest.NewServer(s))
	}
	return s
}

func (s *sink) close() {
	for _, d := range s.doors {
		d.CloseClientConnections()
		d.Close()
	}
}

// address is where a receiver of that manner listens.
func (s *sink) address(manner, request string, r *rand.Rand) string {
	return fmt.Sprintf("%s/%s/%s", pickOne(r, s.doors).URL, manner, request)
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender was cut off
	}
	sum := sha256.Sum256(body)
	e := Event{Kind: KindMessage, Message: r.Header.Get("webhook-id"), Digest: hex.EncodeToString(sum[:8]), Status: http.StatusOK}
	if _, err := webhook.Verify(work.Scheme{Preset: webhook.Standard}, []string{s.secret}, webhook.Delivery{Header: r.Header, Body: body}, time.Now()); err != nil {
		e.Error = err.Error()
	}
	var told struct {
		Type string
		Data struct{ ID string }
	}
	_ = json.Unmarshal(body, &told) // what cannot be read is of no unit
	e.Unit, e.What = told.Data.ID, told.Type
	how, request, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	e.Request = request
	s.mu.Lock()
	s.tries[e.Message]++
	e.Try = s.tries[e.Message]
	s.mu.Unlock()
	if e.Try == 1 || how == isGone {
		switch how {
		case fails:
			e.Status = http.StatusInternalServerError
		case isBusy:
			e.Status = http.StatusServiceUnavailable
			w.Header().Set("Retry-After", "1")
		case isGone:
			e.Status = http.StatusGone
		case drops, hangs:
			e.Status = 0
		}
	}
	s.book.write(e)
	if e.Status == 0 && how == hangs {
		select {
		case <-r.Context().Done():
		case <-time.After(webhook.Timeout + 5*time.Second):
		}
	}
	if e.Status == 0 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(e.Status)
}
