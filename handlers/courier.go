package handlers

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

// standing is what is known of a receiver.
type standing int

const (
	fresh   standing = iota // it has not answered yet
	good                    // it took its last message
	failing                 // its last message failed, or is taking long
	standings
)

// receiver is one endpoint, or the host of callbacks.
type receiver struct {
	standing  standing
	busy      int       // messages on their way to it
	failures  int       // tries in a row that failed
	notBefore time.Time // of the next try while it fails
	again     bool      // something may be due that nobody has looked for
	waiting   bool      // it stands in the courier's waiting list
}

// courier decides which receivers are delivered to. Receivers that fail or hang
// hold their own slots and never those of receivers that answer.
type courier struct {
	ctx    context.Context // ends when those on their way are to be given up
	giveUp context.CancelFunc
	// try makes one try to deliver to a receiver and tells whether something was
	// due, and whether the receiver took it.
	try       func(to uuid.UUID) (found, took bool)
	slowAfter time.Duration

	mu        sync.Mutex
	idle      *sync.Cond // nothing is on its way any more
	closed    bool
	onTheWay  [standings]int
	receivers map[uuid.UUID]*receiver
	waiting   []uuid.UUID // receivers without a slot, in the order in which they came
}

func newCourier(try func(uuid.UUID) (found, took bool)) *courier {
	c := &courier{try: try, slowAfter: slowAfter, receivers: map[uuid.UUID]*receiver{}}
	c.idle = sync.NewCond(&c.mu)
	c.ctx, c.giveUp = context.WithCancel(context.Background())
	return c
}

// offer says that something may be due for a receiver. It does not wait.
func (c *courier) offer(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.receivers[id]
	if r == nil {
		c.forgetIdle()
		r = &receiver{}
		c.receivers[id] = r
	}
	r.again = true
	c.wait(id, r)
	c.startWaiting()
}

func (c *courier) busy() (n int) {
	for _, count := range c.onTheWay {
		n += count
	}
	return n
}

// admits tells whether another message to a receiver may begin now.
func (c *courier) admits(r *receiver) bool {
	quick := c.onTheWay[good] + c.onTheWay[fresh]
	if c.closed || c.busy() >= mostDeliveries {
		return false
	}
	switch r.standing {
	case failing:
		return r.busy == 0 && c.onTheWay[failing] < failingSlots && !time.Now().Before(r.notBefore)
	case fresh:
		return r.busy == 0 && quick < quickSlots && c.onTheWay[fresh] < freshSlots
	}
	// One message to each comes before several to one.
	return r.busy == 0 && quick < quickSlots || r.busy < perReceiver && quick < quickSlots/2
}

// wait puts a receiver at the end of the waiting list.
func (c *courier) wait(id uuid.UUID, r *receiver) {
	if !r.waiting && !c.closed {
		r.waiting = true
		c.waiting = append(c.waiting, id)
	}
}

// startWaiting begins what the slots allow, those that have waited longest first.
func (c *courier) startWaiting() {
	var still []uuid.UUID
	for _, id := range c.waiting {
		r := c.receivers[id]
		switch {
		case c.admits(r):
			r.waiting, r.again = false, false
			r.busy++
			c.onTheWay[r.standing]++
			go c.visit(id, r)
		case c.closed || r.busy > 0: // whoever is at it sees again
			r.waiting = false
		default:
			still = append(still, id)
		}
	}
	c.waiting = still
}

// visit delivers to a receiver until nothing is due, it fails, or others wait
// for the slot.
func (c *courier) visit(id uuid.UUID, r *receiver) {
	for stays := true; stays; {
		slow := time.AfterFunc(c.slowAfter, func() { c.slow(r) })
		found, took := c.try(id)
		slow.Stop()
		stays = c.stays(id, r, found, took)
	}
}

// slow counts a receiver that takes long as failing: what is on its way to it
// holds no slot of the others.
func (c *courier) slow(r *receiver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.busy > 0 {
		c.become(r, failing)
		c.startWaiting()
	}
}

func (c *courier) become(r *receiver, s standing) {
	c.onTheWay[r.standing] -= r.busy
	c.onTheWay[s] += r.busy
	r.standing = s
}

// stays takes in what became of a try, and tells whether the caller goes on with
// its receiver. If not, it has left its slot.
func (c *courier) stays(id uuid.UUID, r *receiver, found, took bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	more := found || r.again
	switch {
	case took:
		c.become(r, good)
		r.failures = 0
	case found:
		c.become(r, failing)
		pause := min(firstPause<<min(r.failures, 10), longPause)
		r.failures++
		r.notBefore = time.Now().Add(pause)
		time.AfterFunc(pause, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.startWaiting()
		})
	}
	if more && !c.closed && r.standing == good && len(c.waiting) == 0 {
		r.again = false
		return true
	}
	r.busy--
	c.onTheWay[r.standing]--
	if more {
		c.wait(id, r)
	}
	c.startWaiting()
	if c.busy() == 0 {
		c.idle.Broadcast()
	}
	return false
}

// forgetIdle makes room for another receiver.
func (c *courier) forgetIdle() {
	if len(c.receivers) < knownReceivers {
		return
	}
	for id, r := range c.receivers {
		if r.busy == 0 && !r.waiting {
			delete(c.receivers, id)
		}
	}
}

// close lets messages on their way arrive for a time, and gives up the rest.
// No other begins.
func (c *courier) close(grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	late := time.AfterFunc(grace, c.giveUp)
	defer late.Stop()
	for c.busy() > 0 {
		c.idle.Wait()
	}
	c.giveUp()
}
