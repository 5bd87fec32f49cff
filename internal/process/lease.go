package process

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
)

// Lease is until when children may live. Their worker process renews it as long
// as the database confirms that it is alive; when it does not, because it is
// frozen or cut off, the supervisors end them. All children share one word of
// memory: to renew it costs the same for one as for thousands, and a supervisor
// wakes only when the time that it last read there has come. Without a supervisor
// nobody ends them.
type Lease struct {
	until *atomic.Int64 // nanoseconds of Uptime
	file  *os.File      // the word's memory, for supervisors; nil where there are none
}

// ErrLapsed: the lease has run out, so the child was ended, or not started.
var ErrLapsed = errors.New("the lease of the run's processes has run out")

// NewLease starts a lease that ends at the given Uptime.
func NewLease(until time.Duration) (*Lease, error) {
	l, err := newLease()
	if err == nil {
		l.until.Store(int64(until))
	}
	return l, err
}

// Renew moves the end of the lease. A lease that has run out stays so, and false
// is returned: others may own by now what was begun under it, however late that
// gets to its start.
func (l *Lease) Renew(until time.Duration) bool {
	before := l.until.Swap(int64(until))
	// Only now: we may have been frozen until a moment ago.
	if lapsed := Uptime() >= time.Duration(before); lapsed {
		l.until.Store(0)
		return false
	}
	return true
}

// Lapsed tells whether the lease has run out.
func (l *Lease) Lapsed() bool { return Uptime() >= l.end() }

func (l *Lease) end() time.Duration { return time.Duration(l.until.Load()) }
