package page

import (
	"io"
	"net/url"
	"strings"

	"piecework/internal/work"
)

// Batches is the page of all batches, newest first.
type Batches struct {
	Search  string // part of the title
	Status  string // statuses, with commas between; empty: all
	After   string // the id the page goes on after; empty on the first
	Next    string // the id to go on after; empty on the last
	Pills   []Pill
	Batches []Batch
	Still   bool
}

// Render writes the page.
func (p Batches) Render(w io.Writer) error { return render(w, "batches.html", p) }

// Part is what changes about the page.
func (p Batches) Part() Part { return Part{Name: "batches", Data: p} }

func (p Batches) query(status, after string) string {
	v := url.Values{}
	for name, value := range map[string]string{"q": p.Search, "status": status, "after": after} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return batchList + query(v)
}

// Newest is the first page.
func (p Batches) Newest() string { return p.query(p.Status, "") }

// Older is the page after this.
func (p Batches) Older() string { return p.query(p.Status, p.Next) }

// batchPills are the groups of statuses that people look for. Every status is in
// one.
var batchPills = []struct {
	name     string
	statuses []work.BatchStatus
}{
	{"In progress", []work.BatchStatus{work.BatchInProgress, work.BatchEnumerating, work.BatchTesting, work.BatchFinalizing, work.BatchCancelling}},
	{"Await approval", []work.BatchStatus{work.BatchAwaitingApproval}},
	{"Completed", []work.BatchStatus{work.BatchCompleted}},
	{"With failures", []work.BatchStatus{work.BatchCompletedWithFailures}},
	{"Failed or expired", []work.BatchStatus{work.BatchFailed, work.BatchExpired}},
	{"Cancelled", []work.BatchStatus{work.BatchCancelled}},
}

// Choices are the pills for the statuses, with how many batches each would show;
// counting stopped at most in all.
func (p Batches) Choices(counts map[work.BatchStatus]int, most int) []Pill {
	all := Pill{Name: "All", Query: p.query("", ""), Class: "quiet", Chosen: p.Status == ""}
	for _, n := range counts {
		all.Count += n
	}
	all.Most = all.Count >= most
	list := []Pill{all}
	for _, group := range batchPills {
		names := make([]string, len(group.statuses))
		pill := Pill{Name: group.name, Class: stateClass(group.statuses[0]), Most: all.Most}
		for i, s := range group.statuses {
			names[i] = string(s)
			pill.Count += counts[s]
		}
		text := strings.Join(names, ",")
		pill.Query, pill.Chosen = p.query(text, ""), p.Status == text
		list = append(list, pill)
	}
	return list
}
