package page

import (
	"io"
	"net/url"
	"time"

	"github.com/google/uuid"

	"piecework/internal/work"
)

// Webhooks is the page of endpoints, and of what was sent to them and to
// callbacks.
type Webhooks struct {
	Now        time.Time
	Endpoints  []work.Endpoint
	Deliveries []work.Delivery
	Status     string // states, with commas between; empty: all
	Endpoint   string // an id; empty: all
	Next       string // the page goes on after this; empty: it is the last
	Notice     *Notice
}

// Render writes the page.
func (p Webhooks) Render(w io.Writer) error { return render(w, "webhooks.html", p) }

// Query is the filter as a query with its question mark, or nothing.
func (p Webhooks) Query() string { return query(p.values()) }

func (p Webhooks) values() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{"status": p.Status, "endpoint": p.Endpoint} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// More is the query of the page that goes on.
func (p Webhooks) More() string {
	v := p.values()
	v.Set("after", p.Next)
	return query(v)
}

// Pills are the states, for the filter.
func (p Webhooks) Pills() []Pill {
	pills := []Pill{{Name: "all", Query: query(Webhooks{Endpoint: p.Endpoint}.values()), Chosen: p.Status == ""}}
	for _, s := range work.DeliveryStates {
		pills = append(pills, Pill{Name: string(s), Class: stateClass(s), Chosen: p.Status == string(s),
			Query: query(Webhooks{Endpoint: p.Endpoint, Status: string(s)}.values())})
	}
	return pills
}

// To is the query of the list for one endpoint.
func (p Webhooks) To(id uuid.UUID) string { return query(Webhooks{Endpoint: id.String()}.values()) }

// Posts are deliveries on a page.
type Posts struct {
	Now   time.Time
	Items []work.Delivery
	Back  string // the page it is on
}

// Posts are the deliveries of the page.
func (p Webhooks) Posts() Posts {
	return Posts{Now: p.Now, Items: p.Deliveries, Back: "/webhooks" + p.Query()}
}

// Told are the messages about the unit.
func (u Unit) Told() Posts { return Posts{Now: u.Now, Items: u.Deliveries, Back: u.Path()} }

// Again delivers once more.
func (p Posts) Again(d work.Delivery) *Deed {
	if d.State == work.DeliveryPending && d.Attempts == 0 {
		return nil // it is on its way
	}
	return &Deed{Action: "/webhooks/deliveries/" + d.ID.String() + "/redeliver", Verb: "Redeliver", Back: p.Back}
}

// Coming is when the next try follows, in words.
func (p Posts) Coming(d work.Delivery) string {
	switch {
	case d.NextAt == nil:
		return ""
	case !d.NextAt.After(p.Now):
		return "now"
	}
	return "in " + lasted(d.NextAt.Sub(p.Now))
}
