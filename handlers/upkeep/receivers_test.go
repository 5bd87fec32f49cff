package upkeep

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"piecework/internal/testkit"
)

// tries is a receivers' try whose end the test decides.
type tries struct {
	mu    sync.Mutex
	begun map[uuid.UUID]int
	now   map[uuid.UUID]int
	ends  map[uuid.UUID]chan [2]bool // found and took
}

func newTries() *tries {
	return &tries{begun: map[uuid.UUID]int{}, now: map[uuid.UUID]int{}, ends: map[uuid.UUID]chan [2]bool{}}
}

func (s *tries) end(id uuid.UUID) chan [2]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends[id] == nil {
		s.ends[id] = make(chan [2]bool)
	}
	return s.ends[id]
}

func (s *tries) try(id uuid.UUID) (found, took bool) {
	end := s.end(id)
	s.count(id, 1)
	r := <-end
	s.count(id, -1)
	return r[0], r[1]
}

func (s *tries) count(id uuid.UUID, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[id] += max(n, 0)
	s.now[id] += n
}

func (s *tries) at(ids ...uuid.UUID) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		n += s.now[id]
	}
	return n
}

func someReceivers(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
	}
	return ids
}

func (s *tries) await(t *testing.T, what string, n int, ids ...uuid.UUID) {
	t.Helper()
	testkit.Eventually(t, what, func() bool { return s.at(ids...) == n })
}

func (s *tries) awaitBegun(t *testing.T, n int, id uuid.UUID) {
	t.Helper()
	testkit.Eventually(t, "the next try", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.begun[id] == n
	})
}

// Receivers that are new hold at most their share, those that fail at most
// theirs, and one that is known to answer is let in beside them.
func TestSharesOfReceivers(t *testing.T) {
	t.Parallel()
	s := newTries()
	q := newReceivers(s.try)
	q.slowAfter = time.Hour
	one := uuid.New()
	q.offer(one)
	s.await(t, "the first try", 1, one)
	s.end(one) <- [2]bool{true, true} // it answers
	s.await(t, "a second try at once", 1, one)
	s.end(one) <- [2]bool{false, false} // nothing is left
	s.await(t, "no more", 0, one)

	strangers := someReceivers(100)
	for _, id := range strangers {
		q.offer(id)
		q.offer(id)
	}
	s.await(t, "as many as may be new", freshSlots, strangers...)
	q.offer(one)
	s.await(t, "the one that answers beside them", 1, one)
	s.end(one) <- [2]bool{false, false}

	// Each of them fails: its slot is free for the next one.
	for _, id := range strangers {
		s.end(id) <- [2]bool{true, false}
	}
	testkit.Eventually(t, "those that fail, again and in their share", func() bool { return s.at(strangers...) == failingSlots })
	q.offer(one)
	s.await(t, "the one that answers beside them", 1, one)
	if s.at(strangers...) > failingSlots {
		t.Errorf("%d tries to failing receivers", s.at(strangers...))
	}
	finish(q, s, append(strangers, one))
}

// Receivers that stop answering count as failing before their tries are over.
func TestReceiversThatStopAnswering(t *testing.T) {
	t.Parallel()
	s := newTries()
	q := newReceivers(s.try)
	q.slowAfter = time.Hour
	many := someReceivers(quickSlots)
	for _, id := range many {
		q.offer(id)
		s.end(id) <- [2]bool{true, true}
		s.end(id) <- [2]bool{false, false}
	}
	s.await(t, "nothing under way", 0, many...)
	q.slowAfter = time.Millisecond
	for _, id := range many {
		q.offer(id)
	}
	s.await(t, "all of them under way", quickSlots, many...)
	another := uuid.New()
	q.offer(another)
	s.await(t, "another while they hang", 1, another)
	finish(q, s, append(many, another))
}

// A receiver that fails is tried again after a pause, by one message at a time.
func TestFailingReceiverIsTriedByOneMessage(t *testing.T) {
	t.Parallel()
	s := newTries()
	q := newReceivers(s.try)
	id := uuid.New()
	for range 5 {
		q.offer(id)
	}
	s.await(t, "one try", 1, id)
	begun := time.Now()
	s.end(id) <- [2]bool{true, false}
	q.offer(id)
	s.awaitBegun(t, 2, id)
	if pause := time.Since(begun); pause < firstPause {
		t.Errorf("the next try came after %s", pause)
	}
	s.end(id) <- [2]bool{true, true}
	s.awaitBegun(t, 3, id)
	for range 5 {
		q.offer(id)
	}
	s.await(t, "several at once, now that it answers", perReceiver, id)
	finish(q, s, []uuid.UUID{id})
}

// finish ends all tries, and the receivers.
func finish(q *receivers, s *tries, ids []uuid.UUID) {
	over := make(chan struct{})
	for _, id := range ids {
		end := s.end(id)
		go func() {
			for {
				select {
				case end <- [2]bool{false, false}:
				case <-over:
					return
				}
			}
		}()
	}
	q.close(time.Hour)
	close(over)
}
