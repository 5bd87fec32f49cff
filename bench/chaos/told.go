package chaos

import (
	"slices"

	"piecework/internal/webhook"
)

// acceptedBatch looks for what a client was told to have.
func (c *checker) acceptedBatch(e Event) {
	if b, ok := c.batches[e.Unit]; !ok || b.Request != e.Request {
		c.broken("batches are whole", e.Request, "%s was accepted by %s and is not in the ledger", e.Unit, e.Door)
	}
}

// wholeBatches looks at each batch and its units.
func (c *checker) wholeBatches() {
	asked, byRequest := map[string][]string{}, map[string]string{}
	for request, want := range c.wants {
		if want.Batch != "" {
			asked[want.Batch] = append(asked[want.Batch], request)
		}
	}
	has := map[string][]Unit{} // by batch
	for _, u := range c.l.Units {
		if want := c.wants[u.Request]; c.batches[u.Batch].Request != want.Batch {
			c.broken("batches are whole", u.ID, "%s was asked for with batch %q, and is in %q", u.Request, want.Batch, u.Batch)
		}
		has[u.Batch] = append(has[u.Batch], u)
	}
	for _, b := range c.l.Batches {
		if other := byRequest[b.Request]; other != "" || asked[b.Request] == nil {
			c.broken("batches are whole", b.ID, "%q was asked for once or never, and %q is there too", b.Request, other)
		}
		byRequest[b.Request] = b.ID
		// "one unit per request" finds those that are there twice.
		if len(has[b.ID]) != len(asked[b.Request]) {
			c.broken("batches are whole", b.ID, "%d of %d units are there", len(has[b.ID]), len(asked[b.Request]))
		}
		c.sums(b, has[b.ID])
	}
}

// sums compares a batch's counts and status with its units.
func (c *checker) sums(b Batch, units []Unit) {
	ended := map[string]int{}
	for _, u := range units {
		ended[u.State]++
		if b.Finished != nil && u.Finished != nil && u.Finished.After(*b.Finished) {
			c.broken("batches add up", b.ID, "it was over %v before its unit %s", u.Finished.Sub(*b.Finished), u.ID)
		}
	}
	if b.Finished == nil {
		c.broken("batches add up", b.ID, "it is %s", b.Status)
		return
	}
	if b.Total != b.Succeeded+b.Failed+b.Cancelled+b.Expired || b.Total != len(units) ||
		b.Succeeded != ended["succeeded"] || b.Failed != ended["failed"] || b.Cancelled != ended["cancelled"] || b.Expired != ended["timed_out"] {
		c.broken("batches add up", b.ID, "of %d units %d succeeded, %d failed, %d were cancelled, %d expired; its units say %v",
			b.Total, b.Succeeded, b.Failed, b.Cancelled, b.Expired, ended)
	}
	want := "completed_with_failures"
	switch {
	case b.CancelAsked != nil:
		want = "cancelled"
	case ended["succeeded"] == len(units):
		want = "completed"
	}
	if b.Status != want {
		c.broken("batches add up", b.ID, "it is %s and should be %s", b.Status, want)
	}
}

// messages compares what receivers saw with what is in the ledger, and both with
// how units and batches ended.
func (c *checker) messages() {
	written, known := map[string][]Delivery{}, map[string]Delivery{}
	for _, d := range c.l.Deliveries {
		written[d.Of] = append(written[d.Of], d)
		known[d.Message] = d
	}
	taken, digest := map[string]bool{}, map[string]string{}
	for _, e := range c.h {
		if e.Kind != KindMessage {
			continue
		}
		d, ok := known[e.Message]
		switch {
		case e.Error != "":
			c.broken("messages are true", e.Message, "%s", e.Error)
		case !ok || d.Of != e.Unit || d.Type != e.What:
			c.broken("messages are true", e.Message, "it told of %s %s; the ledger has %+v", e.What, e.Unit, d)
		case c.early(e):
			c.broken("messages are true", e.Message, "it told of %s %s, which had not ended", e.What, e.Unit)
		case digest[e.Message] != "" && digest[e.Message] != e.Digest:
			c.broken("messages are true", e.Message, "try %d had another body", e.Try)
		}
		digest[e.Message] = e.Digest
		taken[e.Message] = taken[e.Message] || e.Status == 200
	}
	told := func(id, event, callback string, again bool) {
		var want []string
		if callback != "" {
			want = []string{event}
		}
		var types []string
		for _, d := range written[id] {
			types = append(types, d.Type)
			switch {
			case d.State == "delivered" && taken[d.Message]:
			case d.State == "dead" && (callback == isGone && digest[d.Message] != "" || d.Attempts >= webhook.Tries):
			default:
				c.broken("ends are told", id, "the message %s is %s after %d tries; its receiver took it: %v", d.Message, d.State, d.Attempts, taken[d.Message])
			}
		}
		if again && len(types) > 1 {
			types = types[len(types)-1:] // it has ended each time that it was run
		}
		if !slices.Equal(types, want) {
			c.broken("ends are told", id, "the messages are %v and should be %v", types, want)
		}
	}
	for _, u := range c.l.Units {
		told(u.ID, "work_unit."+u.State, c.wants[u.Request].Callback, false)
	}
	for _, b := range c.l.Batches {
		told(b.ID, "batch."+b.Status, fails, c.runAgain[b.Request])
	}
}

// early tells whether a message came before what it tells of.
func (c *checker) early(e Event) bool {
	finished := c.units[e.Unit].Finished
	if b, ok := c.batches[e.Unit]; ok {
		if c.runAgain[b.Request] {
			return false // it has ended before
		}
		finished = b.Finished
	}
	return finished == nil || e.At.Before(*finished)
}
