package upkeep

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// quickSlots is how many messages a worker process has on their way to
	// receivers that answer, or have not been tried yet.
	quickSlots = 48
	// freshSlots is how many of them go to receivers that have not answered yet:
	// the others are for those that are known to answer.
	freshSlots = 32
	// failingSlots is how many messages to failing receivers begin beside them.
	failingSlots = 16
	// mostDeliveries bounds all of them. A receiver that stops answering counts
	// as failing before its try is over, so there can be more than failingSlots.
	mostDeliveries = 128
	// perReceiver is how many messages go to one receiver at once. While it fails,
	// and before it has answered, it is one.
	perReceiver = 4
	// slowAfter is how long a receiver may take before it counts as failing.
	slowAfter = 3 * time.Second
	// A failing receiver is tried again after firstPause, and later each time.
	firstPause = time.Second
	longPause  = time.Minute
	// knownReceivers is how many receivers are remembered; more than this are
	// forgotten when they are idle.
	knownReceivers = 10_000
)

// state is what is known of a receiver.
type state int

const (
	fresh   state = iota // it has not answered yet
	good                 // it took its last message
	failing              // its last message failed, or is taking long
	states
)

// receiver is one endpoint, or the host of callbacks.
type receiver struct {
	state     state
	busy      int       // messages on their way to it
	failures  int       // tries in a row that failed
	notBefore time.Time // of the next try while it fails
	again     bool      // something may be due that nobody has looked for
	waiting   bool      // it stands in the waiting list
}

// receivers decides which receivers are delivered to. Receivers that fail or hang
// hold their own slots and never those of receivers that answer.
type receivers struct {
	ctx    context.Context // ends when those on their way are to be given up
	giveUp context.CancelFunc
	// try makes one try to deliver to a receiver and tells whether something was
	// due, and whether the receiver took it.
	try       func(to uuid.UUID) (found, took bool)
	slowAfter time.Duration

	mu       sync.Mutex
	idle     *sync.Cond // nothing is on its way any more
	closed   bool
	underWay [states]int
	known    map[uuid.UUID]*receiver
	waiting  []uuid.UUID // receivers without a slot, in the order in which they came
}

func newReceivers(try func(uuid.UUID) (found, took bool)) *receivers {
	q := &receivers{try: try, slowAfter: slowAfter, known: map[uuid.UUID]*receiver{}}
	q.idle = sync.NewCond(&q.mu)
	q.ctx, q.giveUp = context.WithCancel(context.Background())
	return q
}

// offer says that something may be due for a receiver. It does not wait.
func (q *receivers) offer(id uuid.UUID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.known[id]
	if r == nil {
		q.forgetIdle()
		r = &receiver{}
		q.known[id] = r
	}
	r.again = true
	q.wait(id, r)
	q.startWaiting()
}

func (q *receivers) busy() (n int) {
	for _, count := range q.underWay {
		n += count
	}
	return n
}

// admits tells whether another message to a receiver may begin now.
func (q *receivers) admits(r *receiver) bool {
	quick := q.underWay[good] + q.underWay[fresh]
	if q.closed || q.busy() >= mostDeliveries {
		return false
	}
	switch r.state {
	case failing:
		return r.busy == 0 && q.underWay[failing] < failingSlots && !time.Now().Before(r.notBefore)
	case fresh:
		return r.busy == 0 && quick < quickSlots && q.underWay[fresh] < freshSlots
	}
	// One message to each comes before several to one.
	return r.busy == 0 && quick < quickSlots || r.busy < perReceiver && quick < quickSlots/2
}

// wait puts a receiver at the end of the waiting list.
func (q *receivers) wait(id uuid.UUID, r *receiver) {
	if !r.waiting && !q.closed {
		r.waiting = true
		q.waiting = append(q.waiting, id)
	}
}

// startWaiting begins what the slots allow, those that have waited longest first.
func (q *receivers) startWaiting() {
	var still []uuid.UUID
	for _, id := range q.waiting {
		r := q.known[id]
		switch {
		case q.admits(r):
			r.waiting, r.again = false, false
			r.busy++
			q.underWay[r.state]++
			go q.visit(id, r)
		case q.closed || r.busy > 0: // whoever is at it sees again
			r.waiting = false
		default:
			still = append(still, id)
		}
	}
	q.waiting = still
}

// visit delivers to a receiver until nothing is due, it fails, or others wait
// for the slot.
func (q *receivers) visit(id uuid.UUID, r *receiver) {
	for stays := true; stays; {
		slow := time.AfterFunc(q.slowAfter, func() { q.slow(r) })
		found, took := q.try(id)
		slow.Stop()
		stays = q.stays(id, r, found, took)
	}
}

// slow counts a receiver that takes long as failing: what is on its way to it
// holds no slot of the others.
func (q *receivers) slow(r *receiver) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.busy > 0 {
		q.become(r, failing)
		q.startWaiting()
	}
}

func (q *receivers) become(r *receiver, s state) {
	q.underWay[r.state] -= r.busy
	q.underWay[s] += r.busy
	r.state = s
}

// stays takes in what became of a try, and tells whether the caller goes on with
// its receiver. If not, it has left its slot.
func (q *receivers) stays(id uuid.UUID, r *receiver, found, took bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	more := found || r.again
	switch {
	case took:
		q.become(r, good)
		r.failures = 0
	case found:
		q.become(r, failing)
		pause := min(firstPause<<min(r.failures, 10), longPause)
		r.failures++
		r.notBefore = time.Now().Add(pause)
		time.AfterFunc(pause, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.startWaiting()
		})
	}
	if more && !q.closed && r.state == good && len(q.waiting) == 0 {
		r.again = false
		return true
	}
	r.busy--
	q.underWay[r.state]--
	if more {
		q.wait(id, r)
	}
	q.startWaiting()
	if q.busy() == 0 {
		q.idle.Broadcast()
	}
	return false
}

// forgetIdle makes room for another receiver.
func (q *receivers) forgetIdle() {
	if len(q.known) < knownReceivers {
		return
	}
	for id, r := range q.known {
		if r.busy == 0 && !r.waiting {
			delete(q.known, id)
		}
	}
}

// close lets messages on their way arrive for a time, and gives up the rest.
// No other begins.
func (q *receivers) close(grace time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	late := time.AfterFunc(grace, q.giveUp)
	defer late.Stop()
	for q.busy() > 0 {
		q.idle.Wait()
	}
	q.giveUp()
}
