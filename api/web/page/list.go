package page

import (
	"io"
	"time"

	"piecework/internal/work"
)

// List is the left column: the newest units of a filter.
type List struct {
	Filter Filter
	Batch  *Batch // that the filter asks for: its id and title
	Pills  []Pill
	// CountedAt is when the units of the pills were counted; zero: the page does not say.
	CountedAt time.Time
	Cards     []Card
	Next      string   // id to go on after; empty on the last page
	Backends  []string // to choose from
	Classes   []work.Class
}

// Sinces are the times to choose from.
func (List) Sinces() []Choice { return Sinces }

// Card is one unit of the list.
type Card struct {
	work.Unit
	Live   *work.Run // the run that goes on, if one does
	Query  string    // the list's filter, which stays when the unit is chosen
	Chosen bool
	Now    time.Time
}

// Status is the unit's state as the pages call it.
func (c Card) Status() string { return status(c.Unit, c.Now) }

// status is a unit's state; queued for later is scheduled.
func status(u work.Unit, now time.Time) string {
	if u.State == work.Queued && u.NotBefore != nil && u.NotBefore.After(now) {
		return "scheduled"
	}
	return words(u.State)
}

// Viewer is the page: the list, and the chosen unit if one is.
type Viewer struct {
	List   List
	Unit   *Unit
	Notice *Notice // of what was done just now
	Still  bool    // nothing changes: it is a story
}

// Render writes the page.
func (p Viewer) Render(w io.Writer) error { return render(w, "viewer.html", p) }
