package page

import (
	"net/url"
	"slices"

	"piecework/internal/work"
)

// Filter is which units the list shows, as its query says.
type Filter struct {
	Search  string
	Status  string // states, with commas between; empty: all
	Batch   string // its id
	Backend string
	Worker  string
	Class   string // of the error
	Labels  []string
	Since   string // one of Sinces; empty: ever
}

// Sinces are the times the list can go back to, the names as Go's durations.
var Sinces = []Choice{{"1h", "last hour"}, {"24h", "last day"}, {"168h", "last week"}, {"720h", "last 30 days"}}

// Choice is a value and what people call it.
type Choice struct{ Value, Name string }

// values is the query without page and choice.
func (f Filter) values() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"q": f.Search, "status": f.Status, "batch": f.Batch, "backend": f.Backend, "worker": f.Worker, "class": f.Class, "since": f.Since,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	for _, label := range f.Labels {
		v.Add("label", label)
	}
	return v
}

// Query is the filter as a query with its question mark, or nothing.
func (f Filter) Query() string { return query(f.values()) }

func query(v url.Values) string {
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// More is the query of the page that goes on after a unit.
func (f Filter) More(after string) string {
	v := f.values()
	v.Set("after", after)
	return query(v)
}

// Narrow tells whether anything but status and search is asked for.
func (f Filter) Narrow() bool {
	return f.Backend != "" || f.Worker != "" || f.Class != "" || len(f.Labels) > 0 || f.Since != ""
}

// Pill is one choice of status above the list.
type Pill struct {
	Name, Query, Class string
	Count              int
	Most               bool // Count is where counting stopped
	Chosen             bool
}

// pills are the groups of states that people look for. Every state is in one.
var pills = []struct {
	name   string
	states []work.State
}{
	{"Queued", []work.State{work.Queued}},
	{"Running", []work.State{work.Running}},
	{"Waiting", []work.State{work.Waiting}},
	{"Done", []work.State{work.Succeeded}},
	{"Failed", []work.State{work.Failed, work.TimedOut}},
	{"Cancelled", []work.State{work.Cancelled}},
}

// Pills are the choices of status, with how many units each would show.
func (f Filter) Pills(counts map[work.State]int, most int) []Pill {
	all := Pill{Name: "All", Class: "quiet", Chosen: f.Status == ""}
	var list []Pill
	for _, p := range pills {
		g := f
		g.Status = string(p.states[0])
		for _, state := range p.states[1:] {
			g.Status += "," + string(state)
		}
		pill := Pill{Name: p.name, Query: g.Query(), Class: stateClass(p.states[0]), Chosen: f.Status == g.Status}
		for _, state := range p.states {
			pill.Count += counts[state]
			pill.Most = pill.Most || counts[state] >= most
		}
		all.Count += pill.Count
		all.Most = all.Most || pill.Most
		list = append(list, pill)
	}
	f.Status = ""
	all.Query = f.Query()
	return slices.Insert(list, 0, all)
}
